// Samples in patches with kept keys and values, in every transformer that can and by both paths,
// against passes over all tokens.

#include "kinora/models/transformers/patch_sequence.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "tests/error_of.h"
#include "tests/models/transformers/random_clips.h"
#include "tests/models/transformers/stale_tokens.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace patch_sequence_test {

using testing::HasSubstr;

constexpr int64_t kSteps = 4;
constexpr int64_t kWarmup = 2;
// Of 15 tokens of a frame and 11 of a text: 3 or 4, and 2 or 3.
constexpr int64_t kPatches = 4;

/// Each way in which tokens meet: in frames, in clips, with those of a text, of several pictures.
std::vector<ClipCase> cases() {
  std::vector<ClipCase> all;
  for (const ClipCase& c : kClipCases) {
    constexpr const char* kChosen[] = {"stdit_given_frames",
                                       "stdit2",
                                       "stdit3",
                                       "pixart",
                                       "vdit",
                                       "latte_t2v",
                                       "sd3_second_attention",
                                       "flux",
                                       "open_sora2_references",
                                       "hunyuan_video",
                                       "wan_given_frames",
                                       "wan_pictures"};
    if (std::ranges::count(kChosen, std::string_view(c.name)) > 0) {
      all.push_back(c);
    }
  }
  all.push_back(
      {.name = "cogvideox", .architecture = "cogvideox", .frames = 2, .hidden = 64, .heads = 4});
  all.push_back({.name = "ltx_video",
                 .architecture = "ltx_video",
                 .frames = 3,
                 .gives_frames = true,
                 .hidden = 48,
                 .heads = 4,
                 .patch = 1});
  return all;
}

class DefinedClips : public RandomClips {
 public:
  explicit DefinedClips(const ClipCase& c) : RandomClips(c, at::kCPU, at::kFloat) {}

  /// sample_steps() by the definition.
  [[nodiscard]] ops::NamedResults steps() {
    const at::NoGradGuard no_grad;
    const auto tokens = std::make_shared<StaleTokens>();
    model().use_sequence(tokens);
    ops::NamedResults results;
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor times = t().narrow(0, 0, 1).repeat({t().size(0)}) - 0.05 * step;
      results.push_back({"step " + std::to_string(step),
                         tokens->evaluate(model(), step < kWarmup ? 1 : kPatches,
                                          (1.0 - 0.02 * step) * x_t(), times, conditions())});
    }
    return results;
  }
};

class PatchSequenceTest : public testing::TestWithParam<ClipCase> {};

TEST_P(PatchSequenceTest, ComputesWhatPassesOverAllTokensDo) {
  RandomClips plain(GetParam(), at::kCPU, at::kFloat);
  RandomClips fast(GetParam(), at::kCPU, at::kFloat);
  if (fast.model().has_fast_path()) {
    fast.model().use_fast_path(
        std::make_shared<ops::BlockKernels>(ops::KernelOptions{}, at::kCPU, at::kFloat, false));
  }
  const ops::NamedResults whole = plain.sample_steps(kSteps);
  const diffusion::StepCacheConfig patches{.patches = kPatches, .patch_warmup = kWarmup};
  plain.model().use_step_cache(patches);
  fast.model().use_step_cache(patches);

  const ops::NamedResults expected = DefinedClips(GetParam()).steps();
  const ops::NamedResults drawn = plain.sample_steps(kSteps);
  ops::expect_near(expected, drawn, tolerance::kOtherOrder, "plain");
  ops::expect_near(expected, fast.sample_steps(kSteps), tolerance::kOtherOrderOfBranches, "fast");
  if (fast.prepared().any()) {
    ops::expect_near(expected, fast.sample_steps(kSteps, /*prepares=*/true),
                     tolerance::kOtherOrderOfBranches, "prepared");
  }
  ops::expect_same({whole[0]}, {drawn[0]}, "nothing is kept yet");
  ops::expect_near({whole[1]}, {drawn[1]}, tolerance::kOtherOrder, "the last of the warm-up");
  for (size_t step = kWarmup; step < kSteps; ++step) {  // the comparison above can fail
    EXPECT_GT(ops::error_of(drawn[step].value, whole[step].value).largest,
              10 * tolerance::kOtherOrder);
  }
  const diffusion::StepCacheUse use = plain.model().step_cache_use();
  EXPECT_EQ(use.evaluations, kSteps);
  EXPECT_EQ(use.in_patches, kSteps - kWarmup);
  EXPECT_GT(use.most_bytes, 0);

  plain.model().use_step_cache({});
  ops::expect_same(whole, plain.sample_steps(kSteps), "whole again");
}

INSTANTIATE_TEST_SUITE_P(All, PatchSequenceTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

std::string refusal(const ClipCase& c, const diffusion::StepCacheConfig& patches) {
  const std::unique_ptr<Model> model = make_model(c.config());
  return error_of(ErrorKind::kConfig, [&] { model->use_step_cache(patches); });
}

TEST(PatchSequenceRefusalTest, NamesWhatHasNoPatches) {
  const diffusion::StepCacheConfig patches{.patches = 2};
  for (const ClipCase& c : kClipCases) {
    if (c.windows || c.sliding_window || c.kv_compress || c.clean_first) {
      EXPECT_THAT(refusal(c, patches), HasSubstr(c.kv_compress   ? "compressed keys and values"
                                                 : c.clean_first ? "model.clean_first_frame"
                                                                 : "attention in windows"));
    }
  }
  EXPECT_THAT(
      refusal(kClipCases[0], {.kind = diffusion::StepCacheConfig::Kind::kPab, .patches = 2}),
      HasSubstr("sample.cache would leave out some"));
}

TEST(PatchSequenceRefusalTest, TooFewTokens) {
  RandomClips clips(kClipCases[0], at::kCPU, at::kFloat);  // 15 of a frame
  clips.model().use_step_cache({.patches = 16});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)clips.sample_steps(2); }),
              HasSubstr("sample.patches must be at most 15"));
}

}  // namespace patch_sequence_test
}  // namespace kinora::models
