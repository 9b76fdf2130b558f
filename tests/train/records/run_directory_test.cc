#include "kinora/train/records/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "kinora/core/error.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace run_directory_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunDirectoryTest : public testing::Test {
 public:
  ~RunDirectoryTest() override { fs::remove_all(folder_); }

 protected:
  RunDirectoryTest() {
    std::string name = testing::TempDir() + "kinora-run-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  fs::path folder_;
};

constexpr Resume::Mode kNever = Resume::Mode::kNever;
constexpr Resume::Mode kAuto = Resume::Mode::kAuto;

TEST_F(RunDirectoryTest, IsMadeWithItsFolders) {
  const RunDirectory run(folder_ / "a/b", {.mode = kNever, .checkpoint = {}});
  EXPECT_TRUE(fs::is_directory(run.samples()));
  EXPECT_TRUE(fs::is_directory(run.checkpoints()));
  EXPECT_EQ(run.log_file(), folder_ / "a/b/log.jsonl");
}

TEST_F(RunDirectoryTest, IsHeldByOneOnly) {
  {
    const RunDirectory run(folder_ / "r", {.mode = kNever, .checkpoint = {}});
    EXPECT_THROW(RunDirectory(folder_ / "r", {.mode = kAuto, .checkpoint = {}}), Error);
  }
  EXPECT_NO_THROW(RunDirectory(folder_ / "r", {.mode = kAuto, .checkpoint = {}}));
}

TEST_F(RunDirectoryTest, ThatWasMadeButNeverUsedIsNew) {
  { const RunDirectory run(folder_ / "r", {.mode = kNever, .checkpoint = {}}); }
  EXPECT_NO_THROW(RunDirectory(folder_ / "r", {.mode = kNever, .checkpoint = {}}));
}

TEST_F(RunDirectoryTest, ThatHoldsAnythingNeedsResume) {
  { const RunDirectory run(folder_ / "r", {.mode = kNever, .checkpoint = {}}); }
  std::ofstream(folder_ / "r/samples/step-1.png") << "x";
  try {
    const RunDirectory run(folder_ / "r", {.mode = kNever, .checkpoint = {}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  }
  // The refusal has let go of the lock.
  EXPECT_NO_THROW(RunDirectory(folder_ / "r", {.mode = kAuto, .checkpoint = {}}));
}

TEST_F(RunDirectoryTest, AFolderWithOtherFilesIsNoRun) {
  fs::create_directories(folder_ / "r/pictures");
  std::ofstream(folder_ / "r/pictures/cat.png") << "x";
  for (const Resume::Mode mode : {kNever, kAuto, Resume::Mode::kPath}) {
    EXPECT_THAT(
        error_of(ErrorKind::kConfig,
                 [&] { return RunDirectory(folder_ / "r", {.mode = mode, .checkpoint = {}}); }),
        HasSubstr("holds other files, such as \"pictures\""));
  }
  EXPECT_FALSE(fs::exists(folder_ / "r/.lock")) << "nothing of ours must be left there";
  EXPECT_FALSE(fs::exists(folder_ / "r/samples"));
}

TEST_F(RunDirectoryTest, ACopyOfARunWithoutItsLockIsARun) {
  fs::create_directories(folder_ / "r/checkpoints/step-3");
  std::ofstream(folder_ / "r/config.yaml") << "x";
  EXPECT_NO_THROW(RunDirectory(folder_ / "r", {.mode = kAuto, .checkpoint = {}}));
}

TEST_F(RunDirectoryTest, ResumeIsAutoNeverOrAFolder) {
  EXPECT_EQ(Resume::parse("never").mode, kNever);
  EXPECT_EQ(Resume::parse("auto").mode, kAuto);
  const Resume path = Resume::parse(folder_.string());
  EXPECT_EQ(path.mode, Resume::Mode::kPath);
  EXPECT_EQ(path.checkpoint, folder_);
  EXPECT_THROW((void)Resume::parse("always"), Error);
  EXPECT_THROW((void)Resume::parse(""), Error);
}

}  // namespace run_directory_test
}  // namespace kinora::train
