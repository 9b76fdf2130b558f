#include "kinora/core/printable.h"

#include <gtest/gtest.h>

#include <sstream>

#include "kinora/core/counted.h"

namespace kinora {
namespace printable_test {

TEST(PrintableTest, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(printable("a\r\b\x7f"), "a\\x0d\\x08\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");  // U+009B, which begins a sequence too
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");
  EXPECT_EQ(printable("two\n\tlines \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"),
            "two\n\tlines \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80");
  EXPECT_EQ(printable_line("a\nb\t\xc3\xa9"), "a\\x0ab\\x09\xc3\xa9");
}

TEST(PrintableTest, AStreamPassesOnWholeLinesAndTheRestAtItsEnd) {
  std::stringbuf target;
  std::ostream out(&target);
  {
    const PrintableStream stream(out);
    out << "a\x1b" << 7 << '\n' << "\xc3";
    EXPECT_EQ(target.str(), "a\\x1b7\n");
    out << "\xa9";  // the rest of the character
    out.flush();
    EXPECT_EQ(target.str(), "a\\x1b7\n\xc3\xa9");
    out << "end";
  }
  EXPECT_EQ(target.str(),
            "a\\x1b7\n\xc3\xa9"
            "end");
  out << '\x1b';
  EXPECT_EQ(target.str().back(), '\x1b');
}

TEST(CountedTest, OneIsSingular) {
  EXPECT_EQ(counted(1, "sample"), "1 sample");
  EXPECT_EQ(counted(0, "sample"), "0 samples");
  EXPECT_EQ(counted(2, "class", "classes"), "2 classes");
  EXPECT_EQ(counted(1, "class", "classes"), "1 class");
}

}  // namespace printable_test
}  // namespace kinora
