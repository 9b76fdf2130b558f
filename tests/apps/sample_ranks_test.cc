// kinora sample --ranks against one rank, on the CPU through Gloo. Files hold 8 bits a value, so
// that rounding may move it by one; tests/train/sampling_ranks_test.cc compares fp32.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "kinora/core/free_port.h"
#include "tests/apps/clips.h"
#include "tests/apps/program.h"

namespace kinora::apps {
namespace sample_ranks_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SampleRanksTest : public RunTest {
 protected:
  void train_clips(const std::string& architecture, const Arguments& more = {}) const {
    train_well(run_dir("run"),
               joined(joined(kClips, {"model.architecture=" + architecture, "train.steps=8",
                                      "lr.value=1e-2", "ema.decays=[0.1]", "train.global_batch=4",
                                      "train.self_test=false"}),
                      more));
  }

  [[nodiscard]] Arguments command(const std::string& out, const Arguments& more) const {
    return joined({"sample", "--run", run_dir("run").string(), "--out", (folder() / out).string(),
                   "--threads", "1", "--device", "cpu", "--steps", "2"},
                  more);
  }

  Outcome sample(const std::string& out, const Arguments& more) const {
    return run_kinora(command(out, more), folder());
  }

  std::string sample_well(const std::string& out, const Arguments& more) const {
    const Outcome outcome = sample(out, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.err;
  }

  static void expect_same_picture(const io::Image& left, const io::Image& right) {
    EXPECT_LE(difference_of(left, right).most, 1);
    const auto [low, high] = std::minmax_element(left.pixels.begin(), left.pixels.end());
    EXPECT_GT(*high - *low, 100);
  }

  /// The same files with the same pictures, which show something.
  void expect_same(const std::string& left, const std::string& right) const {
    std::set<fs::path> names;
    for (const fs::path& name : files_in(left)) {
      names.insert(name);
    }
    for (const fs::path& name : files_in(right)) {
      EXPECT_EQ(names.count(name), 1U) << name;
    }
    for (const fs::path& name : names) {
      ASSERT_TRUE(fs::exists(folder() / right / name)) << name;
      if (name.extension() == ".png") {
        expect_same_picture(read_image(folder() / left / name),
                            read_image(folder() / right / name));
      }
    }
  }

 private:
  /// Without those that rank by rank say what was judged.
  [[nodiscard]] std::vector<fs::path> files_in(const std::string& name) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder() / name)) {
      const fs::path file = fs::relative(entry.path(), folder() / name);
      if (!file.string().starts_with(".drawing")) {
        files.push_back(file);
      }
    }
    return files;
  }
};

TEST_F(SampleRanksTest, ClipsAreThoseOfOneRank) {
  train_clips("stdit");
  const Arguments captions = {"--captions", "a red circle moving to the left",
                              "a blue cross moving up"};
  const Arguments one = {"--captions", "a red circle moving to the left"};
  sample_well("two", captions);
  sample_well("one", one);

  const std::string fewer = sample_well("by-four", joined(one, {"--ranks", "4"}));
  EXPECT_THAT(fewer, HasSubstr("4 ranks = 1 group x guidance 2 x sequence 2: for 1 sample"));
  EXPECT_THAT(fewer, HasSubstr("sequence parallelism of 2 ranks"));
  expect_same("one", "by-four");
  const std::string as_many = sample_well("by-two", joined(captions, {"--ranks", "2"}));
  EXPECT_THAT(as_many, HasSubstr("2 ranks = 2 groups x guidance 1 x sequence 1: each draws"));
  EXPECT_THAT(as_many, testing::Not(HasSubstr("[rank 1]"))) << "rank 0 speaks for all";
  expect_same("two", "by-two");

  // A reference, more pieces, and the judge, with each way of sharing.
  io::write_png(folder() / "first.png", read_image(folder() / "one/clip-00000/frame_0003.png"));
  const Arguments longer = joined(captions, {"--given", (folder() / "first.png").string(), "--loop",
                                             "2", "--overlap", "1", "--judge"});
  sample_well("long", longer);
  for (const Arguments& ways :
       std::vector<Arguments>{{"--ranks", "2"},
                              {"--ranks", "2", "--guidance-ranks", "2", "--sequence", "1"},
                              {"--ranks", "2", "--sequence", "2", "--sequence-scheme", "dsp"}}) {
    const Outcome outcome = sample("shared", joined(longer, ways));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("judged 0/2 right"));
    expect_same("long", "shared");
    fs::remove_all(folder() / "shared");
  }
}

