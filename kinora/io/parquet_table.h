#pragma once

#include <cstddef>
#include <cstdint>

/// What the module kinora_parquet.so offers (core/module_file.h): version 1.
extern "C" {

/// An open file; not for several threads at once.
struct KinoraParquetReader;

/// Functions that can fail write why to `error`, `error_size` bytes with a zero at the end.
struct KinoraParquetTable {
  /// Null: failed.
  KinoraParquetReader* (*open)(const char* path, char* error, size_t error_size);
  void (*close)(KinoraParquetReader* reader);
  /// Columns that hold one value a row; those inside lists and structures are left out.
  int64_t (*num_columns)(const KinoraParquetReader* reader);
  const char* (*column_name)(const KinoraParquetReader* reader, int64_t column);
  /// The columns that next() reads; once, before it.
  void (*select)(KinoraParquetReader* reader, const int64_t* columns, int64_t count);
  /// Reads further rows: how many; 0: there are no more; -1: failed.
  int64_t (*next)(KinoraParquetReader* reader, char* error, size_t error_size);
  /// The value in `row` of those rows, of the `column`-th selected column, as text that lives until
  /// the next call; null: there is none.
  const char* (*value)(KinoraParquetReader* reader, int64_t column, int64_t row, size_t* size);
};
}
