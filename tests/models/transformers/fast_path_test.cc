// Both paths of a DiT on the CPU, where the fast one is composed of ATen calls: what is tested is
// the written-out backward. gpu_fast_path_test.cc does the same with the kernels.

#include <gtest/gtest.h>

#include "tests/models/transformers/random_dit.h"

namespace kinora::models {
namespace fast_path_test {

// Sums of up to a few thousand fp32 numbers in another order.
constexpr double kFp32Tolerance = 1e-5;

constexpr Geometry kGeometries[] = {
    {.hidden = 144, .heads = 2, .batch = 1, .rows = 3, .columns = 7},
    {.hidden = 128, .heads = 2, .batch = 5, .rows = 3, .columns = 3},
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
        kFp32Tolerance, recomputation.name);
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
                        recomputation.name);
  }
}

TEST_P(FastPathTest, OverwrittenGradientsOfTwoPassesAddUp) {
  const ops::NamedResults plain = plain_results(GetParam(), at::kCPU, at::kFloat);
  RandomDiT fast(GetParam(), at::kCPU, at::kFloat);
  fast.model.use_fast_path(cpu_kernels(at::kFloat));
  fast.overwrite_gradients();
  for (const int64_t passes : {1, 2}) {
    fast.step(passes);
    ops::expect_near(plain, fast.results(1.0 / static_cast<double>(passes)), kFp32Tolerance,
                     std::to_string(passes) + " passes");
  }
}

TEST_P(FastPathTest, SamplesAsThePlainPathDoes) {
  RandomDiT plain(GetParam(), at::kCPU, at::kFloat);
  RandomDiT fast(GetParam(), at::kCPU, at::kFloat);
  fast.model.use_fast_path(cpu_kernels(at::kFloat));
  ops::expect_near(plain.sample(), fast.sample(), kFp32Tolerance, "in one");
  ops::expect_near(plain.sample(), fast.sample_prepared(), kFp32Tolerance, "prepared");
}

INSTANTIATE_TEST_SUITE_P(Sizes, FastPathTest, testing::ValuesIn(kGeometries),
                         [](const auto& info) { return info.param.name(); });

}  // namespace fast_path_test
}  // namespace kinora::models
