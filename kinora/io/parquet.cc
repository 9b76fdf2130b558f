#include "kinora/io/parquet.h"

#include <array>

#include "kinora/core/error.h"
#include "kinora/core/module_file.h"
#include "kinora/io/parquet_table.h"

namespace kinora::io {
namespace {

const ModuleInfo& module_info() {
  static const ModuleInfo kInfo = {.name = "parquet",
                                   .version = 1,
                                   .what = "Parquet",
                                   .needed_for = "reads .parquet files",
                                   .how_to_have =
                                       "scripts/setup.sh --parquet, then build again; or turn the "
                                       "file into CSV or JSON Lines"};
  return kInfo;
}

}  // namespace

ParquetFile::ParquetFile(const std::filesystem::path& path)
    : path_(path.string()), table_(load_module<KinoraParquetTable>(module_info())) {
  std::array<char, 512> error = {};
  reader_ = table_.open(path_.c_str(), error.data(), error.size());
  KINORA_CHECK(reader_ != nullptr, kIo, "[parquet] ", path_, " cannot be read: ", error.data());
  for (int64_t i = 0; i < table_.num_columns(reader_); ++i) {
    names_.emplace_back(table_.column_name(reader_, i));
  }
}

ParquetFile::~ParquetFile() {
  table_.close(reader_);
}

void ParquetFile::select(const std::vector<int64_t>& columns) {
  table_.select(reader_, columns.data(), std::ssize(columns));
}

int64_t ParquetFile::next() {
  std::array<char, 512> error = {};
  const int64_t count = table_.next(reader_, error.data(), error.size());
  KINORA_CHECK(count >= 0, kIo, "[parquet] ", path_, " must be whole, got: ", error.data());
  return count;
}

std::optional<std::string_view> ParquetFile::value(int64_t column, int64_t row) {
  size_t size = 0;
  const char* text = table_.value(reader_, column, row, &size);
  return text != nullptr ? std::optional(std::string_view(text, size)) : std::nullopt;
}

bool has_parquet() {
  return has_module(module_info());
}

}  // namespace kinora::io
