// Snapshots of a GPU's arrays, and the way back.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/writer.h"
#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "tests/checkpoint/numbered_state.h"

namespace kinora::checkpoint {
namespace gpu_writer_test {

namespace fs = std::filesystem;

constexpr int64_t kWidth = 20'000'000;  // 560 MB a role: copies take long enough to be overtaken
const at::Device kGpu(at::kCUDA, 0);

class GpuWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << cuda_unavailable_reason();
    }
  }

  TemporaryFolder folder_;
};

TEST_F(GpuWriterTest, TheNextUpdateMayBeEnqueuedAtOnce) {
  NumberedState trained({}, kWidth, kGpu);
  for (const SnapshotPlace place :
       {SnapshotPlace::kDevice, SnapshotPlace::kHost, SnapshotPlace::kNone}) {
    const int64_t step = 1 + static_cast<int64_t>(place);
    Writer writer({.folder = folder_.path(), .place = place}, trained.arena, {});
    trained.set(step);
    device::synchronize(kGpu);
    writer.start(NumberedState::state(step));
    // As the optimizer does: on the device, without the host waiting.
    for (const optim::Bucket& bucket : trained.arena.buckets()) {
      for (const optim::Role role : trained.arena.state_roles()) {
        bucket.tensor(role).zero_();
      }
    }
    writer.wait();
    trained.set(900);
    EXPECT_EQ(load(step_folder(folder_.path(), step), trained.arena).step, step);
    EXPECT_TRUE(trained.is(step)) << to_string(place);
    fs::remove_all(step_folder(folder_.path(), step));
  }
}

TEST_F(GpuWriterTest, TakesTheDeviceWhereThereIsRoomAndElseTheHost) {
  // libtorch knows nothing of a device that has held no tensor yet.
  const at::Tensor first = at::empty({1}, at::device(kGpu));
  const int64_t room = cuda_free_memory(0);
  EXPECT_EQ(choose_place(kGpu, int64_t{1} << 20, 1), SnapshotPlace::kDevice);
  EXPECT_NE(choose_place(kGpu, room + (int64_t{1} << 30), 1), SnapshotPlace::kDevice);
}

TEST_F(GpuWriterTest, WhatAGpuSavesTheCpuLoadsAndTheOtherWayRound) {
  NumberedState on_gpu({}, 1000, kGpu);
  on_gpu.set(3);
  NumberedState on_cpu({}, 1000);
  (void)load(save(folder_.path(), on_gpu.arena, NumberedState::state(3)), on_cpu.arena);
  EXPECT_TRUE(on_cpu.is(3));
  on_cpu.set(4);
  (void)load(save(folder_.path(), on_cpu.arena, NumberedState::state(4)), on_gpu.arena);
  EXPECT_TRUE(on_gpu.is(4));
}

TEST_F(GpuWriterTest, SamplingReadsHalfPrecision) {
  NumberedState trained({}, 1000, kGpu);
  trained.set(3);
  const fs::path path = save(folder_.path(), trained.arena, NumberedState::state(3));
  SmallModel model(1000);
  optim::Arena arena(model.named_parameters(), SmallModel::buckets(),
                     {.device = kGpu,
                      .compute_type = at::kBFloat16,
                      .seed = 2,
                      .train = false,
                      .ema_decays = {},
                      .sharding = {}});
  load_for_sampling(path, 0, model, arena);
  for (const char* name : {"first.weight", "second.bias"}) {
    const at::Tensor got = arena.export_parameter(name, optim::Role::compute());
    const at::Tensor expected = trained.arena.export_parameter(name, optim::Role::average(0));
    EXPECT_TRUE(at::equal(got, expected.to(got.scalar_type()))) << name;
  }
}

}  // namespace gpu_writer_test
}  // namespace kinora::checkpoint
