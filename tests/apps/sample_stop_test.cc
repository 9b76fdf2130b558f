// kinora sample that is stopped, and goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "tests/apps/clips.h"
#include "tests/apps/program.h"

namespace kinora::apps {
namespace sample_stop_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class SampleStopTest : public RunTest {
 protected:
  void SetUp() override { train_well(run_dir("run"), {"lr.value=1e-2", "ema.decays=[0.1]"}); }

  [[nodiscard]] Arguments command(const std::string& out, const Arguments& more = {}) const {
    return joined({"sample", "--run", run_dir("run").string(), "--out", (folder() / out).string(),
                   "--threads", "1", "--device", "cpu"},
                  more);
  }
  [[nodiscard]] Outcome sample(const std::string& out, const Arguments& more = {}) const {
    return run_kinora(command(out, more), folder());
  }

  [[nodiscard]] int64_t num_samples(const std::string& out) const {
    int64_t count = 0;
    if (fs::exists(folder() / out)) {
      for (const auto& entry : fs::directory_iterator(folder() / out)) {
        const std::string name = entry.path().filename().string();
        count += name.starts_with("image-") && name.ends_with(".png") ? 1 : 0;
      }
    }
    return count;
  }

  /// Sends `signal` once there are samples.
  Outcome stopped(const std::string& out, const Arguments& more, int signal) const {
    Program program(command(out, more), folder());
    while (program.is_running() && num_samples(out) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    program.send(signal);
    return program.wait();
  }

  /// The same files with the same pictures.
  void expect_same(const std::string& left, const std::string& right) const {
    EXPECT_EQ(num_samples(left), num_samples(right));
    for (const auto& entry : fs::directory_iterator(folder() / left)) {
      if (entry.is_regular_file()) {
        const fs::path other = folder() / right / entry.path().filename();
        ASSERT_TRUE(fs::exists(other)) << other;
        EXPECT_TRUE(read_picture_bytes(entry.path()) == read_picture_bytes(other)) << other;
      }
    }
  }
};

// Long enough that a signal comes before the end.
const Arguments kLong = {"--count", "12", "--batch", "2", "--steps", "100"};

TEST_F(SampleStopTest, AKilledDrawingGoesOnWithTheSameBits) {
  ASSERT_EQ(sample("whole", joined(kLong, {"--judge"})).exit_code, 0);
  const Outcome killed = stopped("parts", joined(kLong, {"--judge"}), SIGKILL);
  EXPECT_EQ(killed.signal, SIGKILL);
  const int64_t before = num_samples("parts");
  EXPECT_GE(before, 1);
  EXPECT_LT(before, 12);
  EXPECT_FALSE(fs::exists(folder() / "parts/grid.png"));
  for (const auto& entry : fs::directory_iterator(folder() / "parts")) {
    if (entry.path().extension() == ".png") {
      (void)io::decode_image(io::read_file(entry.path(), 1 << 20), entry.path().string());
    }
  }
  const Outcome rest = sample("parts", joined(kLong, {"--judge"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr(std::to_string(before) + " of 12 are there already, drawing " +
                                  std::to_string(12 - before)));
  EXPECT_THAT(rest.out, HasSubstr("/12 right\n"));
  expect_same("whole", "parts");

  const Outcome again = sample("parts", kLong);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("12 of 12 are there already, drawing 0"));
}

TEST_F(SampleStopTest, ASignalEndsItWithinABatchAndSaysHowToGoOn) {
  const Arguments two_ranks = joined(kLong, {"--ranks", "2"});
  for (const auto& [name, arguments] :
       std::map<std::string, Arguments>{{"alone", kLong}, {"ranks", two_ranks}}) {
    const std::string parts = name + "-parts";
    const std::string whole = name + "-whole";
    const Outcome outcome = stopped(parts, arguments, SIGTERM);
    const int64_t before = num_samples(parts);
    EXPECT_LT(before, 12);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("stopped by SIGTERM: " + std::to_string(before) + " of 12 samples"),
                      HasSubstr("the same command goes on")));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    ASSERT_EQ(sample(parts, arguments).exit_code, 0);
    ASSERT_EQ(sample(whole, arguments).exit_code, 0);
    expect_same(whole, parts);
  }
}

// Two ranks that share each sample: neither waits for a step that the other does not take.
TEST_F(SampleStopTest, RanksOfAGroupStopTogether) {
  const Outcome outcome =
      stopped("parts", joined(kLong, {"--ranks", "2", "--guidance-ranks", "2"}), SIGTERM);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stopped by SIGTERM: "));
}

TEST_F(SampleStopTest, ALargerCountGoesOn) {
  const auto of = [](const char* count) {
    return Arguments{"--count", count, "--batch", "2", "--steps", "2"};
  };
  ASSERT_EQ(sample("grown", of("4")).exit_code, 0);
  const Outcome grown = sample("grown", of("7"));
  EXPECT_EQ(grown.exit_code, 0) << grown.err;
  EXPECT_THAT(grown.err, HasSubstr("4 of 7 are there already, drawing 3"));
  ASSERT_EQ(sample("whole", of("7")).exit_code, 0);
  expect_same("whole", "grown");
  const Outcome fewer = sample("grown", of("4"));
  EXPECT_EQ(fewer.exit_code, kUsage);
  EXPECT_THAT(fewer.err, HasSubstr("count was 7 and is now 4"));
}

TEST_F(SampleStopTest, AnotherDrawingIsRefusedUnlessItMayOverwrite) {
  const Arguments three = {"--count", "3", "--steps", "2"};
  ASSERT_EQ(sample("out", three).exit_code, 0);
  write_text(folder() / "out/notes.txt", "mine");
  const Outcome seed = sample("out", joined(three, {"--seed", "4"}));
  EXPECT_EQ(seed.exit_code, kUsage);
  EXPECT_THAT(seed.err, AllOf(HasSubstr("seed was 0 and is now 4"), HasSubstr("--overwrite")));
  const Outcome weights = sample("out", joined(three, {"--weights", "raw"}));
  EXPECT_EQ(weights.exit_code, kUsage);
  EXPECT_THAT(weights.err, HasSubstr("weights was"));
  const Outcome fewer = sample("out", {"--count", "2", "--steps", "2", "--overwrite"});
  EXPECT_EQ(fewer.exit_code, 0) << fewer.err;
  EXPECT_EQ(num_samples("out"), 2);
  EXPECT_EQ(read_text(folder() / "out/notes.txt"), "mine");
}

TEST_F(SampleStopTest, WhereNothingCanBeWrittenIsSaidFirst) {
  write_text(folder() / "file", "not a folder");
  const Outcome outcome = run_kinora(
      {"sample", "--run", "nowhere", "--out", (folder() / "file/out").string()}, folder());
  EXPECT_EQ(outcome.exit_code, kIo);
  EXPECT_THAT(outcome.err, HasSubstr("cannot make the folder"));
}

}  // namespace sample_stop_test
}  // namespace kinora::apps
