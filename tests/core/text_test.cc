#include "kinora/core/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace kinora {
namespace text_test {

TEST(TextTest, BytesHaveBinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(1610612736), "1.5 GiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1 MiB");
  EXPECT_EQ(human_bytes(int64_t{80} << 30), "80 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::max()), "8 EiB");
  EXPECT_EQ(human_bytes(-2048), "-2 KiB");
}

TEST(TextTest, NumbersHaveTheirDigits) {
  EXPECT_EQ(human_number(0.012345, 3), "0.0123");
  EXPECT_EQ(human_number(1234567.0, 4), "1.235e+06");
  EXPECT_EQ(human_number(1.5, 4), "1.5");
}

TEST(TextTest, DurationsReadAlike) {
  EXPECT_EQ(human_duration(0.25), "0.25 s");
  EXPECT_EQ(human_duration(0.999), "1.0 s");
  EXPECT_EQ(human_duration(9.9499), "9.9 s");
  EXPECT_EQ(human_duration(9.96), "10 s");
  EXPECT_EQ(human_duration(59.4), "59 s");
  EXPECT_EQ(human_duration(59.6), "1m 00s");
  EXPECT_EQ(human_duration(185), "3m 05s");
  EXPECT_EQ(human_duration(3720), "1h 02m");
  EXPECT_EQ(human_duration(2 * 86400 + 3 * 3600), "2d 03h");
  EXPECT_EQ(human_duration(-1), "?");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(TextTest, CountsAndRatesStayShort) {
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(12345), "12.3k");
  EXPECT_EQ(human_count(999999), "1M");
  EXPECT_EQ(human_count(675129632), "675M");
  EXPECT_EQ(human_count(33000000), "33M");
  EXPECT_EQ(human_count(-1500), "-1.5k");
  EXPECT_EQ(human_rate(318.4), "318");
  EXPECT_EQ(human_rate(4.268), "4.27");
  EXPECT_EQ(human_rate(0.03123), "0.0312");
  EXPECT_EQ(human_rate(1e308), "1e+308");  // and not 309 digits
  EXPECT_EQ(human_rate(0.0), "0");
  EXPECT_EQ(human_rate(1234567.0), "1234567");
}

TEST(TextTest, SplitKeepsEmptyPieces) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(split("a.b.c", '.'), (Pieces{"a", "b", "c"}));
  EXPECT_EQ(split("", '.'), (Pieces{""}));
  EXPECT_EQ(split(".a.", '.'), (Pieces{"", "a", ""}));
}

TEST(TextTest, TrimCutsBothSides) {
  EXPECT_EQ(trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(trim(""), "");
}

// Examples from the literature on the restricted distance: CA to ABC is 3, not 2.
TEST(TextTest, EditDistanceCountsSwapsOnce) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("saturday", "sunday"), 3);
  EXPECT_EQ(edit_distance("CA", "ABC"), 3);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(TextTest, WrapBreaksAtSpaces) {
  EXPECT_EQ(wrap("aa bb cc", 7, 2), "  aa bb\n  cc\n");
  EXPECT_EQ(wrap("aa bb cc", 6, 2), "  aa\n  bb\n  cc\n");
  EXPECT_EQ(wrap("averylongword b", 5, 0), "averylongword\nb\n");
}

TEST(TextTest, Utf8IsChecked) {
  EXPECT_TRUE(is_utf8("plain"));
  EXPECT_TRUE(is_utf8("\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"));
  EXPECT_TRUE(is_utf8("\xf4\x8f\xbf\xbf"));   // U+10FFFF
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80"));  // U+110000
  EXPECT_FALSE(is_utf8("\xc0\x80"));          // overlong NUL
  EXPECT_FALSE(is_utf8("\xc1\xbf"));          // overlong
  EXPECT_FALSE(is_utf8("\xe0\x9f\xbf"));      // overlong
  EXPECT_FALSE(is_utf8("\xf0\x8f\xbf\xbf"));  // overlong
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xe4\xb8"));          // cut off
  EXPECT_FALSE(is_utf8("\x80"));              // no lead
  EXPECT_FALSE(is_utf8("\xff\xfe"));
}

TEST(TextTest, QuoteStaysOnOneLine) {
  EXPECT_EQ(quote("a\"b\\c\nd\te\x01"), R"("a\"b\\c\nd\te\x01")");
  EXPECT_EQ(quote("\xc3\xa9"), "\"\xc3\xa9\"");
}

TEST(TextTest, ListsNamesUpToALimit) {
  EXPECT_EQ(list_names({}, 3), "");
  EXPECT_EQ(list_names({"a"}, 3), "a");
  EXPECT_EQ(list_names({"a", "b", "c"}, 3), "a, b, c");
  EXPECT_EQ(list_names({"a", "b", "c", "d", "e"}, 3), "a, b, c, and 2 more");
}

}  // namespace text_test
}  // namespace kinora
