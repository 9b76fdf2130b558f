#include "kinora/io/file_lock.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "kinora/core/error.h"

namespace kinora::io {
namespace file_lock_test {

namespace fs = std::filesystem;

class FileLockTest : public testing::Test {
 public:
  ~FileLockTest() override { fs::remove_all(folder_); }

 protected:
  FileLockTest() {
    std::string name = testing::TempDir() + "kinora-lock-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  fs::path folder_;
};

TEST_F(FileLockTest, IsHeldByOneUntilItLetsGo) {
  const fs::path file = folder_ / "lock";
  {
    const auto lock = FileLock::take(file);
    ASSERT_TRUE(lock);
    EXPECT_FALSE(FileLock::take(file));
    EXPECT_TRUE(FileLock::is_held(file));
    EXPECT_TRUE(FileLock::is_held(file));
  }
  EXPECT_FALSE(FileLock::is_held(file));
  EXPECT_TRUE(FileLock::take(file));
}

TEST_F(FileLockTest, AskingCreatesNothing) {
  EXPECT_FALSE(FileLock::is_held(folder_ / "none"));
  EXPECT_FALSE(fs::exists(folder_ / "none"));
  EXPECT_THROW((void)FileLock::take(folder_ / "no/such/folder"), Error);
}

}  // namespace file_lock_test
}  // namespace kinora::io
