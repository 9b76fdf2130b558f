#include "kinora/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/io/file.h"
#include "tests/checkpoint/numbered_state.h"
#include "tests/file_size_limit.h"

namespace kinora::checkpoint {
namespace writer_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class WriterTest : public testing::Test {
 protected:
  [[nodiscard]] const fs::path& folder() const { return folder_.path(); }
  [[nodiscard]] std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const fs::path& path : list_checkpoints(folder())) {
      steps.push_back(*step_of(path));
    }
    return steps;
  }
  /// Checkpoints and everything else.
  [[nodiscard]] int64_t num_entries() const {
    return std::distance(fs::directory_iterator(folder()), fs::directory_iterator());
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(WriterTest, TrainingGoesOnWhileItWrites) {
  for (const SnapshotPlace place :
       {SnapshotPlace::kDevice, SnapshotPlace::kHost, SnapshotPlace::kNone}) {
    const int64_t step = 1 + static_cast<int64_t>(place);
    NumberedState trained({}, 100'000);  // 2 MB a role
    Writer writer({.folder = folder(), .place = place}, trained.arena, {});
    trained.set(step);
    writer.start(NumberedState::state(step));
    trained.set(900);
    writer.wait();
    NumberedState loaded({}, 100'000);
    EXPECT_EQ(load(step_folder(folder(), step), loaded.arena).step, step);
    EXPECT_TRUE(loaded.is(step)) << to_string(place);
  }
}

// Chunks that begin in one bucket and end in the next, and a last one that is short.
TEST_F(WriterTest, SeveralChunksAFile) {
  constexpr int64_t kWidth = 1'800'000;  // buckets of 36 and 14 MB
  static_assert(kWidth * 5 * 4 > kChunkBytes && kWidth * 7 * 4 < 2 * kChunkBytes);
  NumberedState trained({}, kWidth);
  trained.set(7);
  const fs::path path = save(folder(), trained.arena, NumberedState::state(7));
  trained.set(900);
  (void)load(path, trained.arena);
  EXPECT_TRUE(trained.is(7));

  std::fstream file(path / "master.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(kChunkBytes + 5);
  file.put('\x55');
  file.close();
  EXPECT_THAT(refusal(ErrorKind::kDamaged, [&] { (void)load(path, trained.arena); }),
              HasSubstr("master.safetensors\" is damaged: the checksum of bytes 33554432 to "));
}

TEST_F(WriterTest, OneAfterTheOtherAndOldOnesGoAfterwards) {
  NumberedState trained;
  {
    Writer writer({.folder = folder(), .keep_last = 2, .keep_every = 3}, trained.arena, {});
    for (int64_t step = 1; step <= 7; ++step) {
      trained.set(step);
      writer.start(NumberedState::state(step));
    }
  }  // waits
  EXPECT_THAT(steps(), ElementsAre(3, 6, 7));
  EXPECT_EQ(num_entries(), 3);
  for (const int64_t step : {3, 6, 7}) {
    NumberedState loaded;
    (void)load(step_folder(folder(), step), loaded.arena);
    EXPECT_TRUE(loaded.is(step));
  }
}

TEST_F(WriterTest, FailedWriteLeavesTheOldOneAndIsSaidAtTheNextCall) {
  NumberedState trained({}, 20'000);
  Writer writer({.folder = folder()}, trained.arena, {});
  trained.set(1);
  writer.start(NumberedState::state(1));
  writer.wait();
  for (const bool waits : {true, false}) {
    const FileSizeLimit limit(100'000);
    writer.start(NumberedState::state(2));
    EXPECT_THAT(refusal(ErrorKind::kIo,
                        [&] { waits ? writer.wait() : writer.start(NumberedState::state(3)); }),
                HasSubstr("File too large"));
    EXPECT_THAT(steps(), ElementsAre(1));
    EXPECT_EQ(num_entries(), 1);
  }
  trained.set(4);
  writer.start(NumberedState::state(4));
  writer.wait();
  EXPECT_THAT(steps(), ElementsAre(1, 4));
}

}  // namespace writer_test
}  // namespace kinora::checkpoint
