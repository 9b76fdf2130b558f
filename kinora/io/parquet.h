#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct KinoraParquetTable;
struct KinoraParquetReader;

namespace kinora::io {

/// Reads rows of a Parquet file as text, by Arrow in the module kinora_parquet.so, which is loaded
/// at the first use. Not for several threads at once.
class ParquetFile {
 public:
  /// Errors: no module (kConfig); a file that cannot be read (kIo).
  explicit ParquetFile(const std::filesystem::path& path);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  /// Those with one value a row.
  [[nodiscard]] const std::vector<std::string>& column_names() const { return names_; }

  /// What value() gives, by their places in column_names(); once, before next().
  void select(const std::vector<int64_t>& columns);

  /// Reads the next group of rows; how many, 0 at the end. Error (kIo): damage.
  [[nodiscard]] int64_t next();

  /// The `column`-th selected column in `row` of that group, valid until the next call; nothing for
  /// null. Numbers as Arrow writes them.
  [[nodiscard]] std::optional<std::string_view> value(int64_t column, int64_t row);

 private:
  std::string path_;
  const KinoraParquetTable& table_;
  KinoraParquetReader* reader_;
  std::vector<std::string> names_;
};

/// Whether the module's file is there.
[[nodiscard]] bool has_parquet();

}  // namespace kinora::io
