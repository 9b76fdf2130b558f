// Checkpoints of several ranks.

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <functional>
#include <new>
#include <numeric>

#include "kinora/checkpoint/agreement.h"
#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/checkpoint/writer.h"
#include "tests/checkpoint/numbered_state.h"
#include "tests/comm/ranks.h"

namespace kinora::checkpoint {
namespace ranks_test {

namespace fs = std::filesystem;
using comm::Group;
using testing::AllOf;
using testing::HasSubstr;

/// A folder of rank 0 that all know. The last thing that a body does is a barrier.
class SharedFolder {
 public:
  explicit SharedFolder(const Group& world) {
    if (world.rank() == 0) {
      owned_.emplace();
    }
    path_ = gather_texts(world, owned_ ? owned_->path().string() : "").front();
  }

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  std::optional<TemporaryFolder> owned_;
  fs::path path_;
};

struct Layout {
  int64_t num_ranks;
  int64_t num_shards;
  int stage;
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.num_ranks << " ranks, " << layout.num_shards << " shards, stage "
             << layout.stage;
}

constexpr Layout kLayouts[] = {{1, 1, 0}, {2, 1, 0}, {2, 2, 1}, {2, 2, 2}, {2, 2, 3}, {3, 3, 2},
                               {4, 1, 0}, {4, 4, 1}, {4, 4, 3}, {4, 2, 1}, {4, 2, 3}};
// For formats that lie in files as fp32's do.
constexpr Layout kFewLayouts[] = {{1, 1, 0}, {2, 2, 3}, {3, 3, 2}, {4, 4, 1}, {4, 2, 3}};

/// Lists of `size` ranks each, of those from `begin` to `end`.
std::vector<std::vector<int64_t>> in_groups_of(int64_t size, int64_t begin, int64_t end) {
  std::vector<std::vector<int64_t>> groups;
  for (; begin < end; begin += size) {
    std::vector<int64_t>& ranks = groups.emplace_back(size);
    std::iota(ranks.begin(), ranks.end(), begin);
  }
  return groups;
}

/// The first ranks of the world; nothing for the others. All of the world call it.
std::optional<Ranks> take_part(const Group& world, const Layout& layout) {
  std::vector<std::vector<int64_t>> parts = in_groups_of(layout.num_ranks, 0, layout.num_ranks);
  for (const auto& alone : in_groups_of(1, layout.num_ranks, world.size())) {
    parts.push_back(alone);
  }
  Ranks ranks{.world = world.split(parts), .shards = {}, .stage = layout.stage};
  if (world.rank() >= layout.num_ranks) {
    return std::nullopt;
  }
  ranks.shards = ranks.world.split(in_groups_of(layout.num_shards, 0, layout.num_ranks));
  return ranks;
}

class CheckpointRanksTest : public testing::TestWithParam<Kept> {};

TEST_P(CheckpointRanksTest, WhatAnyNumberSavesAnyOtherLoads) {
  const Kept kept = GetParam();
  const bool tries_all = kept == Kept::kFp32 || kept == Kept::kSmall;
  const std::vector<Layout> layouts =
      tries_all ? std::vector<Layout>(std::begin(kLayouts), std::end(kLayouts))
                : std::vector<Layout>(std::begin(kFewLayouts), std::end(kFewLayouts));
  comm::run_on_ranks(4, [kept, &layouts](const Group& world) {
    const SharedFolder folder(world);
    int64_t step = 0;
    for (const Layout& layout : layouts) {
      ++step;
      if (const auto ranks = take_part(world, layout)) {
        NumberedState saved(*ranks, 6, at::kCPU, kept);
        saved.set(step);
        (void)save(folder.path(), saved.arena, NumberedState::state(step, kept), ranks->world);
      }
    }
    world.barrier();
    for (const Layout& layout : layouts) {
      const auto ranks = take_part(world, layout);
      for (int64_t from = 1; ranks && from <= step; ++from) {
        NumberedState loaded(*ranks, 6, at::kCPU, kept);
        loaded.set(900);
        const TrainingState state =
            load(step_folder(folder.path(), from), loaded.arena, ranks->world);
        EXPECT_EQ(state.step, from);
        EXPECT_EQ(state.position, 8 * from);
        EXPECT_EQ(state.optimizer, NumberedState::state(from, kept).optimizer);
        EXPECT_TRUE(loaded.is(from))
            << "from " << layouts[static_cast<size_t>(from - 1)] << " to " << layout;
      }
    }
    world.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, CheckpointRanksTest,
                         testing::Values(Kept::kFp32, Kept::kSmall, Kept::kMuon, Kept::kAdafactor,
                                         Kept::kCame, Kept::kProdigy),
                         [](const auto& info) { return to_string(info.param); });

// No bucket divides into five parts: the first rank writes.
TEST(CheckpointOfRanksTest, AsManyAsDoNotDivide) {
  comm::run_on_ranks(5, [](const Group& world) {
    const SharedFolder folder(world);
    NumberedState state({.world = world, .shards = {}, .stage = 0});
    state.set(3);
    const fs::path path = save(folder.path(), state.arena, NumberedState::state(3), world);
    EXPECT_TRUE(fs::exists(path / "master.safetensors"));
    state.set(900);
    (void)load(path, state.arena, world);
    EXPECT_TRUE(state.is(3));
    world.barrier();
  });
}

TEST(CheckpointOfRanksTest, EveryRankWritesAnEqualPart) {
  comm::run_on_ranks(4, [](const Group& world) {
    const SharedFolder folder(world);
    for (const Layout& layout : {Layout{4, 1, 0}, Layout{4, 4, 3}, Layout{4, 2, 1}}) {
      const auto ranks = take_part(world, layout);
      NumberedState saved(*ranks);
      saved.set(layout.stage);
      const fs::path path =
          save(folder.path(), saved.arena, NumberedState::state(layout.stage), world);
      for (const char* role : {"master", "exp_avg", "exp_avg_sq", "ema.0"}) {
        for (const char* part : {"1", "2", "3", "4"}) {
          const fs::path file =
              path / (std::string(role) + "-0000" + part + "-of-00004.safetensors");
          EXPECT_EQ(fs::file_size(file), fs::file_size(path / "master-00001-of-00004.safetensors"));
        }
      }
    }
    world.barrier();
  });
}

TEST(CheckpointOfRanksTest, FailureOfOneIsThatOfAll) {
  comm::run_on_ranks(2, [](const Group& world) {
    const SharedFolder folder(world);
    NumberedState state({.world = world, .shards = world, .stage = 1}, 50'000);
    Writer writer({.folder = folder.path()}, state.arena, world);
    state.set(1);
    writer.start(NumberedState::state(1));
    writer.wait();
    rlimit unlimited{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    if (world.rank() == 1) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{200'000, unlimited.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    state.set(2);
    writer.start(NumberedState::state(2));
    EXPECT_THAT(refusal(ErrorKind::kIo, [&] { writer.wait(); }),
                AllOf(HasSubstr("[rank 1] "), HasSubstr("File too large")));
    world.barrier();
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
    world.barrier();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    state.set(3);
    writer.start(NumberedState::state(3));
    writer.wait();
    for (const int64_t step : {1, 3}) {
      (void)load(step_folder(folder.path(), step), state.arena, world);
      EXPECT_TRUE(state.is(step));
    }
    world.barrier();
  });
}

/// For this thread and those that it starts `folder` is a disk of `bytes` from now on. Whether it
/// may be: it takes the rights of root.
bool mount_small_disk(const fs::path& folder, int64_t bytes) {
  const std::string options = "size=" + std::to_string(bytes);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

TEST(CheckpointOfRanksTest, AFullDiskIsSaidOnAllRanksAndLeavesTheOldCheckpoint) {
  comm::run_on_ranks(2, [](const Group& world) {
    const SharedFolder folder(world);
    NumberedState state({.world = world, .shards = world, .stage = 1}, 50'000);
    Writer writer({.folder = folder.path()}, state.arena, world);
    state.set(1);
    writer.start(NumberedState::state(1));
    writer.wait();
    // Rank 1 runs out of room in the middle of its part: its disk is as the one of rank 0 but
    // small.
    const std::string unfinished = gather_texts(world, unfinished_name(2)).front();
    const at::Tensor can = at::ones({1}, at::kLong);
    if (world.rank() == 1) {
      can.fill_(mount_small_disk(folder.path(), int64_t{1} << 20) ? 1 : 0);
      fs::create_directory(folder.path() / unfinished);
    }
    world.broadcast(can, 1);
    if (can.item<int64_t>() == 0) {
      GTEST_SKIP() << "a small disk needs the rights of root";
    }
    state.set(2);
    writer.start(NumberedState::state(2));
    EXPECT_THAT(refusal(ErrorKind::kIo, [&] { writer.wait(); }),
                AllOf(HasSubstr("[rank 1] "), HasSubstr("No space left on device"),
                      HasSubstr(" are missing for this rank's part. Hint: free some")));
    if (world.rank() == 1) {
      ASSERT_EQ(::umount2(folder.path().c_str(), MNT_DETACH), 0);
    }
    world.barrier();
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
    world.barrier();
    state.set(3);
    writer.start(NumberedState::state(3));  // there is room again
    writer.wait();
    for (const int64_t step : {1, 3}) {
      (void)load(step_folder(folder.path(), step), state.arena, world);
      EXPECT_TRUE(state.is(step));
    }
    world.barrier();
  });
}

TEST(CheckpointOfRanksTest, WantOfMemoryIsThatOnAllRanks) {
  comm::run_on_ranks(2, [](const Group& world) {
    const auto fail = [&](const std::function<void()>& how) {
      return refusal(ErrorKind::kMemory, [&] {
        (void)in_agreement(world, [&] {
          if (world.rank() == 1) {
            how();
          }
          return std::string();
        });
      });
    };
    EXPECT_THAT(fail([] { throw std::bad_alloc(); }), HasSubstr("[rank 1] out of memory"));
    EXPECT_THAT(fail([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }),
                HasSubstr("[rank 1] CUDA out of memory"));
  });
}

TEST(CheckpointOfRanksTest, DamagedAndMissingPartsAreNamedOnAllRanks) {
  comm::run_on_ranks(4, [](const Group& world) {
    const SharedFolder folder(world);
    NumberedState state({.world = world, .shards = world, .stage = 2});
    state.set(1);
    const fs::path path = save(folder.path(), state.arena, NumberedState::state(1), world);
    state.set(900);
    const char* name = "ema.0-00003-of-00004.safetensors";
    const auto refuse = [&] {
      return refusal(ErrorKind::kDamaged, [&] { (void)load(path, state.arena, world); });
    };
    world.barrier();
    if (world.rank() == 0) {
      std::string content = read_text(path / name);
      content.back() = static_cast<char>(content.back() ^ 4);
      write_text(path / name, content);
    }
    world.barrier();
    EXPECT_THAT(refuse(), AllOf(HasSubstr(name), HasSubstr("checksum"), HasSubstr("[rank 2]")));
    EXPECT_TRUE(state.is(900)) << "a refused checkpoint has changed the arena";
    world.barrier();
    if (world.rank() == 0) {
      fs::remove(path / name);
    }
    world.barrier();
    EXPECT_THAT(refuse(), HasSubstr(name));
    EXPECT_TRUE(state.is(900));
    world.barrier();
  });
}

TEST(CheckpointOfRanksTest, ConvertedIsWhatExportWrites) {
  comm::run_on_ranks(2, [](const Group& world) {
    const SharedFolder folder(world);
    NumberedState state({.world = world, .shards = world, .stage = 3});
    state.set(5);
    TrainingState saved = NumberedState::state(5);
    saved.buffers = buffers_of(state.model);
    const fs::path path = save(folder.path(), state.arena, saved, world);
    SmallModel fresh;  // whose buffer does not count
    fresh.table = at::ones({1, 3});
    for (const optim::Role role : {optim::Role::master(), optim::Role::average(0)}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const fs::path exported = folder.path() / "exported.safetensors";
        const fs::path converted = folder.path() / "converted.safetensors";
        save_weights(exported, state.model, state.arena, role, type,
                     weights_metadata("some: config\n"));
        if (world.rank() == 0) {
          write_weights(converted, checkpoint_weights(path, fresh, role),
                        {.type = type, .metadata = weights_metadata("some: config\n")});
          EXPECT_EQ(read_text(converted), read_text(exported));
        }
        world.barrier();
      }
    }
    if (world.rank() == 0) {
      EXPECT_THAT(
          refusal(ErrorKind::kIo,
                  [&] { (void)checkpoint_weights(path, state.model, optim::Role::average(1)); }),
          HasSubstr("has no ema.1"));
    }
    world.barrier();
  });
}

}  // namespace ranks_test
}  // namespace kinora::checkpoint
