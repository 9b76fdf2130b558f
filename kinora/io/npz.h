#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/io/file.h"
#include "kinora/io/zip.h"

/// NumPy's .npz: a zip archive of arrays, each a file NAME.npy (numpy.lib.format, versions 1 to 3).
/// Python objects in arrays are pickles, which can run code where they are read: they are refused.
namespace kinora::io {

/// An array, C order, little endian. Borrows from its file where the bytes lie there just so.
class NpyArray {
 public:
  NpyArray(DType dtype, std::vector<int64_t> shape, std::span<const std::byte> borrowed)
      : dtype_(dtype), shape_(std::move(shape)), borrowed_(borrowed) {}
  NpyArray(DType dtype, std::vector<int64_t> shape, std::vector<std::byte> owned)
      : dtype_(dtype), shape_(std::move(shape)), owned_(std::move(owned)), is_owned_(true) {}

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }
  /// Of any alignment.
  [[nodiscard]] std::span<const std::byte> data() const {
    return is_owned_ ? std::span<const std::byte>(owned_) : borrowed_;
  }

 private:
  DType dtype_;
  std::vector<int64_t> shape_;
  std::span<const std::byte> borrowed_;
  std::vector<std::byte> owned_;
  bool is_owned_ = false;
};

/// A mapped .npz file.
class NpzFile {
 public:
  /// Throws kIo, naming the file, for what is no sound zip archive of stored and deflated entries.
  [[nodiscard]] static NpzFile open(const std::filesystem::path& path);

  /// Of the arrays, without .npy, in the file's order.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool contains(std::string_view name) const;

  /// The array `name`. Throws kIo where there is none (naming those that there are), for damage,
  /// arrays whose data do not fit their shape, Python objects and element types that Kinora lacks.
  /// What was read lives as long as the file.
  [[nodiscard]] NpyArray read(std::string_view name) const;

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  explicit NpzFile(const std::filesystem::path& path);

  MappedFile file_;
  ZipArchive archive_;
};

/// An array to be written; C order.
struct NpzMember {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

/// Makes `path` hold `members`, stored, as numpy.savez does; atomic. Throws kIo for what cannot be
/// written and for more than 4 GiB, kInternal for sizes that do not fit and types that NumPy lacks.
void write_npz(const std::filesystem::path& path, std::span<const NpzMember> members);

}  // namespace kinora::io
