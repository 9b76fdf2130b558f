#include "kinora/data/table_rows.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/class_names.h"
#include "kinora/data/json_lines.h"
#include "kinora/io/csv.h"
#include "kinora/io/file.h"
#include "kinora/io/parquet.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNoColumn = SIZE_MAX;

std::string_view text_of(const io::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Which of `names` each column asked for is.
std::vector<size_t> find_columns(const std::vector<std::string>& names,
                                 const std::vector<TableColumn>& columns, const std::string& file) {
  std::vector<size_t> places;
  for (const TableColumn& column : columns) {
    size_t place = kNoColumn;
    for (size_t i = 0; i < column.names.size() && place == kNoColumn; ++i) {
      const auto found = std::find(names.begin(), names.end(), column.names[i]);
      place = found != names.end() ? static_cast<size_t>(found - names.begin()) : kNoColumn;
    }
    KINORA_CHECK(place != kNoColumn || !column.is_needed, kIo, "[data] ", file,
                 " must have a column ", column.names.front(), ", got the columns ",
                 io::in_quotes(list_names(names, 8)));
    places.push_back(place);
  }
  return places;
}

void read_csv(const fs::path& path, const std::vector<TableColumn>& columns,
              const TableVisitor& visitor) {
  const io::MappedFile file(path);
  io::CsvReader reader(text_of(file), path.string());
  std::vector<std::string> fields;
  KINORA_CHECK(reader.next(fields), kIo, "[data] ", path.string(),
               " must begin with a line of column names, got an empty file");
  const size_t num_fields = fields.size();
  const std::vector<size_t> places = find_columns(fields, columns, path.string());
  std::vector<std::string> values(columns.size());
  while (reader.next(fields)) {
    if (fields.size() != num_fields) {
      visitor.on_bad_row(reader.line(), "a row with more or fewer fields than the first");
      continue;
    }
    for (size_t i = 0; i < places.size(); ++i) {
      values[i] = places[i] == kNoColumn ? "" : fields[places[i]];
    }
    visitor.on_row(reader.line(), values);
  }
}

std::string json_text(const nlohmann::json& object, const TableColumn& column) {
  for (const std::string_view name : column.names) {
    const auto found = object.find(name);
    if (found != object.end() && !found->is_null()) {
      if (std::optional<std::string> lines = lines_of_list(*found)) {
        return *std::move(lines);
      }
      return found->is_string()
                 ? found->get<std::string>()
                 : found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  }
  return "";
}

void read_json_lines(const fs::path& path, const std::vector<TableColumn>& columns,
                     const TableVisitor& visitor) {
  const io::MappedFile file(path);
  const std::string_view text = text_of(file);
  std::vector<std::string> values(columns.size());
  int64_t row = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim(text.substr(begin, end - begin));
    begin = end + 1;
    ++row;
    if (line.empty()) {
      continue;
    }
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object()) {
      visitor.on_bad_row(row, "a line that is no JSON object");
      continue;
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      values[i] = json_text(object, columns[i]);
    }
    visitor.on_row(row, values);
  }
}

void read_parquet(const fs::path& path, const std::vector<TableColumn>& columns,
                  const TableVisitor& visitor) {
  io::ParquetFile file(path);
  const std::vector<size_t> places = find_columns(file.column_names(), columns, path.string());
  std::vector<int64_t> selected;
  for (const size_t place : places) {
    if (place != kNoColumn) {
      selected.push_back(static_cast<int64_t>(place));
    }
  }
  file.select(selected);
  std::vector<std::string> values(columns.size());
  int64_t row = 0;
  for (int64_t count = file.next(); count > 0; count = file.next()) {
    for (int64_t i = 0; i < count; ++i) {
      int64_t column = 0;
      for (size_t k = 0; k < places.size(); ++k) {
        values[k] = places[k] == kNoColumn ? "" : file.value(column++, i).value_or("");
      }
      visitor.on_row(++row, values);
    }
  }
}

bool ends_in(const fs::path& path, std::string_view suffix) {
  return has_suffix(path.filename().string(), std::array{suffix});
}

}  // namespace

void read_table(const fs::path& path, const std::vector<TableColumn>& columns,
                const TableVisitor& visitor) {
  if (ends_in(path, ".csv")) {
    read_csv(path, columns, visitor);
  } else if (ends_in(path, ".jsonl") || ends_in(path, ".ndjson")) {
    read_json_lines(path, columns, visitor);
  } else if (ends_in(path, ".parquet")) {
    read_parquet(path, columns, visitor);
  } else {
    throw_error(ErrorKind::kConfig,
                "[data] a manifest must end in .csv, .jsonl, .ndjson or .parquet, got ",
                path.string());
  }
}

}  // namespace kinora::data
