#include "kinora/checkpoint/step_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>

#include "kinora/io/file.h"
#include "tests/checkpoint/testing.h"

namespace kinora::checkpoint {
namespace step_folders_test {

namespace fs = std::filesystem;
using testing::ElementsAre;

class StepFoldersTest : public testing::Test {
 protected:
  [[nodiscard]] const fs::path& folder() const { return folder_.path(); }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const fs::path& path : list_checkpoints(folder())) {
      names.push_back(path.filename().string());
    }
    return names;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(StepFoldersTest, NamesOfOtherFoldersAreNoSteps) {
  EXPECT_EQ(step_of("a/step-12"), 12);
  EXPECT_EQ(step_of("step-0"), 0);
  for (const char* name : {"step-", "step-1x", "step--1", "step-1.5", "Step-1", "xstep-1", "12",
                           "step-99999999999999999999", ".unfinished-1-2", "damaged-step-3"}) {
    EXPECT_EQ(step_of(name), std::nullopt) << name;
  }
}

TEST_F(StepFoldersTest, ListIsInOrderOfSteps) {
  for (const char* name :
       {"step-100", "step-20", "step-3", ".unfinished-4-1", "damaged-step-5", "notes"}) {
    fs::create_directory(folder() / name);
  }
  write_text(folder() / "step-7", "a file");
  EXPECT_THAT(names(), ElementsAre("step-3", "step-20", "step-100"));
  EXPECT_TRUE(list_checkpoints(folder() / "nowhere").empty());
}

TEST_F(StepFoldersTest, PruneKeepsTheNewestAndMultiples) {
  const auto make_all = [this] {
    for (int64_t step = 1; step <= 10; ++step) {
      fs::create_directories(step_folder(folder(), step) / "inside");
    }
  };
  make_all();
  prune(folder(), 0, 0);
  EXPECT_EQ(names().size(), 10U) << "0 keeps all";
  prune(folder(), 20, 0);
  EXPECT_EQ(names().size(), 10U);
  prune(folder(), 3, 4);
  EXPECT_THAT(names(), ElementsAre("step-4", "step-8", "step-9", "step-10"));
  prune(folder(), 1, 0);
  EXPECT_THAT(names(), ElementsAre("step-10"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 1);
}

TEST_F(StepFoldersTest, UnfinishedOnesAreRemoved) {
  fs::create_directory(folder() / "step-1");
  for (const char* name : {".unfinished-2-77", ".unfinished-step-0"}) {
    fs::create_directory(folder() / name);
    write_text(folder() / name / "master.safetensors", "half");
  }
  write_text(folder() / "notes.txt", "stay");
  remove_unfinished(folder());
  EXPECT_THAT(names(), ElementsAre("step-1"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 2);
}

TEST_F(StepFoldersTest, MissingSpaceIsSaid) {
  check_space(folder(), 0);
  const int64_t too_much = io::free_space(folder()) + (int64_t{1} << 40);
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { check_space(folder(), too_much); }),
              testing::ContainsRegex("needs .*: 1(\\.0+)? TiB are missing. Hint"));
}

}  // namespace step_folders_test
}  // namespace kinora::checkpoint
