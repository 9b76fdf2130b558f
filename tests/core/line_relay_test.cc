#include "kinora/core/line_relay.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <string>

namespace kinora {
namespace line_relay_test {

/// A file that exists only while it is open, and a sink that writes to it.
class Target {
 public:
  Target() : file_(std::tmpfile()), sink_(::fileno(file_)) {}
  ~Target() { std::fclose(file_); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  OutputSink* sink() { return &sink_; }

  [[nodiscard]] std::string text() const {
    const auto size = static_cast<size_t>(::lseek(::fileno(file_), 0, SEEK_END));
    std::string text(size, '\0');
    EXPECT_EQ(::pread(::fileno(file_), text.data(), size, 0), static_cast<ssize_t>(size));
    return text;
  }

 private:
  std::FILE* file_;
  OutputSink sink_;
};

TEST(LineRelayTest, PrefixesWholeLinesWhateverThePieces) {
  Target target;
  LineRelay relay("[rank 3] ", target.sink());
  relay.feed("on");
  EXPECT_EQ(target.text(), "");
  relay.feed("e\ntwo\n\nth");
  EXPECT_EQ(target.text(), "[rank 3] one\n[rank 3] two\n[rank 3] \n");
  relay.feed("ree");
  relay.finish();
  EXPECT_EQ(target.text(), "[rank 3] one\n[rank 3] two\n[rank 3] \n[rank 3] three\n");
}

TEST(LineRelayTest, LinesOfTwoDoNotMix) {
  Target target;
  LineRelay first("", target.sink());
  LineRelay second("[rank 1] ", target.sink());
  first.feed("a");
  second.feed("b");
  first.feed("a\n");
  second.feed("b\n");
  EXPECT_EQ(target.text(), "aa\n[rank 1] bb\n");
}

TEST(LineRelayTest, WithoutPrefixNotAByteChanges) {
  Target target;
  LineRelay relay("", target.sink());
  const std::string bytes = std::string("\0\r\x1b[K\n\n\xff", 8) + std::string(3000000, 'x');
  relay.feed(bytes);
  relay.finish();
  EXPECT_EQ(target.text(), bytes);
}

TEST(LineRelayTest, ALineIsEndedBeforeAnothersAtTheEnd) {
  Target target;
  LineRelay first("", target.sink());
  LineRelay second("[rank 1] ", target.sink());
  first.feed("no end");
  first.finish();
  second.feed("next\n");
  EXPECT_EQ(target.text(), "no end\n[rank 1] next\n");
}

TEST(LineRelayTest, OnATerminalAProgressBarGivesWay) {
  int master = -1;
  int slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  OutputSink sink(slave);
  LineRelay first("", &sink);
  LineRelay second("[rank 1] ", &sink);
  first.feed("12 %");
  second.feed("line\n");
  std::string seen;
  const std::string expected = "12 %\r\x1b[K[rank 1] line\r\n";
  while (seen.size() < expected.size()) {
    std::array<char, 100> bytes;
    const ssize_t size = ::read(master, bytes.data(), bytes.size());
    ASSERT_GT(size, 0);
    seen.append(bytes.data(), static_cast<size_t>(size));
  }
  EXPECT_EQ(seen, expected);
  ::close(slave);
  ::close(master);
}

TEST(LineRelayTest, AnEndlessLineLeavesInPieces) {
  Target target;
  LineRelay relay("> ", target.sink());
  const std::string piece(size_t{1} << 20, 'x');
  relay.feed(piece);
  relay.feed("y\n");
  EXPECT_EQ(target.text(), "> " + piece + "\n> y\n");
}

TEST(LineRelayTest, RemembersTheLastLinesAsSeen) {
  Target target;
  LineRelay relay("", target.sink());
  for (int i = 0; i < 30; ++i) {
    relay.feed("line " + std::to_string(i) + "\n \n");
  }
  relay.feed("\r\x1b[K10 %\r\x1b[K\x1b[31mred\x1b[0m\r\n");
  relay.feed(std::string(5000, 'x') + "\n");
  relay.feed(std::string(5000, 'y') + "\rlast");
  relay.finish();
  const std::string lines = relay.last_lines();
  EXPECT_EQ(lines.find("line 12"), std::string::npos);
  EXPECT_EQ(lines.substr(0, 16), "line 13\nline 14\n");
  EXPECT_NE(lines.find("\nline 29\nred\n" + std::string(1000, 'x') + "\nlast"), std::string::npos);
}

TEST(LineRelayTest, AReaderThatHasGoneIsNoError) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  OutputSink sink(ends[1]);
  LineRelay relay("> ", &sink);
  relay.feed("one\ntwo\n");
  relay.finish();
  EXPECT_EQ(relay.last_lines(), "one\ntwo");
  std::signal(SIGPIPE, previous);
  ::close(ends[1]);
}

}  // namespace line_relay_test
}  // namespace kinora
