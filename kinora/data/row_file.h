#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/io/file.h"

namespace kinora::data {

/// A safetensors file with one tensor, a row for each sample, that grows before its header is
/// known.
class RowFile {
 public:
  /// row: the sizes of one. parts: what a row holds in words, for the header.
  RowFile(std::filesystem::path path, std::string tensor, DType dtype, std::vector<int64_t> row,
          std::string parts);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int64_t row_bytes() const { return row_bytes_; }

  /// Rows from `first` on; nothing where the file has fewer, or there is none. kIo.
  [[nodiscard]] std::optional<std::vector<std::byte>> read(int64_t first, int64_t count) const;

  /// Puts rows at `first`. Once this returns they outlast this process and a loss of power. kIo.
  void write(int64_t first, std::span<const std::byte> rows);

  /// Makes the file one of `count` rows that anybody can read. Nothing to do if it is.
  void finish(int64_t count);

 private:
  [[nodiscard]] int64_t offset_of(int64_t row) const;
  [[nodiscard]] std::string header(int64_t count) const;

  std::filesystem::path path_;
  std::string tensor_;
  DType dtype_;
  std::vector<int64_t> row_;
  std::string parts_;
  int64_t row_bytes_;
  std::unique_ptr<io::FileWriter> writer_;
};

}  // namespace kinora::data
