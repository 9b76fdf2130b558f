// Both paths of the models of clips and captions on the CPU, where the fast one is composed of ATen
// calls: what is tested are the functions' backwards and their places in the models.
// gpu_video_fast_path_test.cc does the same with the kernels.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/models/transformers/random_clips.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace video_fast_path_test {

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
    ops::expect_near(plain.results(), fast.results(), tolerance::kOtherOrderOfBranches,
                     "recomputing " + std::to_string(recompute));
  }
  RandomClips fast(GetParam(), at::kCPU, at::kFloat);
  fast.model().use_fast_path(cpu_kernels(at::kFloat, {.attention = ops::Switch::kOff}),
                             ops::Recompute::kBlock);
  fast.step();
  ops::expect_near(plain.results(), fast.results(), tolerance::kOtherOrderOfBranches,
                   "recomputing all");
  ops::expect_near(plain.sample(), fast.sample(), tolerance::kOtherOrderOfBranches,
                   "without gradients");
}

TEST_P(VideoFastPathTest, WhatIsPreparedChangesNoBit) {
  RandomClips clips(GetParam(), at::kCPU, at::kFloat);
  const diffusion::Prepared states = clips.prepared().at_time(0);
  EXPECT_EQ(states.any(), GetParam().has_words) << "the plain path has no use for anything else";
  ops::expect_same(clips.sample_at_first_time({}), clips.sample_at_first_time(states),
                   "prepared, on the plain path");
  clips.model().use_fast_path(cpu_kernels(at::kFloat));
  const diffusion::Prepared prepared = clips.prepared().at_time(0);
  const bool reads_text = family_of(clips.model().config()).conditions.text;
  EXPECT_EQ(prepared.any(), reads_text);
  if (reads_text) {
    diffusion::Prepared other = prepared;
    other.of_times = 2.0 * other.of_times;
    for (at::Tensor& text : other.of_texts) {
      text = 2.0 * text;
    }
    EXPECT_FALSE(at::equal(clips.sample_at_first_time(other)[0].value,
                           clips.sample_at_first_time(prepared)[0].value))
        << "it is read";
  }
  ops::expect_same(clips.sample_at_first_time({}), clips.sample_at_first_time(prepared),
                   "prepared");
}

TEST_P(VideoFastPathTest, WhatIsComputedAgainChangesNoBit) {
  RandomClips keeping(GetParam(), at::kCPU, at::kFloat);
  keeping.model().use_fast_path(cpu_kernels(at::kFloat));
  keeping.step(2);
  for (const ops::Recompute level : {ops::Recompute::kElementwise, ops::Recompute::kMlp}) {
    RandomClips clips(GetParam(), at::kCPU, at::kFloat);
    clips.model().use_fast_path(cpu_kernels(at::kFloat), level);
    clips.step(2);
    ops::expect_same(keeping.results(), clips.results(),
                     level == ops::Recompute::kMlp ? "mlp" : "elementwise");
  }
}

// Of two blocks one goes and comes back.
TEST_P(VideoFastPathTest, WhatIsOffloadedChangesNoBit) {
  for (const ops::Recompute level : {ops::Recompute::kNone, ops::Recompute::kBlock}) {
    const auto results = [level](int64_t offloaded) {
      RandomClips clips(GetParam(), at::kCPU, at::kFloat);
      clips.model().use_fast_path(cpu_kernels(at::kFloat), level);
      clips.model().offload_activations(offloaded, at::kCPU);
      clips.step_of_unlike_passes(2, /*in_flight=*/true);
      EXPECT_EQ(clips.model().offloaded_activation_bytes() > 0, offloaded > 0);
      return clips.results();
    };
    ops::expect_same(results(0), results(2), "level " + std::to_string(static_cast<int>(level)));
  }
}

