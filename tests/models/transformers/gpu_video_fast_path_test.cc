// The fast path of the models of clips and captions by its kernels on a GPU against the plain path
// on the same GPU with the same weights: output and every gradient.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <regex>
#include <string>

#include "kinora/device/device.h"
#include "kinora/device/graph.h"
#include "kinora/ops/fp8.h"
#include "tests/models/transformers/random_clips.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace gpu_video_fast_path_test {

using ops::Switch;

const at::Device kGpu(at::kCUDA, 0);

// Relative to fp32, of three bits of mantissa through up to five branches a block; measured
// largest: see the test of DiT.
constexpr double kFp8Tolerance = 0.35;
constexpr double kFp8OutputTolerance = 0.12;

// As many tokens as the kernels for long sequences want, and captions that fill no tile.
constexpr ClipCase kLargeCases[] = {
    {.name = "stdit_large",
     .architecture = "stdit",
     .batch = 2,
     .frames = 16,
     .rows = 16,
     .columns = 18},
    {.name = "stdit3_large",
     .architecture = "stdit3",
     .batch = 2,
     .frames = 5,
     .rows = 16,
     .columns = 18,
     .qk_norm = true,
     .gives_frames = true},
    {.name = "latte_large",
     .architecture = "latte",
     .batch = 2,
     .frames = 16,
     .rows = 16,
     .columns = 18,
     .hidden = 128},
    {.name = "flux_large",
     .architecture = "flux",
     .batch = 2,
     .frames = 1,
     .rows = 32,
     .columns = 30,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 2,
     .text_tokens = 77,
     .hidden = 256},
    {.name = "open_sora2_slides_large",
     .architecture = "open_sora2",
     .batch = 2,
     .frames = 6,
     .rows = 16,
     .columns = 18,
     .qk_norm = true,
     .sliding_window = {{3, 5, 5}},
     .joint = true,
     .parallel_depth = 2,
     .text_tokens = 77,
     .hidden = 256},
    {.name = "wan_slides_large",
     .architecture = "wan",
     .batch = 2,
     .frames = 6,
     .rows = 16,
     .columns = 18,
     .sliding_window = {{3, 5, 5}},
     .text_tokens = 77,
     .hidden = 256},
};

std::shared_ptr<ops::BlockKernels> gpu_kernels(at::ScalarType type, bool deterministic = true,
                                               const ops::KernelOptions& options = {}) {
  return std::make_shared<ops::BlockKernels>(options, kGpu, type, deterministic);
}

ops::NamedResults plain_results(const ClipCase& c, at::ScalarType type) {
  RandomClips clips(c, kGpu, type);
  clips.step();
  return clips.results();
}

constexpr ops::Recompute kLevels[] = {ops::Recompute::kNone, ops::Recompute::kElementwise,
                                      ops::Recompute::kMlp, ops::Recompute::kBlock};

class GpuVideoFastPathTest : public testing::TestWithParam<ClipCase> {
 protected:
  static void SetUpTestSuite() {
    // Algorithms are neither taken from nor left to other runs.
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("HOME");
    // It also fills new tensors with NaN: what is read but was never written is seen.
    device::configure_computation(0, true);
    // The plain path's masked attention adds gradients in any order.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void SetUp() override {
    if (!device::best_device().is_cuda() || !ops::BlockKernels::worthwhile(kGpu, at::kBFloat16)) {
      GTEST_SKIP() << "there is no GPU that has the kernels";
    }
  }
};

TEST_P(GpuVideoFastPathTest, Fp32EqualsThePlainPath) {
  const ops::NamedResults exact = plain_results(GetParam(), at::kFloat);
  for (const ops::Recompute level : kLevels) {
    RandomClips fast(GetParam(), kGpu, at::kFloat);
    fast.model().use_fast_path(gpu_kernels(at::kFloat), level);
    fast.step();
    ops::expect_near(exact, fast.results(), tolerance::kWholeModel,
                     "level " + std::to_string(static_cast<int>(level)));
  }
}

