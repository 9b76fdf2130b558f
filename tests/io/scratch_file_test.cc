#include "kinora/io/scratch_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::io {
namespace scratch_file_test {

namespace fs = std::filesystem;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

std::unique_ptr<std::byte[], Free> pages(int64_t bytes) {
  return std::unique_ptr<std::byte[], Free>(static_cast<std::byte*>(
      std::aligned_alloc(ScratchFile::kAlignment, static_cast<size_t>(bytes))));
}

class ScratchFileTest : public testing::TestWithParam<ScratchFile::Way> {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("kinora-scratch-" + std::to_string(::getpid()));
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Of this process, the one file that lies in the folder without a name.
  [[nodiscard]] fs::path descriptor() const {
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code none;
      const std::string target = fs::read_symlink(entry.path(), none).string();
      if (target.starts_with(fs::canonical(folder_).string()) && target.ends_with("(deleted)")) {
        return entry.path();
      }
    }
    return {};
  }

  fs::path folder_;
};

TEST_P(ScratchFileTest, GivesBackWhatWasWritten) {
  constexpr int64_t kBytes = (5 << 20) + 3 * ScratchFile::kAlignment;
  ScratchFile file(folder_, kBytes, GetParam());
  EXPECT_EQ(file.size(), kBytes);
  EXPECT_TRUE(fs::is_empty(folder_)) << "it has no name";
  EXPECT_GE(fs::file_size(descriptor()), static_cast<uintmax_t>(kBytes));
  const bool threads = GetParam() == ScratchFile::Way::kThreads;
  EXPECT_EQ(threads, threads && file.describe().find("threads") != std::string::npos);

  const auto memory = pages(kBytes);
  file.read(std::vector<ScratchFile::Piece>{{0, memory.get(), kBytes}});
  EXPECT_EQ(std::count(memory.get(), memory.get() + kBytes, std::byte{0}), kBytes);
  for (int64_t i = 0; i < kBytes; ++i) {
    memory[static_cast<size_t>(i)] = static_cast<std::byte>((i * 7 + i / 4096) % 251);
  }
  const int64_t half = 2 << 20;
  file.write(std::vector<ScratchFile::Piece>{{half, memory.get() + half, kBytes - half},
                                             {0, memory.get(), half}});
  const auto again = pages(kBytes);
  file.read(std::vector<ScratchFile::Piece>{{0, again.get(), kBytes}});
  EXPECT_TRUE(std::equal(memory.get(), memory.get() + kBytes, again.get()));
}

TEST_P(ScratchFileTest, AFileThatIsCutShortIsAnError) {
  constexpr int64_t kBytes = 4 << 20;
  ScratchFile file(folder_, kBytes, GetParam());
  ASSERT_EQ(::truncate(descriptor().c_str(), kBytes / 2), 0);
  const auto memory = pages(kBytes);
  try {
    file.read(std::vector<ScratchFile::Piece>{{0, memory.get(), kBytes}});
    FAIL() << "half of it is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("the file ends there"), std::string::npos)
        << error.what();
  }
  file.read(std::vector<ScratchFile::Piece>{{0, memory.get(), kBytes / 2}});
}

INSTANTIATE_TEST_SUITE_P(Ways, ScratchFileTest,
                         testing::Values(ScratchFile::Way::kBest, ScratchFile::Way::kThreads),
                         [](const auto& info) {
                           return info.param == ScratchFile::Way::kBest ? "best" : "threads";
                         });

TEST_F(ScratchFileTest, NoRoomIsAnErrorWithBothNumbers) {
  const int64_t bytes = int64_t{1} << 55;
  try {
    const ScratchFile file(folder_, bytes);
    FAIL() << "32 PiB are not there";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(text.find(std::to_string(bytes)), std::string::npos) << text;
    EXPECT_NE(text.find("has "), std::string::npos) << text;
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ScratchFileTest, TheLimitOfTheProcessIsAnErrorWithBothNumbers) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string text;
  try {
    const ScratchFile file(folder_, 2 << 20);
  } catch (const Error& error) {
    text = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(text.find("2097152"), std::string::npos) << text;
  EXPECT_NE(text.find("1048576"), std::string::npos) << text;
}

TEST_F(ScratchFileTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(ScratchFile(folder_ / "none", 4096), Error);
}

}  // namespace scratch_file_test
}  // namespace kinora::io
