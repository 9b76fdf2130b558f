// tests/io/data/table.parquet was written by pyarrow (tools/make_parquet_fixtures.py).

#include "kinora/io/parquet.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kinora/io/file.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::io {
namespace parquet_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kTable = source_path("tests/io/data/table.parquet");

class ParquetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_parquet()) {
      GTEST_SKIP() << "no module kinora_parquet.so";
    }
  }
};

// One text a row, "-" for null.
std::vector<std::string> column(const fs::path& path, const std::vector<int64_t>& columns,
                                int64_t which) {
  ParquetFile file(path);
  file.select(columns);
  std::vector<std::string> values;
  for (int64_t count = file.next(); count > 0; count = file.next()) {
    for (int64_t row = 0; row < count; ++row) {
      values.emplace_back(file.value(which, row).value_or("-"));
    }
  }
  return values;
}

TEST_F(ParquetTest, ColumnsWithOneValueARow) {
  EXPECT_THAT(ParquetFile(kTable).column_names(),
              ElementsAre("path", "text", "num_frames", "fps", "label"));
}

TEST_F(ParquetTest, ValuesInTheOrderAskedFor) {
  const std::vector<int64_t> all = {4, 1, 2, 3, 0};
  EXPECT_THAT(column(kTable, all, 0), ElementsAre("dog", "cat", "dog", "dog", "cat"));
  EXPECT_THAT(column(kTable, all, 1), ElementsAre("a cat", "b, \"c\"", "-", "",
                                                  "nach S\xc3\xbc"
                                                  "den"));
  EXPECT_THAT(column(kTable, all, 2), ElementsAre("1", "-", "3", "4", "51"));
  EXPECT_THAT(column(kTable, all, 3), ElementsAre("24", "29.97", "-", "8", "30"));
  EXPECT_THAT(column(kTable, {0}, 0),
              ElementsAre("p/0.png", "p/1.png", "p/2.png", "p/3.png", "p/4.png"));
}

TEST_F(ParquetTest, OtherFilesAreRefused) {
  EXPECT_THAT(error_of(ErrorKind::kIo, [] { const ParquetFile file("/nowhere/a.parquet"); }),
              HasSubstr("a.parquet"));
  EXPECT_THAT(error_of(ErrorKind::kIo, [] { const ParquetFile file(__FILE__); }),
              HasSubstr("parquet_test.cc"));
}

// Any byte changed, or the end cut off: an error or some values, never a crash.
TEST_F(ParquetTest, DamageNeverCrashes) {
  const std::vector<std::byte> good = read_file(kTable, 1 << 20);
  const fs::path path =
      fs::temp_directory_path() / ("kinora-" + std::to_string(::getpid()) + ".parquet");
  int64_t num_refused = 0;
  const auto attempt = [&](std::span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    try {
      (void)column(path, {0, 1}, 1);
    } catch (const Error&) {
      ++num_refused;
    }
  };
  for (size_t at = 0; at < good.size(); at += 17) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x41};
    attempt(bad);
    attempt(std::span(good).first(at));
  }
  fs::remove(path);
  EXPECT_GT(num_refused, std::ssize(good) / 17);
}

}  // namespace parquet_test
}  // namespace kinora::io
