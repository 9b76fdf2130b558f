#include "kinora/data/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "kinora/core/error.h"
#include "kinora/data/class_folder.h"
#include "kinora/io/file.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace index_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

// Samples that only have names and facts; sample 3 of each ten cannot be used.
class NamedSource : public Source {
 public:
  explicit NamedSource(int64_t size, std::chrono::microseconds pause = {})
      : size_(size), pause_(pause) {}

  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return "folder/" + std::to_string(index) + ".png";
  }
  void read(int64_t /*index*/, Sample& /*out*/) const override {}
  [[nodiscard]] SampleFacts facts(int64_t index) const override {
    std::this_thread::sleep_for(pause_);
    if (index % 10 == 3) {
      throw_error(ErrorKind::kIo, "[test] ", sample_name(index), " is bad");
    }
    return {.height = index + 1, .width = 7, .caption_length = index % 5};
  }
  [[nodiscard]] uint64_t stamp(int64_t index) const override {
    return 1 + static_cast<uint64_t>(index);
  }

 private:
  int64_t size_;
  std::chrono::microseconds pause_;
  std::vector<std::string> names_ = {""};
};

// That the index knows all of `source`, and nothing else.
void expect_whole(const Index& index, const NamedSource& source) {
  ASSERT_EQ(index.size(), source.size());
  for (int64_t i = 0; i < source.size(); ++i) {
    const std::optional<IndexEntry> entry = index.find(source.sample_name(i));
    ASSERT_TRUE(entry) << i;
    ASSERT_EQ(entry->is_usable(), i % 10 != 3);
    if (entry->is_usable()) {
      ASSERT_EQ(entry->facts, source.facts(i));
    } else {
      ASSERT_EQ(entry->cause, "[test] " + source.sample_name(i) + " is bad");
    }
  }
  EXPECT_FALSE(index.find("folder/-1.png"));
}

TEST(IndexTest, WhatIsWrittenIsFound) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "made/for/it/a.index";
  for (const int64_t size : {0, 1, 2, 3, 1000}) {
    const NamedSource source(size);
    (void)update_index(source, path, {.num_threads = 3});
    expect_whole(Index::open(path), source);
  }
}

// Threads that are done before others start.
TEST(IndexTest, ManyThreadsForLittleWork) {
  const TemporaryFolder folder;
  const NamedSource source(3);
  for (int round = 0; round < 50; ++round) {
    (void)update_index(source, folder.path() / "a.index", {.num_threads = 16});
  }
  expect_whole(Index::open(folder.path() / "a.index"), source);
}

TEST(IndexTest, OnlyWhatChangedIsReadAgain) {
  const TemporaryFolder folder;
  folder.write("set/a/0.png", grey_png(1));
  const fs::path changed = folder.write("set/a/1.png", grey_png(2));
  folder.write("set/a/2.png", grey_png(3));
  const fs::path path = folder.path() / "a.index";
  const IndexUpdate first = update_index(ClassFolder(folder.path() / "set"), path, {});
  EXPECT_EQ(first.num_read, 3);
  folder.write("set/a/1.png", grey_png(2, 16, 16));
  folder.write("set/a/9.png", grey_png(4));
  fs::remove(folder.path() / "set/a/2.png");
  const ClassFolder now(folder.path() / "set");
  const IndexUpdate second = update_index(now, path, {});
  EXPECT_EQ(second.num_read, 2);
  EXPECT_EQ(second.num_reused, 1);
  const Index index = Index::open(path);
  EXPECT_EQ(index.size(), 3);
  EXPECT_EQ(index.find(changed.string())->facts.height, 16);
  EXPECT_FALSE(index.find((folder.path() / "set/a/2.png").string()));
}

TEST(IndexTest, AFullCheckFindsWhatHeadersHide) {
  const TemporaryFolder folder;
  std::vector<std::byte> cut = grey_png(7, 16, 16);
  cut.resize(cut.size() - 20);
  folder.write("a/0.png", cut);
  folder.write("a/1.png", grey_png(1));
  const ClassFolder source(folder.path());
  const fs::path path = folder.path() / "x.index";
  (void)update_index(source, path, {});
  EXPECT_TRUE(Index::open(path).find(source.sample_name(0))->is_usable());
  EXPECT_EQ(update_index(source, path, {.full = true}).num_read, 2);
  EXPECT_THAT(std::string(Index::open(path).find(source.sample_name(0))->cause),
              HasSubstr("0.png"));
  EXPECT_NE(Index::open(path).find(source.sample_name(1))->facts.checksum, 0U);
  EXPECT_EQ(update_index(source, path, {}).num_reused, 2);  // what was checked stays so
  EXPECT_TRUE(Index::open(path).find(source.sample_name(1))->is_checked);
}

