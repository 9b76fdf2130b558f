// Both paths of the models of clips and captions on the CPU, where the fast one is composed of ATen
// calls: what is tested are the functions' backwards and their places in the models.
// gpu_video_fast_path_test.cc does the same with the kernels.

#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/random_clips.h"

namespace kinora::models {
namespace {

// Sums of up to a few thousand fp32 numbers in another order.
constexpr double kFp32Tolerance = 2e-5;

std::shared_ptr<ops::BlockKernels> cpu_kernels(at::ScalarType type,
                                               const ops::KernelOptions& options = {}) {
  return std::make_shared<ops::BlockKernels>(options, at::kCPU, type, false);
}

class VideoFastPathTest : public testing::TestWithParam<ClipCase> {};

TEST_P(VideoFastPathTest, EqualsThePlainPath) {
  RandomClips plain(GetParam(), at::kCPU, at::kFloat);
  plain.step();
  for (const int64_t recompute : {0, 1, 2}) {
    RandomClips fast(GetParam(), at::kCPU, at::kFloat);
    fast.model().set_recompute(recompute);
    fast.model().use_fast_path(cpu_kernels(at::kFloat));
    fast.step();
    ops::expect_near(plain.results(), fast.results(), kFp32Tolerance,
                     "recomputing " + std::to_string(recompute));
  }
  RandomClips fast(GetParam(), at::kCPU, at::kFloat);
  fast.model().use_fast_path(cpu_kernels(at::kFloat, {.attention = ops::Switch::kOff}),
                             ops::Recompute::kBlock);
  fast.step();
  ops::expect_near(plain.results(), fast.results(), kFp32Tolerance, "recomputing all");
  ops::expect_near(plain.sample(), fast.sample(), kFp32Tolerance, "without gradients");
}

TEST_P(VideoFastPathTest, IsAsNearToFp32AsThePlainPathInBf16) {
  RandomClips exact(GetParam(), at::kCPU, at::kFloat);
  RandomClips plain(GetParam(), at::kCPU, at::kBFloat16);
  RandomClips fast(GetParam(), at::kCPU, at::kBFloat16);
  fast.model().use_fast_path(cpu_kernels(at::kBFloat16));
  for (RandomClips* clips : {&exact, &plain, &fast}) {
    clips->step();
  }
  ops::expect_as_near(exact.results(), plain.results(), fast.results(), "", kStreamSlack);
}

TEST_P(VideoFastPathTest, GradientsOfTwoPassesAddUpAndOldOnesGo) {
  RandomClips plain(GetParam(), at::kCPU, at::kFloat);
  plain.step();
  RandomClips fast(GetParam(), at::kCPU, at::kFloat);
  fast.model().use_fast_path(cpu_kernels(at::kFloat));
  fast.overwrite_gradients();
  for (const int64_t passes : {1, 2}) {
    fast.step(passes);
    ops::expect_near(plain.results(), fast.results(1.0 / static_cast<double>(passes)),
                     kFp32Tolerance, std::to_string(passes) + " passes");
  }
}

TEST_P(VideoFastPathTest, GivesWayToTaps) {
  RandomClips plain(GetParam(), at::kCPU, at::kFloat);
  RandomClips tapped(GetParam(), at::kCPU, at::kFloat);
  tapped.model().use_fast_path(cpu_kernels(at::kFloat));
  int64_t outputs = 0;
  tapped.model().set_tap([&outputs](const std::string& /*path*/, const at::Tensor& output) {
    ++outputs;
    return output;
  });
  ops::expect_same(plain.sample(), tapped.sample(), "tapped");
  EXPECT_GT(outputs, 20);
}

INSTANTIATE_TEST_SUITE_P(Cases, VideoFastPathTest, testing::ValuesIn(kClipCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(VideoFastPathConfigTest, OnlyWholeBlocksAreRecomputed) {
  RandomClips clips(kClipCases[0], at::kCPU, at::kFloat);
  EXPECT_GT(clips.model().num_fast_linears(), 0);
  const auto refusal = error_of(ErrorKind::kConfig, [&] {
    clips.model().use_fast_path(cpu_kernels(at::kFloat), ops::Recompute::kMlp);
    return 0;
  });
  EXPECT_NE(refusal.find("keep all or only their input"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace kinora::models
