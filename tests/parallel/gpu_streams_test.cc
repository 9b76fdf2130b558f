// Models that attend in windows, with their tokens on two GPUs, by the fast path in bf16: as near
// to fp32 as the plain path of one GPU. One whose captions have a stream, and one without.
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <string_view>

#include "kinora/core/cuda.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/parallel/sequence.h"
#include "tests/comm/ranks.h"
#include "tests/models/transformers/random_clips.h"
#include "tests/parallel/plans.h"

namespace kinora::parallel {
namespace gpu_streams_test {

using models::ClipCase;
using models::RandomClips;

ops::NamedResults plain_results(const ClipCase& one, at::Device device, at::ScalarType type) {
  RandomClips clips(one, device, type);
  clips.step();
  return clips.results();
}

/// On this rank and the other; gradients averaged over both, as data parallelism does.
ops::NamedResults divided_results(const ClipCase& one, at::Device device,
                                  const comm::Group& world) {
  RandomClips clips(one, device, at::kBFloat16);
  clips.model().use_sequence(make_sequence(plan_of(SequenceScheme::kUlysses, world.size()), world));
  clips.model().use_fast_path(std::make_shared<ops::BlockKernels>(
      ops::KernelOptions{
          .adaln = ops::Switch::kOn, .attention = ops::Switch::kOn, .epilogue = ops::Switch::kOn},
      device, at::kBFloat16, /*deterministic=*/true));
  clips.step();
  ops::NamedResults results = clips.results();
  for (ops::NamedResult& result : results) {
    if (result.name != "output") {
      at::Tensor value = result.value.to(device).contiguous();
      world.all_reduce(value, comm::Reduction::kMean);
      result.value = value.to(result.value.device());
    }
  }
  return results;
}

TEST(GpuStreamsTest, WindowsOnTwoGpusAreAsNearAsOnOne) {
  constexpr int64_t kGpus = 2;
  if (cuda_device_count() < kGpus) {
    GTEST_SKIP() << "needs " << kGpus << " GPUs, there are " << cuda_device_count();
  }
  comm::RankOptions options;
  options.time_limit = std::chrono::seconds(240);
  comm::run_on_ranks(
      kGpus,
      [](const comm::Group& group) {
        comm::World place = group.world();
        place.store_prefix += "gpus/";
        const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
        at::accelerator::setDeviceIndex(device.index());  // kernels run there
        const comm::Group world = comm::connect(place, device);
        for (const ClipCase& one : models::kClipCases) {
          const std::string_view name = one.name;
          if (name == "open_sora2_slides" || name == "wan_slides") {
            ops::expect_as_near(plain_results(one, device, at::kFloat),
                                plain_results(one, device, at::kBFloat16),
                                divided_results(one, device, world), one.name, one.slack);
          }
        }
      },
      options);
}

}  // namespace gpu_streams_test
}  // namespace kinora::parallel
