// Both paths of a DiT on the CPU, where the fast one is composed of ATen calls: what is tested is
// the written-out backward. gpu_fast_path_test.cc does the same with the kernels.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/models/transformers/random_dit.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace fast_path_test {

constexpr Geometry kGeometries[] = {
    {.hidden = 144, .heads = 2, .batch = 1, .rows = 3, .columns = 7},
    {.hidden = 128, .heads = 2, .batch = 5, .rows = 3, .columns = 3},
    {.hidden = 128, .heads = 2, .batch = 5, .rows = 3, .columns = 3, .tuned = true},
    {.hidden = 128, .heads = 2, .batch = 5, .rows = 3, .columns = 3, .rank = 8},
};

std::shared_ptr<ops::BlockKernels> cpu_kernels(at::ScalarType type) {
  return std::make_shared<ops::BlockKernels>(ops::KernelOptions(), at::kCPU, type, false);
}

class FastPathTest : public testing::TestWithParam<Geometry> {};

TEST_P(FastPathTest, EqualsThePlainPathAtEveryRecomputation) {
  const ops::NamedResults plain = plain_results(GetParam(), at::kCPU, at::kFloat);
  for (const Recomputation& recomputation : kRecomputations) {
    ops::expect_near(
        plain,
        fast_results(GetParam(), at::kCPU, at::kFloat, cpu_kernels(at::kFloat), recomputation),
        tolerance::kOtherOrder, recomputation.name);
  }
}

// The comparison that the kernels are held to: it holds for a path that is known to be right.
TEST_P(FastPathTest, IsAsNearToFp32AsThePlainPathInBf16) {
  const ops::NamedResults exact = plain_results(GetParam(), at::kCPU, at::kFloat);
  const ops::NamedResults plain = plain_results(GetParam(), at::kCPU, at::kBFloat16);
  for (const Recomputation& recomputation : kRecomputations) {
    ops::expect_as_near(exact, plain,
                        fast_results(GetParam(), at::kCPU, at::kBFloat16,
                                     cpu_kernels(at::kBFloat16), recomputation),
                        recomputation.name, GetParam().slack());
  }
}

TEST_P(FastPathTest, OverwrittenGradientsOfTwoPassesAddUp) {
  const ops::NamedResults plain = plain_results(GetParam(), at::kCPU, at::kFloat);
  RandomDiT fast(GetParam(), at::kCPU, at::kFloat);
  fast.model().use_fast_path(cpu_kernels(at::kFloat));
  fast.overwrite_gradients();
  for (const int64_t passes : {1, 2}) {
    fast.step(passes);
    ops::expect_near(plain, fast.results(1.0 / static_cast<double>(passes)), tolerance::kOtherOrder,
                     std::to_string(passes) + " passes");
  }
}

TEST_P(FastPathTest, PassesInFlightEqualPassesOneAfterTheOther) {
  for (const bool is_fast : {false, true}) {
    for (const Recomputation& recomputation : kRecomputations) {
      const auto dit = [&] {
        auto result = std::make_unique<RandomDiT>(GetParam(), at::kCPU, at::kFloat);
        result->model().set_recompute(recomputation.blocks);
        if (is_fast) {
          result->model().use_fast_path(cpu_kernels(at::kFloat), recomputation.level);
          result->model().offload_activations(recomputation.offloaded, at::kCPU);
          result->overwrite_gradients();
        }
        return result;
      };
      const auto one_by_one = dit();
      const auto in_flight = dit();
      one_by_one->step_of_unlike_passes(3, /*in_flight=*/false);
      in_flight->step_of_unlike_passes(3, /*in_flight=*/true);
      ops::expect_same(one_by_one->results(), in_flight->results(), recomputation.name);
    }
  }
}

TEST_P(FastPathTest, WhatIsOffloadedChangesNoBit) {
  for (const auto& [level, blocks] :
       {std::pair(ops::Recompute::kNone, 0), std::pair(ops::Recompute::kMlp, 0),
        std::pair(ops::Recompute::kNone, 2)}) {
    const auto results = [&, own_level = level, own_blocks = blocks](int64_t offloaded) {
      return fast_results(GetParam(), at::kCPU, at::kFloat, cpu_kernels(at::kFloat),
                          {"", own_level, own_blocks, offloaded});
    };
    ops::expect_same(results(0), results(2), "level " + std::to_string(static_cast<int>(level)));
  }
}

TEST_P(FastPathTest, PassesInFlightHaveTheirOwnPlacesAtTheHost) {
  RandomDiT dit(GetParam(), at::kCPU, at::kFloat);
  dit.model().use_fast_path(cpu_kernels(at::kFloat));
  dit.model().offload_activations(2, at::kCPU);
  EXPECT_EQ(dit.model().offloaded_activation_bytes(), 0);
  dit.step_of_unlike_passes(3, /*in_flight=*/false);
  const int64_t of_one = dit.model().offloaded_activation_bytes();
  EXPECT_GT(of_one, 0);
  for (int step = 0; step < 2; ++step) {
    dit.step_of_unlike_passes(3, /*in_flight=*/true);
    EXPECT_EQ(dit.model().offloaded_activation_bytes(), 3 * of_one);
  }
}

TEST_P(FastPathTest, SamplesAsThePlainPathDoes) {
  RandomDiT plain(GetParam(), at::kCPU, at::kFloat);
  RandomDiT fast(GetParam(), at::kCPU, at::kFloat);
  fast.model().use_fast_path(cpu_kernels(at::kFloat));
  ops::expect_near(plain.sample(), fast.sample(), tolerance::kOtherOrder, "in one");
  ops::expect_near(plain.sample(), fast.sample_prepared(), tolerance::kOtherOrder, "prepared");
}

INSTANTIATE_TEST_SUITE_P(Sizes, FastPathTest, testing::ValuesIn(kGeometries),
                         [](const auto& info) { return info.param.name(); });

}  // namespace fast_path_test
}  // namespace kinora::models