// On, not auto: what cannot run is an error instead of a path that was tested elsewhere.
TEST_P(GpuVideoFastPathTest, Bf16IsAsNearAsThePlainPath) {
  const ops::NamedResults exact = plain_results(GetParam(), at::kFloat);
  const ops::NamedResults plain = plain_results(GetParam(), at::kBFloat16);
  for (const bool deterministic : {true, false}) {
    RandomClips fast(GetParam(), kGpu, at::kBFloat16);
    fast.model().use_fast_path(
        gpu_kernels(at::kBFloat16, deterministic,
                    {.adaln = Switch::kOn, .attention = Switch::kOn, .epilogue = Switch::kOn}));
    fast.overwrite_gradients();
    for (const int64_t passes : {1, 2}) {
      fast.step(passes);
      ops::expect_as_near(exact, plain, fast.results(1.0 / static_cast<double>(passes)),
                          std::to_string(passes) + " passes", GetParam().slack);
    }
  }
}

// Without gradients some products are others.
TEST_P(GpuVideoFastPathTest, SamplesInBf16AreAsNearAsThePlainPaths) {
  const auto samples = [](at::ScalarType type, bool is_fast) {
    RandomClips clips(GetParam(), kGpu, type);
    if (is_fast) {
      clips.model().use_fast_path(gpu_kernels(
          type, true, {.adaln = Switch::kOn, .attention = Switch::kOn, .epilogue = Switch::kOn}));
    }
    return clips.sample();
  };
  ops::expect_as_near(samples(at::kFloat, false), samples(at::kBFloat16, false),
                      samples(at::kBFloat16, true), "sample", kStreamSlack);
}

TEST_P(GpuVideoFastPathTest, StepsAreTheSameBitsAndAGraphReplaysThem) {
  const auto kernels = gpu_kernels(at::kBFloat16);
  for (const ops::Recompute level : kLevels) {
    RandomClips fast(GetParam(), kGpu, at::kBFloat16);
    fast.model().use_fast_path(kernels, level);
    fast.overwrite_gradients();
    fast.step();
    const ops::NamedResults first = fast.results();
    fast.step();
    ops::expect_same(first, fast.results(), "again");
    device::Graph graph;
    for (int replay = 0; replay < 2; ++replay) {
      fast.step(1, [&graph](const std::function<void()>& work) {
        if (!graph.is_recorded()) {
          graph.record(work);
        }
        graph.replay();
      });
      ops::expect_same(first, fast.results(), "replay " + std::to_string(replay));
    }
  }
}

// Blocks enough that most of what they keep is not there at once. Twice in a step, by a graph and
// without.
constexpr ClipCase kDeepCases[] = {
    {.name = "stdit3",
     .architecture = "stdit3",
     .depth = 6,
     .batch = 2,
     .frames = 5,
     .rows = 16,
     .columns = 18,
     .qk_norm = true,
     .gives_frames = true},
    {.name = "flux",
     .architecture = "flux",
     .depth = 6,
     .batch = 2,
     .frames = 1,
     .rows = 32,
     .columns = 30,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 6,
     .text_tokens = 77,
     .hidden = 256},
    {.name = "sd3",
     .architecture = "sd3",
     .depth = 12,
     .batch = 2,
     .frames = 1,
     .rows = 32,
     .columns = 30,
     .joint = true,
     .text_tokens = 77,
     .hidden = 256},
};

class GpuOffloadedActivationsTest : public GpuVideoFastPathTest {
 protected:
  /// Bytes of tensors. Workspaces of streams stay behind each graph.
  [[nodiscard]] static int64_t held() {
    (void)at::empty({1}, at::TensorOptions(kGpu));  // the allocator begins with the first one
    const auto stats = at::accelerator::getDeviceStats(kGpu.index());
    return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .current;
  }
};

