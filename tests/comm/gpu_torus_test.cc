// The torus and the 8-bit collectives on GPUs, against the same calls on CPU tensors.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "kinora/comm/link_speed.h"
#include "kinora/comm/quantised.h"
#include "kinora/comm/torus.h"
#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/kernels/cuda/random.h"
#include "tests/comm/ranks.h"

namespace kinora::comm {
namespace gpu_torus_test {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// Runs `body` on as many ranks as GPUs, each with its own.
void run_on_gpus(int64_t num_gpus,
                 const std::function<void(const Group& world, at::Device device)>& body) {
  if (cuda_device_count() < num_gpus) {
    GTEST_SKIP() << "needs " << num_gpus << " GPUs, there are " << cuda_device_count();
  }
  RankOptions options;
  options.time_limit = std::chrono::seconds(180);
  run_on_ranks(
      num_gpus,
      [&](const Group& group) {
        World world = group.world();
        world.store_prefix += "gpus/";
        const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank));
        body(connect(world, device), device);
        device::synchronize(device);
      },
      options);
}

/// Sines that differ by rank; integers where sums must not depend on their order.
at::Tensor input_of(int64_t rank, int64_t count, bool integers) {
  const at::Tensor i = at::arange(count, at::kLong);
  return integers
             ? i.mul(7).add(rank * 5).remainder(13).to(at::kFloat)
             : i.to(at::kDouble).mul(0.37 + 0.11 * static_cast<double>(rank)).sin().to(at::kFloat);
}

void expect_equal(const at::Tensor& got, const at::Tensor& want, const char* what) {
  EXPECT_TRUE(at::equal(got.cpu(), want)) << what;
}

TEST(GpuTorusTest, EqualsTheGroupOfAllRanks) {
  run_on_gpus(4, [](const Group& world, at::Device device) {
    for (const int64_t min_bytes : {int64_t{0}, kNever}) {
      const Torus torus(world, 2, {.min_pipelined_bytes = min_bytes});
      for (const int64_t count : {1, 1000, 3'000'000}) {
        SCOPED_TRACE(std::to_string(count) + ", pipelined from " + std::to_string(min_bytes));
        const at::Tensor whole = input_of(world.rank(), 4 * count, true);
        const at::Tensor expected = at::empty({count}, at::kFloat);
        world.reduce_scatter(expected, whole, Reduction::kMean);
        const at::Tensor input = whole.to(device);
        const at::Tensor part = at::full({count}, 99, input.options());
        torus.reduce_scatter(part, input, Reduction::kMean);
        expect_equal(part, expected, "reduce_scatter");
        part.fill_(99);
        const Work work = torus.reduce_scatter_async(part, input, Reduction::kMean);
        const at::Tensor meanwhile = at::full({1000}, 1, input.options()).mul(2);
        work.wait();
        expect_equal(part, expected, "reduce_scatter_async");
        expect_equal(meanwhile, at::full({1000}, 2, at::kFloat), "the current stream's work");

        const at::Tensor all = at::empty({4 * count}, at::kFloat);
        world.all_gather(all, expected);
        const at::Tensor output = at::full({4 * count}, 99, input.options());
        torus.all_gather(output, part);
        expect_equal(output, all, "all_gather");
        output.fill_(99);
        const at::Tensor mine = output.narrow(0, world.rank() * count, count);
        mine.copy_(part);
        torus.all_gather_async(output, mine).wait();
        expect_equal(output, all, "all_gather_async in place");
        torus.reduce_scatter(mine, output);
        expect_equal(mine, expected.mul(4), "reduce_scatter in place");
      }
    }
  });
}

/// Many at once, of memory that is given back and taken again meanwhile.
TEST(GpuTorusTest, CallsUnderWayDoNotDisturbEachOther) {
  run_on_gpus(4, [](const Group& world, at::Device device) {
    constexpr int64_t kCount = 500'000;
    const Torus torus(world, 2, {.min_pipelined_bytes = 0});
    for (int64_t round = 0; round < 5; ++round) {
      std::vector<at::Tensor> parts;
      std::vector<Work> works;
      for (int64_t call = 1; call <= 6; ++call) {
        const at::Tensor whole =
            at::full({4 * kCount}, call + world.rank(), at::device(device).dtype(at::kFloat));
        parts.push_back(at::empty({kCount}, whole.options()));
        works.push_back(torus.reduce_scatter_async(parts.back(), whole));
      }
      for (int64_t call = 1; call <= 6; ++call) {
        works[call - 1].wait();
        expect_equal(parts[call - 1], at::full({kCount}, 4 * call + 6, at::kFloat), "sum");
      }
    }
  });
}

TEST(GpuQuantisedTest, EqualsTheCpu) {
  run_on_gpus(2, [](const Group& world, at::Device device) {
    if (!kernels::cuda::has_cuda_kernels()) {
      return;
    }
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t count : {1, 100, 128, 4096, 1'000'000}) {
        SCOPED_TRACE(std::string(at::toString(type)) + ", " + std::to_string(count));
        const at::Tensor whole = input_of(world.rank(), 2 * count, false).to(type);
        const at::Tensor part = at::empty({count}, at::kFloat);
        reduce_scatter_fp8(world, part, whole);
        const at::Tensor gpu_whole = whole.to(device);
        const at::Tensor gpu_part = at::full({count}, 99, gpu_whole.options().dtype(at::kFloat));
        reduce_scatter_fp8(world, gpu_part, gpu_whole);
        expect_equal(gpu_part, part, "reduce_scatter_fp8");
        const at::Tensor mine = part.to(type);
        all_gather_fp8(world, whole, mine);
        all_gather_fp8(world, gpu_whole, mine.to(device));
        expect_equal(gpu_whole, whole, "all_gather_fp8");
      }
    }
    // Memory that is not aligned to 16 bytes.
    const at::Tensor whole = input_of(world.rank(), 8193, false);
    const at::Tensor part = at::empty({4096}, at::kFloat);
    reduce_scatter_fp8(world, part, whole.narrow(0, 1, 8192));
    const at::Tensor gpu_part = at::empty({4097}, at::device(device).dtype(at::kFloat));
    reduce_scatter_fp8(world, gpu_part.narrow(0, 1, 4096), whole.to(device).narrow(0, 1, 8192));
    expect_equal(gpu_part.narrow(0, 1, 4096), part, "unaligned");
  });
}

TEST(GpuLinkSpeedTest, MeasuresTheGpusLink) {
  run_on_gpus(2, [](const Group& world, at::Device device) {
    for (const OperationSpeed& speed : measure(world, device)) {
      ASSERT_EQ(speed.samples.size(), 3U);
      EXPECT_EQ(speed.samples.back().bytes, 1 << 26);
      EXPECT_GT(speed.link.bytes_per_s, 0.0);
      if (world.rank() == 0) {  // figures to read, no conditions
        for (const LinkSample& sample : speed.samples) {
          GTEST_LOG_(INFO) << to_string(speed.operation) << ' ' << sample.bytes
                           << " bytes: " << sample.seconds * 1e6 << " us";
        }
        GTEST_LOG_(INFO) << to_string(speed.operation) << ": " << speed.link.latency * 1e6
                         << " us, " << speed.link.bytes_per_s / 1e9 << " GB/s";
      }
    }
  });
}

}  // namespace gpu_torus_test
}  // namespace kinora::comm