TEST_F(SampleRanksTest, ImagesOfClassesAreThoseOfOneRank) {
  train_well(run_dir("run"), {"lr.value=1e-2", "ema.decays=[0.1]"});
  sample_well("one", {"--classes", "0,1,2", "--count", "5"});
  sample_well("shared", {"--classes", "0,1,2", "--count", "5", "--ranks", "2", "--batch", "2"});
  expect_same("one", "shared");
  sample_well("tokens", {"--classes", "0,1,2", "--count", "5", "--ranks", "2", "--sequence", "2"});
  expect_same("one", "tokens");
}

TEST_F(SampleRanksTest, ASampleIsDrawnAgainOnAnyRanks) {
  train_clips("stdit");
  const Arguments captions = {"--captions", "a red circle moving to the left",
                              "a blue cross moving up", "--format", "webp"};
  sample_well("one", captions);
  sample_well("two", joined(captions, {"--ranks", "2"}));
  const auto again = [&](const std::string& like, const std::string& out, const Arguments& more) {
    const Outcome outcome =
        run_kinora(joined({"sample", "--like", (folder() / like / "clip-00001.webp").string(),
                           "--out", (folder() / out).string()},
                          more),
                   folder());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("[rank 1]"))) << "rank 0 speaks for all";
    EXPECT_EQ(outcome.err.find("[sample] like "), outcome.err.rfind("[sample] like "));
    EXPECT_FALSE(fs::exists(folder() / out / "clip-00000.webp"));
    expect_same_picture(read_image(folder() / like / "clip-00001.webp"),
                        read_image(folder() / out / "clip-00001.webp"));
  };
  again("one", "one-by-two", {"--ranks", "2"});
  again("two", "two-by-one", {});
}

TEST_F(SampleRanksTest, RanksOfMpirunDrawTogether) {
  if (std::system("mpirun --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no mpirun";
  }
  train_clips("stdit");
  const Arguments one = {"--captions", "a red circle moving to the left"};
  sample_well("one", one);
  const Outcome outcome =
      Program("mpirun",
              joined({"--allow-run-as-root", "--oversubscribe", "-n", "2", "-x",
                      "MASTER_PORT=" + std::to_string(free_port()), kinora_program().string()},
                     command("launched", one)),
              folder())
          .wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("2 ranks = 1 group x guidance 2 x sequence 1"));
  expect_same("one", "launched");
}

TEST_F(SampleRanksTest, WhatCannotBeSharedIsRefused) {
  train_clips("vdit", {"frame_masks.image_head=0"});
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  const auto expect_refused = [&](const Arguments& more, const std::string& message) {
    const Outcome outcome = sample("bad", joined(caption, more));
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect_refused({"--ranks", "0"}, "--ranks must be auto or a positive number");
  expect_refused({"--guidance-ranks", "3"}, "--guidance-ranks");
  expect_refused({"--sequence-scheme", "rings"}, "--sequence-scheme");
  expect_refused({"--sequence", "2"}, "does not divide 1 rank");
  expect_refused({"--ranks", "2", "--guidance", "1", "--guidance-ranks", "2"}, "its scale is 1");
  expect_refused({"--ranks", "2", "--guidance-ranks", "1", "--sequence", "1"},
                 "2 groups for 1 sample");
  expect_refused({"--ranks", "2", "--sequence", "2", "--sequence-scheme", "dsp"},
                 "attention over whole clips");
  expect_refused({"--ranks", "3", "--sequence", "3", "--sequence-scheme", "ulysses"},
                 "2 heads do not divide");
}

TEST_F(SampleRanksTest, WhatNoRankCouldReadIsSaidOnceAndStartsNone) {
  const Outcome outcome = run_kinora({"sample", "--run", (folder() / "nowhere").string(), "--out",
                                      (folder() / "out").string(), "--ranks", "2"},
                                     folder());
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_NE(outcome.err.find("does not exist"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("rank"), std::string::npos) << outcome.err;
}

}  // namespace sample_ranks_test
}  // namespace kinora::apps