TEST_P(GpuOffloadedActivationsTest, AreTheSameBitsWithLessMemory) {
  const auto kernels = gpu_kernels(at::kBFloat16);
  for (const ops::Recompute level : kLevels) {
    ops::NamedResults near;
    int64_t near_peak = 0;
    int64_t at_host = 0;
    const int64_t blocks = shape_of(GetParam().config()).blocks;
    for (const auto& [recomputed, offloaded] :
         {std::pair(int64_t{0}, int64_t{0}), std::pair(int64_t{0}, blocks),
          std::pair(blocks / 3, int64_t{0}), std::pair(blocks / 3, blocks / 3)}) {
      if (offloaded == 0) {
        near.clear();
      }
      const std::string how = "level " + std::to_string(static_cast<int>(level)) + ", " +
                              std::to_string(recomputed) + " blocks recomputed, " +
                              std::to_string(offloaded) + " offloaded";
      const int64_t before = held();
      RandomClips clips(GetParam(), kGpu, at::kBFloat16);
      clips.model().set_recompute(recomputed);
      clips.model().use_fast_path(kernels, level);
      clips.model().offload_activations(offloaded, kGpu);
      clips.overwrite_gradients();
      clips.step(2);  // products are timed, and the host's memory is taken
      at_host = clips.model().offloaded_activation_bytes();
      EXPECT_EQ(at_host > 0, offloaded > 0) << how;
      int64_t peak = 0;
      for (int step = 0; step < 3; ++step) {
        at::accelerator::resetPeakStats(kGpu.index());
        clips.step(2);
        peak = std::max(peak, device::peak_memory(kGpu) - before);
        const ops::NamedResults results = clips.results();
        if (near.empty()) {
          near = results;
        }
        ops::expect_same(near, results, how + ", step " + std::to_string(step));
      }
      EXPECT_EQ(clips.model().offloaded_activation_bytes(), at_host) << how;
      std::cout << how << ": peak " << peak << ", at the host " << at_host << '\n';
      if (offloaded == 0) {
        near_peak = peak;
      } else if (level != ops::Recompute::kBlock) {  // inputs alone are too little here to be seen
        EXPECT_LT(peak, near_peak) << how;
      }
      device::Graph graph;
      for (int replay = 0; replay < 3; ++replay) {
        clips.step(2, [&graph](const std::function<void()>& work) {
          if (!graph.is_recorded()) {
            graph.record(work);
          }
          graph.replay();
        });
        ops::expect_same(near, clips.results(), how + ", replay " + std::to_string(replay));
      }
      EXPECT_EQ(clips.model().offloaded_activation_bytes(), at_host) << how;
      clips.step(2);  // without, on memory that the graph uses, too
      ops::expect_same(near, clips.results(), how + ", behind a graph");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuOffloadedActivationsTest, testing::ValuesIn(kDeepCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Batch times tokens, and words, are multiples of 16, as fp8 products want it.
constexpr ClipCase kFp8Cases[] = {
    {.name = "stdit", .architecture = "stdit", .batch = 16, .rows = 4, .columns = 4, .hidden = 128},
    {.name = "stdit2",
     .architecture = "stdit2",
     .batch = 16,
     .rows = 4,
     .columns = 4,
     .qk_norm = true,
     .hidden = 192},
    {.name = "stdit3",
     .architecture = "stdit3",
     .batch = 16,
     .rows = 4,
     .columns = 4,
     .qk_norm = true,
     .hidden = 128},
    {.name = "pixart",
     .architecture = "pixart",
     .batch = 16,
     .frames = 1,
     .rows = 4,
     .columns = 4,
     .hidden = 128},
    {.name = "latte", .architecture = "latte", .batch = 16, .rows = 4, .columns = 4, .hidden = 128},
    {.name = "sd3",
     .architecture = "sd3",
     .batch = 16,
     .frames = 1,
     .rows = 4,
     .columns = 4,
     .qk_norm = true,
     .joint = true,
     .second_attention = true,
     .hidden = 128},
    {.name = "flux",
     .architecture = "flux",
     .batch = 16,
     .frames = 1,
     .rows = 4,
     .columns = 4,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 2,
     .hidden = 128},
};

class GpuVideoFp8Test : public GpuVideoFastPathTest {
 protected:
  void SetUp() override {
    GpuVideoFastPathTest::SetUp();
    if (!IsSkipped() && !ops::Fp8::possible(kGpu)) {
      GTEST_SKIP() << "this GPU has no fp8 products";
    }
  }
};

TEST_P(GpuVideoFp8Test, StaysNearTheReference) {
  const ops::NamedResults exact = plain_results(GetParam(), at::kFloat);
  const ops::NamedResults plain = plain_results(GetParam(), at::kBFloat16);
  for (const ops::Fp8Scaling scaling : {ops::Fp8Scaling::kDelayed, ops::Fp8Scaling::kCurrent}) {
    for (const ops::Recompute level : kLevels) {
      const std::string how = "scaling " + std::to_string(static_cast<int>(scaling)) + ", level " +
                              std::to_string(static_cast<int>(level));
      RandomClips fast(GetParam(), kGpu, at::kBFloat16);
      const auto kernels = gpu_kernels(at::kBFloat16);
      kernels->use_fp8(std::make_unique<ops::Fp8>(fast.model().num_fast_linears(), kGpu, scaling));
      fast.model().use_fast_path(kernels, level);
      fast.overwrite_gradients();
      if (scaling == ops::Fp8Scaling::kDelayed) {
        fast.step();
        ops::expect_as_near(exact, plain, fast.results(), how + ", measuring", kStreamSlack);
      }
      for (const int64_t passes : {1, 2}) {
        fast.step(passes);
        const ops::NamedResults results = fast.results(1.0 / static_cast<double>(passes));
        ops::expect_relative({exact[0]}, {results[0]}, kFp8OutputTolerance, how);
        ops::expect_relative(exact, results, kFp8Tolerance, how);
      }
      EXPECT_NE(kernels->describe().find("100 % of the blocks' arithmetic"), std::string::npos)
          << kernels->describe();
    }
  }
}

// By scales of the tensors themselves, so that steps are alike.
TEST_P(GpuVideoFp8Test, OffloadedActivationsAreTheSameBits) {
  RandomClips clips(GetParam(), kGpu, at::kBFloat16);
  const auto kernels = gpu_kernels(at::kBFloat16);
  kernels->use_fp8(std::make_unique<ops::Fp8>(clips.model().num_fast_linears(), kGpu,
                                              ops::Fp8Scaling::kCurrent));
  for (const ops::Recompute level : kLevels) {
    clips.model().use_fast_path(kernels, level);
    clips.overwrite_gradients();
    clips.step();
    const ops::NamedResults near = clips.results();
    clips.model().offload_activations(2, kGpu);
    clips.step();
    EXPECT_GT(clips.model().offloaded_activation_bytes(), 0);
    ops::expect_same(near, clips.results(), "level " + std::to_string(static_cast<int>(level)));
    clips.model().offload_activations(0, kGpu);
  }
}

// A run's first pass measures; runs are the same bits whatever was drawn before.
TEST_P(GpuVideoFp8Test, SamplesNearTheReference) {
  const ops::NamedResults exact = RandomClips(GetParam(), kGpu, at::kFloat).sample();
  RandomClips in_16_bits(GetParam(), kGpu, at::kBFloat16);
  in_16_bits.model().use_fast_path(gpu_kernels(at::kBFloat16));
  RandomClips clips(GetParam(), kGpu, at::kBFloat16);
  const auto kernels = gpu_kernels(at::kBFloat16);
  kernels->use_fp8(std::make_unique<ops::Fp8>(clips.model().num_fast_linears(), kGpu,
                                              ops::Fp8Scaling::kDelayed, ops::Fp8Use::kSampling));
  clips.model().use_fast_path(kernels);
  ASSERT_TRUE(clips.model().can_sample_in_fp8());
  std::vector<ops::NamedResults> second;
  for (int run = 0; run < 2; ++run) {
    (void)clips.prepared();
    ops::expect_relative(exact, clips.sample(), kFp8OutputTolerance, "measuring");
    second.push_back(clips.sample());
    ops::expect_relative(exact, second.back(), kFp8OutputTolerance, "in fp8");
    EXPECT_GT(ops::error_of(second.back()[0].value, in_16_bits.sample()[0].value).largest, 0.0);
  }
  ops::expect_same(second[0], second[1], "another run");
  // Not all arithmetic: keys and values of the first run's text are made before its first pass.
  const std::string used = kernels->describe();
  std::smatch linears;
  ASSERT_TRUE(std::regex_search(used, linears, std::regex("([0-9]+) of ([0-9]+) linears"))) << used;
  EXPECT_EQ(linears[1], linears[2]) << used;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Small, GpuVideoFastPathTest, testing::ValuesIn(kClipCases), kName);
INSTANTIATE_TEST_SUITE_P(Fp8, GpuVideoFp8Test, testing::ValuesIn(kFp8Cases), kName);
INSTANTIATE_TEST_SUITE_P(Large, GpuVideoFastPathTest, testing::ValuesIn(kLargeCases), kName);

}  // namespace gpu_video_fast_path_test
}  // namespace kinora::models