TEST(IndexTest, StoppedWorkGoesOn) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.index";
  const NamedSource source(5000, std::chrono::microseconds(20));
  int64_t num_done = 0;
  const IndexUpdate part = update_index(source, path,
                                        {.num_threads = 2,
                                         .on_progress = [&](int64_t done) { num_done = done; },
                                         .wants_stop = [&] { return num_done > 500; }});
  EXPECT_FALSE(part.is_complete);
  EXPECT_GT(part.num_read, 500);
  EXPECT_LT(part.num_read, 5000);
  const IndexUpdate rest = update_index(source, path, {.num_threads = 2});
  EXPECT_EQ(rest.num_reused, part.num_read);
  EXPECT_EQ(rest.num_read, 5000 - part.num_read);
  expect_whole(Index::open(path), NamedSource(5000));
}

// What a stop leaves unvisited stays as the index before knew it.
TEST(IndexTest, AStopForgetsNothing) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.index";
  (void)update_index(NamedSource(1000), path, {});
  (void)update_index(NamedSource(2000), path, {.wants_stop = [] { return true; }});
  EXPECT_GE(Index::open(path).size(), 1000);
  EXPECT_TRUE(Index::open(path).find("folder/999.png"));
}

// Killed at different moments: the file is whole or not there, and what it holds is not done again.
TEST(IndexTest, KilledWorkLeavesAWholeIndex) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.index";
  const NamedSource source(20000, std::chrono::microseconds(30));
  int64_t num_known = 0;
  for (int round = 0; round < 8; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        (void)update_index(source, path, {.num_threads = 2, .save_interval = 0.0});
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 13 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (fs::exists(path)) {
      const int64_t now = Index::open(path).size();
      EXPECT_GE(now, num_known);
      num_known = now;
    }
  }
  EXPECT_GT(num_known, 0);
  EXPECT_EQ(update_index(source, path, {}).num_reused, num_known);
  expect_whole(Index::open(path), NamedSource(20000));
}

TEST(IndexTest, DamageIsRecognised) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.index";
  (void)update_index(NamedSource(20), path, {});
  const std::vector<std::byte> good = io::read_file(path, 1 << 20);
  for (size_t at = 0; at < good.size(); at += 7) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x20};
    folder.write("a.index", bad);
    EXPECT_THAT(error_of([&] { (void)Index::open(path); }), HasSubstr("a.index")) << at;
  }
  for (size_t size = 0; size < good.size(); size += 31) {
    folder.write("a.index", std::span(good).first(size));
    EXPECT_THAT(error_of([&] { (void)Index::open(path); }), HasSubstr("a.index")) << size;
  }
  EXPECT_EQ(update_index(NamedSource(20), path, {}).num_read, 20);  // made anew
  expect_whole(Index::open(path), NamedSource(20));
}

TEST(IndexTest, AnErrorThatIsNoSamplesFaultEndsTheWork) {
  class Broken : public NamedSource {
   public:
    Broken() : NamedSource(1000) {}
    [[nodiscard]] SampleFacts facts(int64_t /*index*/) const override { throw std::bad_alloc(); }
  };
  const TemporaryFolder folder;
  EXPECT_THROW((void)update_index(Broken(), folder.path() / "a.index", {}), std::bad_alloc);
  folder.write("file", std::string("x"));
}

TEST(IndexTest, AFolderThatCannotBeWrittenCostsTheFileAlone) {
  const TemporaryFolder folder;
  folder.write("file", std::string("x"));
  for (const fs::path& path : {folder.path() / "file/a.index", fs::path()}) {
    testing::internal::CaptureStderr();
    const IndexUpdate update =
        update_index(NamedSource(300), path, {.num_threads = 2, .save_interval = 0.0});
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_FALSE(update.is_kept);
    EXPECT_TRUE(update.is_complete);
    ASSERT_EQ(update.index.size(), 300);
    EXPECT_TRUE(update.index.find(NamedSource(300).sample_name(7)));
    const size_t warning = told.find("warning: [index]");
    ASSERT_NE(warning, std::string::npos) << told;
    EXPECT_EQ(told.find("warning:", warning + 1), std::string::npos) << told;  // once
  }
}

}  // namespace index_test
}  // namespace kinora::data
