#include "kinora/core/console.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <vector>

#include "kinora/core/text.h"
#include "tests/core/terminal_screen.h"

namespace kinora {
namespace console_test {

TEST(ConsoleTest, LinesScrollAboveTheStatus) {
  TerminalScreen screen(40);
  screen.console().set_status("bar 1");
  EXPECT_EQ(screen.lines(), (Lines{"bar 1"}));
  screen.console().print_line("a message longer than the bar");
  EXPECT_EQ(screen.lines(), (Lines{"a message longer than the bar", "bar 1"}));
  screen.console().set_status("b2");
  EXPECT_EQ(screen.lines(), (Lines{"a message longer than the bar", "b2"}));
  screen.console().set_status("");
  screen.console().print_line("end");
  EXPECT_EQ(screen.lines(), (Lines{"a message longer than the bar", "end", ""}));
}

TEST(ConsoleTest, NamesOfFilesDoNotSteerTheTerminal) {
  TerminalScreen screen(0);
  screen.console().print_line("bad\x1b[2J.png");
  EXPECT_EQ(screen.raw(), "bad\\x1b[2J.png\n");
  TerminalScreen terminal(40);
  terminal.console().set_status("\x1b[2J\rbar");
  EXPECT_EQ(terminal.lines(), (Lines{"\\x1b[2J\\x0dbar"}));
}

TEST(ConsoleTest, StatusIsCutToTheTerminal) {
  TerminalScreen screen(10);
  screen.console().set_status("0123456789abcdef");
  EXPECT_EQ(screen.lines(), (Lines{"012345678"}));
}

TEST(ConsoleTest, PlainOutputHasNoControlCharactersAndNoStatus) {
  TerminalScreen screen(0);
  screen.console().set_status("bar");
  screen.console().print_line("message");
  screen.console().set_status("bar 2");
  EXPECT_EQ(screen.raw(), "message\n");
}

TEST(ConsoleTest, LinesOfThreadsStayWhole) {
  TerminalScreen screen(0);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&screen, t] {
      for (int i = 0; i < 200; ++i) {
        screen.console().print_line(std::string(20, static_cast<char>('a' + t)));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const std::string raw = screen.raw();
  const auto lines = split(std::string_view(raw).substr(0, raw.size() - 1), '\n');
  EXPECT_EQ(lines.size(), 800U);
  for (const std::string_view line : lines) {
    EXPECT_EQ(line, std::string(20, line.at(0)));
  }
}

}  // namespace console_test
}  // namespace kinora
