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

/// Latents that an autoencoder computed before, in one or several safetensors files, each with
///
///     latents  F32, F16 or BF16 [n, C, h, w], already times the autoencoder's scaling factor
///     labels   I64 [n], from 0
///
/// C, h and w are the same in all files; n and the type may differ. Samples are ordered by file as
/// given, then as in the file. There are as many classes as the greatest label of all files asks
/// for, named "0", "1", ...; a JSON list of strings under "class_names" in the metadata of a file
/// gives them names, and may be longer.
///
/// The files stay mapped and are read sample by sample, never as a whole. A sample with a value
/// that is NaN or infinite counts as unreadable.
class LatentFiles : public Source {
 public:
  /// A label from here on is taken for a mistake, not for a class.
  static constexpr int64_t kMaxClasses = 1'000'000;

  /// Errors: no file given, different sizes, fewer than 2 samples (kConfig); a file that cannot be
  /// read, lacks a tensor or holds one of another type or shape, a label out of range, class names
  /// that are not a list of strings, too few, or not those of the other files (kIo).
  explicit LatentFiles(const std::vector<std::filesystem::path>& paths);

  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::optional<SampleShape> latent_shape() const override { return shape_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  struct File {
    io::SafetensorsFile mapped;
    DType dtype;
    std::span<const std::byte> latents;
    std::span<const std::byte> labels;
    int64_t first;  // number of its first sample
    int64_t count;
  };

  void add(const std::filesystem::path& path);
  void add_names(const io::SafetensorsFile& file);
  [[nodiscard]] const File& file_of(int64_t index) const;

  std::vector<File> files_;
  SampleShape shape_;
  int64_t size_ = 0;
  int64_t max_label_ = 0;
  std::vector<std::string> names_;
};

}  // namespace kinora::data