// As docs/video.md says; fp32 on the CPU.
TEST_P(VideoFastPathTest, LevelsKeepLess) {
  RandomClips clips(GetParam(), at::kCPU, at::kFloat);
  const auto kept_at = [&](ops::Recompute level) {
    clips.model().use_fast_path(cpu_kernels(at::kFloat), level);
    return clips.bytes_kept();
  };
  if (GetParam().sliding_window) {
    (void)kept_at(ops::Recompute::kNone);  // makes the mask, which stays
  }
  const int64_t all = kept_at(ops::Recompute::kNone);
  const ModelConfig& config = clips.model().config();
  const bool has_pairs = config.architecture == "stdit3" || config.architecture == "latte_t2v";
  const int64_t num_blocks = has_pairs ? 4 : 2;
  const ModelShape shape = shape_of(config);
  const int64_t text = config.architecture == "cogvideox" ? config.text_tokens : 0;  // of a stream
  const auto tokens = static_cast<double>(
      GetParam().batch * (shape.frames * shape.tokens_a_frame() + text) * num_blocks);
  // What the first block of STDiT reads through time: tokens with their positions.
  const double with_positions =
      config.architecture == "stdit" ? tokens / static_cast<double>(num_blocks) : 0.0;
  const auto saved = [&](ops::Recompute level) {
    return static_cast<double>(all - kept_at(level)) /
           static_cast<double>(config.transformer.hidden * static_cast<int64_t>(sizeof(float)));
  };
  // Frozen linears keep no inputs in the first place, and a stream of text has tokens of its own.
  if (GetParam().tuned || GetParam().joint) {
    if (GetParam().joint) {
      EXPECT_GT(saved(ops::Recompute::kElementwise), GetParam().elementwise * tokens);
      EXPECT_GT(saved(ops::Recompute::kMlp), saved(ops::Recompute::kElementwise));
      return;
    }
    EXPECT_LT(saved(ops::Recompute::kElementwise), GetParam().elementwise * tokens);
    EXPECT_GT(saved(ops::Recompute::kMlp), saved(ops::Recompute::kElementwise));
    return;
  }
  EXPECT_DOUBLE_EQ(saved(ops::Recompute::kElementwise),
                   GetParam().elementwise * tokens + with_positions);
  EXPECT_DOUBLE_EQ(saved(ops::Recompute::kMlp),
                   (GetParam().elementwise + 4.0) * tokens + with_positions);
}

TEST_P(VideoFastPathTest, IsAsNearToFp32AsThePlainPathInBf16) {
  RandomClips exact(GetParam(), at::kCPU, at::kFloat);
  RandomClips plain(GetParam(), at::kCPU, at::kBFloat16);
  exact.step();
  plain.step();
  for (const ops::Recompute level : {ops::Recompute::kNone, ops::Recompute::kMlp}) {
    RandomClips fast(GetParam(), at::kCPU, at::kBFloat16);
    fast.model().use_fast_path(cpu_kernels(at::kBFloat16), level);
    fast.step();
    ops::expect_as_near(exact.results(), plain.results(), fast.results(), "",
                        kStreamSlack * (GetParam().tuned ? kTunedSlack : 1.0));
  }
}

TEST_P(VideoFastPathTest, PassesInFlightEqualPassesOneAfterTheOther) {
  for (const bool is_fast : {false, true}) {
    for (const int64_t recompute : is_fast ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1}) {
      const auto results = [&](bool in_flight) {
        RandomClips clips(GetParam(), at::kCPU, at::kFloat);
        clips.model().set_recompute(recompute);
        if (is_fast) {
          clips.model().use_fast_path(cpu_kernels(at::kFloat));
          clips.overwrite_gradients();
        }
        clips.step_of_unlike_passes(3, in_flight);
        return clips.results();
      };
      ops::expect_same(
          results(false), results(true),
          (is_fast ? "fast, recomputing " : "plain, recomputing ") + std::to_string(recompute));
    }
  }
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
                     tolerance::kOtherOrderOfBranches, std::to_string(passes) + " passes");
  }
}

// As where ranks divide weights: those of a bucket are there while it is used, and not else.
TEST_P(VideoFastPathTest, ReadsABucketOnlyWhileItIsUsed) {
  RandomClips whole(GetParam(), at::kCPU, at::kFloat);
  whole.model().use_fast_path(cpu_kernels(at::kFloat));
  const ops::NamedResults sample = whole.sample();
  RandomClips clips(GetParam(), at::kCPU, at::kFloat);
  clips.model().use_fast_path(cpu_kernels(at::kFloat));
  std::map<std::string, at::Tensor> values;
  std::map<std::string, at::Tensor> copies;
  for (const auto& [path, parameter] : clips.model().named_parameters()) {
    values[path] = parameter->value.detach();
    copies[path] = values[path].clone();
  }
  const std::vector<nn::BucketSpec> buckets = clips.model().buckets();
  const auto set = [&](int64_t bucket, bool is_there) {
    const at::NoGradGuard no_grad;
    for (const std::string& path : buckets[static_cast<size_t>(bucket)].parameters) {
      if (is_there) {
        values[path].copy_(copies[path]);
      } else {
        values[path].fill_(std::numeric_limits<double>::quiet_NaN());
      }
    }
  };
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets[i].ring.empty()) {
      set(static_cast<int64_t>(i), false);
    }
  }
  clips.model().tell_buckets([&](ops::BucketMoment moment, int64_t bucket) {
    set(bucket, moment == ops::BucketMoment::kBeforeForward ||
                    moment == ops::BucketMoment::kBeforeBackward);
  });
  ops::expect_same(sample, clips.sample(), "without gradients");
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

}  // namespace video_fast_path_test
}  // namespace kinora::models
