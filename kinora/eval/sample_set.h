#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kinora/data/source.h"

namespace kinora::eval {

struct SampleSetOptions {
  int64_t frames = 0;                 ///< of every clip; 0: the samples are images
  int64_t limit = 0;                  ///< the first so many samples; 0: all
  std::filesystem::path labels = {};  ///< JSON: an object of labels by file name; empty: none
};

/// What is judged.
struct JudgedSample {
  at::Tensor pixels;  ///< uint8 [3, H, W], of clips [3, T, H, W]
  /// The class that the sample should show: as the file of labels or an .npz says, or NUMBER of a
  /// name with "_class-NUMBER", which `kinora sample` gives, or the class of the set. -1: none
  /// says.
  int64_t label = -1;
};

/// The picture of all samples that `kinora sample` writes beside them, which is none itself.
inline constexpr const char* kContactSheet = "grid.png";

/// Numbered images or clips to be judged, in a fixed order.
class SampleSet {
 public:
  /// `path`: a folder, a manifest or an archive as `kinora data check` takes it; an .npz with ADM's
  /// arr_0, uint8 [N, H, W, 3], and perhaps labels in arr_1; of clips also a folder of folders of
  /// frames, frame_0000.png and on. kContactSheet is left out.
  /// kIo, kConfig for what is none of these, and for fewer than 2 samples.
  [[nodiscard]] static SampleSet open(const std::filesystem::path& path,
                                      const SampleSetOptions& options);

  [[nodiscard]] int64_t size() const { return std::ssize(indices_); }
  [[nodiscard]] std::string name(int64_t index) const;

  /// Of longer clips the middle frames. Any number of threads at once. kIo, naming the sample,
  /// where it cannot be read or is too short.
  [[nodiscard]] JudgedSample read(int64_t index) const;

  /// What the sample was drawn from, as `kinora sample` keeps it in the file (of a folder of
  /// frames, in the file beside it); else the caption of the set. Empty: none says.
  [[nodiscard]] std::string prompt(int64_t index) const;

 private:
  SampleSet() = default;

  std::shared_ptr<const data::Source> source_;
  std::vector<int64_t> indices_;  // into source_
  std::vector<int64_t> labels_;   // of all of source_; -1: not known before it is read
  int64_t frames_ = 0;
};

}  // namespace kinora::eval
