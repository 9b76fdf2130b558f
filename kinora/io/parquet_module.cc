// The module kinora_parquet.so: reads Parquet files with Arrow C++.

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/schema.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kinora/core/module_file.h"
#include "kinora/io/parquet_table.h"

struct KinoraParquetReader {
  std::unique_ptr<parquet::arrow::FileReader> file;
  std::vector<int> leaves;         // of the columns with one value a row
  std::vector<std::string> names;  // of these
  std::vector<int> selected;       // leaves
  std::vector<int> places;         // of the selected ones in a batch
  std::unique_ptr<arrow::RecordBatchReader> batches;
  std::shared_ptr<arrow::RecordBatch> batch;
  std::string text;
};

namespace {

constexpr int64_t kBatchRows = 4096;

void set_error(const std::string& why, char* error, size_t error_size) {
  const size_t size = std::min(why.size(), error_size - 1);
  std::copy_n(why.data(), size, error);
  error[size] = '\0';
}

// Runs `call`, which gives a Status. Nothing is thrown out of the module.
template <typename Call>
bool succeeds(char* error, size_t error_size, const Call& call) {
  try {
    const arrow::Status status = call();
    if (!status.ok()) {
      set_error(status.ToString(), error, error_size);
    }
    return status.ok();
  } catch (const std::exception& exception) {
    set_error(exception.what(), error, error_size);
  } catch (...) {
    set_error("an unknown error", error, error_size);
  }
  return false;
}

KinoraParquetReader* open(const char* path, char* error, size_t error_size) {
  auto reader = std::make_unique<KinoraParquetReader>();
  const bool is_open = succeeds(error, error_size, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path));
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(file));
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(kBatchRows);
    builder.properties(properties);
    ARROW_RETURN_NOT_OK(builder.Build(&reader->file));
    const auto* schema = reader->file->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < schema->num_columns(); ++leaf) {
      const auto* column = schema->Column(leaf);
      const bool is_flat =
          column->path()->ToDotVector().size() == 1 && column->max_repetition_level() == 0;
      if (is_flat) {
        reader->leaves.push_back(leaf);
        reader->names.push_back(column->name());
      }
    }
    return arrow::Status::OK();
  });
  return is_open ? reader.release() : nullptr;
}

void close(KinoraParquetReader* reader) {
  delete reader;
}

int64_t num_columns(const KinoraParquetReader* reader) {
  return static_cast<int64_t>(reader->names.size());
}

const char* column_name(const KinoraParquetReader* reader, int64_t column) {
  return reader->names[static_cast<size_t>(column)].c_str();
}

void select(KinoraParquetReader* reader, const int64_t* columns, int64_t count) {
  std::vector<int> leaves;
  for (int64_t i = 0; i < count; ++i) {
    leaves.push_back(reader->leaves[static_cast<size_t>(columns[i])]);
  }
  // Batches have the columns in the order of the file, each once.
  std::vector<int>& selected = reader->selected;
  selected = leaves;
  std::sort(selected.begin(), selected.end());
  selected.erase(std::unique(selected.begin(), selected.end()), selected.end());
  for (const int leaf : leaves) {
    const auto place = std::lower_bound(selected.begin(), selected.end(), leaf);
    reader->places.push_back(static_cast<int>(place - selected.begin()));
  }
}

int64_t next(KinoraParquetReader* reader, char* error, size_t error_size) {
  const bool is_read = succeeds(error, error_size, [&]() -> arrow::Status {
    if (reader->batches == nullptr) {
      std::vector<int> groups(static_cast<size_t>(reader->file->num_row_groups()));
      std::iota(groups.begin(), groups.end(), 0);
      ARROW_ASSIGN_OR_RAISE(reader->batches,
                            reader->file->GetRecordBatchReader(groups, reader->selected));
    }
    do {
      ARROW_RETURN_NOT_OK(reader->batches->ReadNext(&reader->batch));
    } while (reader->batch != nullptr && reader->batch->num_rows() == 0);
    // Lengths and offsets come from the file.
    return reader->batch != nullptr ? reader->batch->ValidateFull() : arrow::Status::OK();
  });
  if (!is_read) {
    reader->batch = nullptr;
    return -1;
  }
  return reader->batch != nullptr ? reader->batch->num_rows() : 0;
}

const char* value(KinoraParquetReader* reader, int64_t column, int64_t row, size_t* size) {
  try {
    const auto& array = *reader->batch->column(reader->places[static_cast<size_t>(column)]);
    if (array.IsNull(row)) {
      return nullptr;
    }
    std::shared_ptr<arrow::Scalar> scalar = array.GetScalar(row).ValueOrDie();
    if (scalar->type->id() == arrow::Type::DICTIONARY) {
      scalar = static_cast<const arrow::DictionaryScalar&>(*scalar).GetEncodedValue().ValueOrDie();
    }
    reader->text = scalar->ToString();
    if (arrow::is_base_binary_like(scalar->type->id())) {
      reader->text = static_cast<const arrow::BaseBinaryScalar&>(*scalar).value->ToString();
    }
  } catch (const std::exception&) {
    return nullptr;
  }
  *size = reader->text.size();
  return reader->text.c_str();
}

constexpr KinoraParquetTable kTable = {.open = open,
                                       .close = close,
                                       .num_columns = num_columns,
                                       .column_name = column_name,
                                       .select = select,
                                       .next = next,
                                       .value = value};

}  // namespace

extern "C" KINORA_MODULE_EXPORT const KinoraParquetTable* kinora_parquet_1() {
  return &kTable;
}
