#include "kinora/core/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "kinora/core/text.h"
#include "tests/core/terminal_screen.h"

namespace kinora {
namespace progress_test {

using testing::HasSubstr;
using testing::Not;

/// A progress on a screen of some width, whose time the test sets.
class ProgressTest : public testing::Test {
 protected:
  void start(int columns, int64_t total, int64_t first = 0) {
    screen_.emplace(columns);
    progress_.emplace(
        total, "steps", first,
        ProgressOptions{.console = &screen_->console(), .clock = [this] { return time_; }});
  }

  void update_at(double time, double done, std::string_view suffix = {}) {
    time_ = time;
    progress_->update(done, suffix);
  }

  /// The lines printed so far, without the empty one after the last line feed.
  [[nodiscard]] Lines lines() const {
    Lines lines = screen_->lines();
    if (lines.back().empty()) {
      lines.pop_back();
    }
    return lines;
  }

  double time_ = 1000.0;
  std::optional<TerminalScreen> screen_;
  std::optional<Progress> progress_;
};

TEST_F(ProgressTest, PlainOutputHasFirstLastAndOneLineAnInterval) {
  start(0, 100);
  for (int step = 1; step <= 100; ++step) {
    update_at(1000.0 + step * 0.5, step, "loss 0.5");
  }
  progress_->finish();
  progress_->finish();
  const Lines got = lines();
  ASSERT_EQ(got.size(), 6U);  // after 0.5 s, 10.5 s, 20.5 s, 30.5 s, 40.5 s, and the end
  EXPECT_THAT(got[0], HasSubstr("1/100 steps"));
  EXPECT_THAT(got[1], HasSubstr("21% "));
  EXPECT_THAT(got[1], HasSubstr("21/100 steps  2.00 steps/s  ETA 40 s  loss 0.5"));
  EXPECT_EQ(got[5], "100/100 steps in 50 s  2.00 steps/s  loss 0.5");
  EXPECT_THAT(screen_->raw(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(screen_->raw(), Not(HasSubstr("\r")));
}

TEST_F(ProgressTest, TheEndCanMove) {
  start(0, 100);
  update_at(0, 1);
  progress_->set_total(50);
  update_at(20, 25);
  EXPECT_THAT(lines().back(), HasSubstr("25/50 steps"));
}

TEST_F(ProgressTest, CompleteWorkIsNotPrintedTwice) {
  start(0, 2);
  update_at(1001.0, 1);
  update_at(1100.0, 2);  // an interval has passed, but finish says the same
  progress_->finish();
  EXPECT_EQ(lines().size(), 2U);
}

TEST_F(ProgressTest, DestructionFinishes) {
  start(0, 100);
  update_at(1002.0, 1);
  progress_.reset();
  EXPECT_EQ(lines().back(), "1/100 steps in 2.0 s  0.500 steps/s");
}

TEST_F(ProgressTest, NothingIsPrintedIfNothingWasDone) {
  start(0, 100);
  progress_.reset();
  EXPECT_EQ(screen_->raw(), "");
}

TEST_F(ProgressTest, RateLeavesOutTheFirstThreeUpdates) {
  start(0, 1000);
  update_at(1100.0, 1);  // compiles for 100 s
  update_at(1150.0, 2);
  update_at(1200.0, 3);
  update_at(1201.0, 4);
  update_at(1220.0, 23);
  EXPECT_THAT(lines().back(), HasSubstr("23/1000 steps  1.00 steps/s  ETA 16m 17s"));
}

TEST_F(ProgressTest, RateComesFromTheLastMinute) {
  start(0, 100000);
  double time = 1000.0;
  int64_t done = 0;
  for (; time < 1300.0; time += 1.0) {
    update_at(time, done += 10);
  }
  for (; time < 1400.0; time += 1.0) {
    update_at(time, done += 5);
  }
  EXPECT_THAT(lines().back(), HasSubstr("5.00 steps/s"));
}

TEST_F(ProgressTest, SlowUpdatesStillHaveARate) {
  start(0, 100);
  for (int step = 1; step <= 20; ++step) {
    update_at(1000.0 + step * 120.0, step);
  }
  EXPECT_THAT(lines().back(), HasSubstr("0.00833 steps/s  ETA 2h 40m"));
}

TEST_F(ProgressTest, VeryFastUpdatesKeepTheWindowRight) {
  start(0, 10000000);
  for (int64_t i = 1; i <= 1000000; ++i) {
    update_at(1000.0 + static_cast<double>(i) * 1e-4, i);
  }
  EXPECT_THAT(lines().back(), HasSubstr(" 10000 steps/s"));
}

TEST_F(ProgressTest, ResumedWorkCountsItsOwnSteps) {
  start(0, 100, 50);
  for (int step = 51; step <= 100; ++step) {
    update_at(1000.0 + (step - 50) * 1.0, step);
  }
  progress_->finish();
  EXPECT_THAT(lines().front(), HasSubstr("51% "));
  EXPECT_EQ(lines().back(), "100/100 steps in 50 s  1.00 steps/s");
}

// Where one unit takes long, the bar, the rate and the end that they foretell move within it.
TEST_F(ProgressTest, FractionsOfAUnitCount) {
  start(0, 2);
  for (int step = 1; step <= 14; ++step) {
    update_at(1000.0 + step, step / 20.0, "step " + std::to_string(step));
  }
  EXPECT_THAT(lines().back(), HasSubstr(" 27%"));
  EXPECT_THAT(lines().back(), HasSubstr("0/2 steps  0.0500 steps/s  ETA 29 s  step 11"));
  update_at(1020.0, 0.1 + 0.2 + 0.7 - 1e-12);
  progress_->finish();
  EXPECT_EQ(lines().back(), "1/2 steps in 20 s  0.0500 steps/s");
}

TEST_F(ProgressTest, UnknownTotalHasNoEta) {
  start(0, 0);
  for (int step = 1; step <= 30; ++step) {
    update_at(1000.0 + step, step);
  }
  EXPECT_EQ(lines().back(), "21 steps  1.00 steps/s");
}

TEST_F(ProgressTest, TerminalRedrawsOneLine) {
  start(80, 200);
  for (int step = 1; step <= 100; ++step) {
    update_at(1000.0 + step, step, "loss 0.5");
  }
  ASSERT_EQ(screen_->lines().size(), 1U);
  const std::string bar = screen_->lines()[0];
  EXPECT_LT(bar.size(), 80U);
  const auto empty = std::count(bar.begin(), bar.end(), '.') - 2;  // two are decimal points
  EXPECT_NEAR(std::count(bar.begin(), bar.end(), '#'), empty, 1);
  EXPECT_THAT(bar, HasSubstr(" 50% [###"));
  EXPECT_THAT(bar, HasSubstr("100/200 steps  1.00 steps/s  ETA 1m 40s  loss 0.5"));
  screen_->console().print_line("a message");
  EXPECT_EQ(screen_->lines(), (Lines{"a message", bar}));
  progress_->finish();
  EXPECT_EQ(screen_->lines(),
            (Lines{"a message", "100/200 steps in 1m 40s  1.00 steps/s  loss 0.5", ""}));
}

TEST_F(ProgressTest, NarrowTerminalsGetTheTextAlone) {
  start(30, 200);
  for (int step = 1; step <= 100; ++step) {
    update_at(1000.0 + step, step, "loss 0.5");
  }
  ASSERT_EQ(screen_->lines().size(), 1U);
  EXPECT_EQ(screen_->lines()[0].size(), 29U);
  EXPECT_THAT(screen_->lines()[0], HasSubstr(" 50%  100/200 steps"));
}

TEST_F(ProgressTest, TerminalRedrawsAtMostTenTimesASecond) {
  start(80, 100000);
  for (int step = 1; step <= 10000; ++step) {
    update_at(1000.0 + step * 0.001, step);
  }
  const auto redraws = std::count(screen_->raw().begin(), screen_->raw().end(), '\r');
  EXPECT_GE(redraws, 90);
  EXPECT_LE(redraws, 101);
}

}  // namespace progress_test
}  // namespace kinora
