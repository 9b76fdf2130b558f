#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kinora/io/file.h"

/// GGUF (ggml's docs/gguf.md, versions 2 and 3, little-endian): keys with values, then tensors of
/// many types, most of which are blocks of few bits with scales.
namespace kinora::io {

/// Types of tensors that are read, by ggml's numbers.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

/// "F32", "Q4_K", ...
[[nodiscard]] std::string_view to_string(GgufType type);

/// A tensor within a mapped file.
struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  /// The outermost dim first; as "comfy.gguf.orig_shape.NAME" says it, where that is there.
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  ///< whole blocks; lives as long as the file
};

/// Elements of a tensor.
[[nodiscard]] int64_t num_elements(const GgufTensor& tensor);

/// The values [begin, end) of a tensor in C order, as ggml has them in fp32. begin and end lie on
/// blocks: multiples of 256, or the tensor's end.
void read_floats(const GgufTensor& tensor, int64_t begin, int64_t end, std::span<float> out);

class GgufFile {
 public:
  /// Maps `path` and checks all before the data: kIo, naming the file, for what is not GGUF of
  /// version 2 or 3, for a value or name that ends behind the file, tensors of types that are not
  /// read, with no or more than eight dims, with rows that are not whole blocks, or outside of the
  /// file, and for names that come twice.
  [[nodiscard]] static GgufFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Null when there is no tensor of this name.
  [[nodiscard]] const GgufTensor* find(std::string_view name) const;
  /// The values that are text, by key.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // views of names in tensors_
  std::map<std::string, std::string> metadata_;
};

}  // namespace kinora::io
