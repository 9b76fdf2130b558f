#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/io/file.h"

/// The safetensors format (Hugging Face, github.com/huggingface/safetensors, "Format"): 8 bytes of
/// little-endian header length, a JSON header, then the tensors' bytes without holes, C order.
namespace kinora::io {

/// The longest header that readers accept (the format's own limit).
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

/// A tensor within a mapped safetensors file.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  ///< lives as long as the file; may be unaligned
};

/// A safetensors file, mapped. Names of tensors are unique.
class SafetensorsFile {
 public:
  /// Maps `path` and checks its header completely: throws kIo, naming the file, for a header that
  /// is too long or not the format's JSON, for duplicate names, unknown dtypes, shapes that do not
  /// fit the data, ranges that overlap, leave holes or bytes over, and metadata that are not
  /// strings.
  [[nodiscard]] static SafetensorsFile open(const std::filesystem::path& path);

  /// Ordered by their place in the file.
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  /// Null when there is no tensor of this name.
  [[nodiscard]] const SafetensorsTensor* find(std::string_view name) const;

  /// The header's "__metadata__".
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // views of names in tensors_
  std::map<std::string, std::string> metadata_;
};

/// What a writer must know of a tensor before its data.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// What a file of `tensors` begins with, length included; its size is a multiple of 8 bytes. The
/// data follow in the order given, which must be that of falling element size. kInternal as
/// SafetensorsWriter.
[[nodiscard]] std::string safetensors_header(
    const std::vector<SafetensorsSpec>& tensors,
    const std::map<std::string, std::string>& metadata = {});

/// What was written.
struct SafetensorsSummary {
  int64_t num_bytes = 0;
  std::string checksum;  ///< of the complete file, see Checksum
};

/// Writes a safetensors file piece by piece under a temporary name that becomes `path` at `finish`.
/// The same input gives the same bytes.
class SafetensorsWriter {
 public:
  /// Declares all tensors. They are laid out by falling element size, then as declared, so that
  /// every tensor is aligned to its element. Throws kIo when the file cannot be created, kInternal
  /// for names that are double, "__metadata__" or not UTF-8, and for negative or too large shapes.
  SafetensorsWriter(std::filesystem::path path, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  /// Removes the temporary file unless finished.
  ~SafetensorsWriter();

  /// The tensors in the order in which `write` wants them.
  [[nodiscard]] const std::vector<SafetensorsSpec>& tensors() const { return tensors_; }

  /// The next bytes of tensor `name`: all of it, or a piece that continues the last one. Tensors
  /// without elements may be left out. Any other order is an error (kInternal).
  void write(std::string_view name, std::span<const std::byte> data);

  /// Makes the file appear, durably. All tensors must be complete.
  SafetensorsSummary finish();

 private:
  void skip_complete();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::vector<SafetensorsSpec> tensors_;
  std::vector<int64_t> sizes_;  // bytes, as tensors_
  size_t current_ = 0;
  int64_t written_ = 0;  // bytes of the current tensor
  Checksum checksum_;
  std::unique_ptr<FileWriter> writer_;  // null once finished
};

/// Writes `tensors` at once, durably. Only names, dtypes, shapes and data are used.
SafetensorsSummary write_safetensors(const std::filesystem::path& path,
                                     std::span<const SafetensorsTensor> tensors,
                                     const std::map<std::string, std::string>& metadata = {});

}  // namespace kinora::io
