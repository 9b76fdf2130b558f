#include "kinora/io/csv.h"

#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/error_of.h"

namespace kinora::io {
namespace csv_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Row = std::vector<std::string>;

std::vector<Row> rows(std::string_view text) {
  CsvReader reader(text, "a.csv");
  std::vector<Row> all;
  for (Row row; reader.next(row);) {
    all.push_back(row);
  }
  return all;
}

// The examples of RFC 4180, section 2.
TEST(CsvTest, RowsOfTheStandard) {
  EXPECT_THAT(rows("aaa,bbb,ccc\r\nzzz,yyy,xxx\r\n"),
              ElementsAre(Row{"aaa", "bbb", "ccc"}, Row{"zzz", "yyy", "xxx"}));
  EXPECT_THAT(rows("aaa,bbb,ccc\r\nzzz,yyy,xxx"),
              ElementsAre(Row{"aaa", "bbb", "ccc"}, Row{"zzz", "yyy", "xxx"}));
  EXPECT_THAT(rows("\"aaa\",\"b \r\nbb\",\"ccc\"\r\nzzz,yyy,xxx"),
              ElementsAre(Row{"aaa", "b \r\nbb", "ccc"}, Row{"zzz", "yyy", "xxx"}));
  EXPECT_THAT(rows("\"aaa\",\"b\"\"bb\",\"ccc\""), ElementsAre(Row{"aaa", "b\"bb", "ccc"}));
}

TEST(CsvTest, LineEndsOfEverySystemAndAByteOrderMark) {
  EXPECT_THAT(rows("\xef\xbb\xbf"
                   "a,b\nc,d\re,f\r\n\r\n\ng,h"),
              ElementsAre(Row{"a", "b"}, Row{"c", "d"}, Row{"e", "f"}, Row{"g", "h"}));
  EXPECT_THAT(rows(""), IsEmpty());
  EXPECT_THAT(rows("\n\r\n"), IsEmpty());
}

TEST(CsvTest, EmptyFieldsAndSpacesStay) {
  EXPECT_THAT(rows(",\n a , b \n\"\",x,\n"),
              ElementsAre(Row{"", ""}, Row{" a ", " b "}, Row{"", "x", ""}));
  EXPECT_THAT(rows("a 5\" disk,b\n"), ElementsAre(Row{"a 5\" disk", "b"}));
}

TEST(CsvTest, LinesAreCountedInsideQuotesToo) {
  CsvReader reader("a,\"1\n2\n3\"\r\nb,c\n\nd,e", "a.csv");
  Row row;
  std::vector<int64_t> lines;
  while (reader.next(row)) {
    lines.push_back(reader.line());
  }
  EXPECT_THAT(lines, ElementsAre(1, 4, 6));
}

TEST(CsvTest, BrokenRowsAreNamed) {
  EXPECT_THAT(error_of(ErrorKind::kIo, [] { return rows("a,b\nc,\"d\ne"); }),
              AllOf(HasSubstr("a.csv:2"), HasSubstr("must end with a quote")));
  EXPECT_THAT(error_of(ErrorKind::kIo, [] { return rows("a,\"b\" c\n"); }),
              AllOf(HasSubstr("a.csv:1"), HasSubstr("after a closing quote")));
  EXPECT_THAT(error_of(ErrorKind::kIo, [] { return rows(std::string_view("a\n\0b\n", 5)); }),
              AllOf(HasSubstr("a.csv:2"), HasSubstr("a zero byte")));
}

}  // namespace csv_test
}  // namespace kinora::io
