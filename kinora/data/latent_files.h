#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/data/source.h"
#include "kinora/io/safetensors.h"

namespace kinora::data {

/// What is asked of files of latents, and stands for what they do not say.
struct LatentFilesOptions {
  int64_t min_frames = 1;    ///< of every clip; above 1 files of images are refused
  float fps = 8.0F;          ///< of clips of files without the metadata fps
  bool needs_labels = true;  ///< else samples of files without labels are of class 0
};

/// Latents that an autoencoder computed before, in one or several safetensors files, each with
///
///     latents  F32, F16 or BF16 [n, C, h, w] of images or [n, C, T, h, w] of clips, already times
///              the autoencoder's scaling factor
///     labels   I64 [n], from 0
///
/// Either all files are of images or all of clips; C, h and w are the same in all, n, T and the
/// type may differ. Samples are ordered by file as given, then as in the file. There are as many
/// classes as the greatest label of all files asks for, named "0", "1", ...
///
/// A file's metadata may say more: "class_names", a JSON list of strings, which may be longer;
/// "fps", frames a second of its clips before they were encoded; "height" and "width" of the
/// pictures in pixels, which all files say or none.
///
/// The files stay mapped; read() shows where a sample lies.
class LatentFiles : public Source {
 public:
  /// A label from here on is taken for a mistake, not for a class.
  static constexpr int64_t kMaxClasses = 1'000'000;

  /// Errors: no file given, different sizes, too few frames, fewer than 2 samples (kConfig); a file
  /// that cannot be read, lacks a tensor or holds one of another type or shape, a label out of
  /// range, class names that are not a list of strings, too few, or not those of the other files,
  /// metadata that are no numbers (kIo).
  explicit LatentFiles(const std::vector<std::filesystem::path>& paths,
                       const LatentFilesOptions& options = {});

  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::optional<SampleShape> latent_shape() const override { return shape_; }
  [[nodiscard]] bool is_video() const override { return is_video_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  struct File {
    io::SafetensorsFile mapped;
    DType dtype;
    std::span<const std::byte> latents;
    std::span<const std::byte> labels;  // empty: all are 0
    int64_t first;                      // number of its first sample
    int64_t count;
    int64_t num_frames;
    float fps;
  };

  void add(const std::filesystem::path& path, const LatentFilesOptions& options);
  /// The file's labels, which max_label_ then counts.
  [[nodiscard]] std::span<const std::byte> checked_labels(const io::SafetensorsFile& file,
                                                          int64_t count);
  void add_names(const io::SafetensorsFile& file);
  [[nodiscard]] const File& file_of(int64_t index) const;

  std::vector<File> files_;
  SampleShape shape_;
  bool is_video_ = false;
  int64_t size_ = 0;
  int64_t max_label_ = 0;
  std::vector<std::string> names_;
};

}  // namespace kinora::data
