#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::data {

/// A column that is asked for, under any of several names.
struct TableColumn {
  std::vector<std::string_view> names;  ///< the first that there is counts
  bool is_needed = false;
};

/// What is done with the rows of a table.
struct TableVisitor {
  /// `row` is the line of the file, or the row of a Parquet table, from 1; `values` has one text
  /// for each column asked for, empty where there is none.
  std::function<void(int64_t row, const std::vector<std::string>& values)> on_row;
  /// A row that cannot be understood.
  std::function<void(int64_t row, const std::string& cause)> on_bad_row;
};

/// Goes through a table in CSV with a line of names, JSON Lines or Parquet, by the file's suffix
/// (.csv, .jsonl, .ndjson, .parquet). Errors: another suffix, no module for Parquet (kConfig); a
/// file that cannot be read or lacks a column that is needed (kIo).
void read_table(const std::filesystem::path& path, const std::vector<TableColumn>& columns,
                const TableVisitor& visitor);

}  // namespace kinora::data
