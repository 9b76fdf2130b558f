// Where image to image begins and where its steps lead, against diffusers
// (tools/reference/make_img2img_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/pipelines/sampling_config.h"
#include "tests/diffusion/recorded_loops.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace partial_sampler_test {

using Method = SamplingConfig::Method;
using testing::HasSubstr;

constexpr int64_t kSteps = 10;
constexpr double kStrength = 0.64;  // the last 6

/// The denoiser of recorded_loops.h.
class Recorded final : public diffusion::Denoiser {
  at::Tensor predict(const at::Tensor& x, const at::Tensor& t,
                     const diffusion::Conditions& /*conditions*/,
                     const diffusion::Pass& /*pass*/) override {
    return diffusion::denoised(x, t[0].item<double>(), false);
  }
};

struct Case {
  std::string name;
  SamplingConfig config;
};

std::vector<Case> cases() {
  using diffusion::Spacing;
  const auto of = [](Method method, Spacing spacing) {
    return SamplingConfig{.method = method, .steps = kSteps, .spacing = spacing, .guidance = 1.0};
  };
  return {{"ddim", of(Method::kDdim, Spacing::kLeading)},
          {"dpm++", of(Method::kDpm, Spacing::kLinspace)},
          {"unipc", of(Method::kUniPc, Spacing::kLinspace)},
          {"euler", of(Method::kEuler, Spacing::kLinspace)},
          {"heun", of(Method::kHeun, Spacing::kLinspace)},
          {"flow", of(Method::kAuto, Spacing::kDit)}};
}

diffusion::Objective objective_of(const std::string& name) {
  return name == "flow" ? diffusion::Objective(diffusion::RectifiedFlow{.schedule = {.shift = 3.0}})
                        : diffusion::Objective(diffusion::Iddpm(1000, /*learned_variance=*/false));
}

TEST(PartialSamplerTest, StepsAreThoseOfDiffusers) {
  const auto file =
      checkpoint::WeightsFile::open(source_path("tests/pipelines/data/img2img.safetensors"));
  const at::Tensor data = diffusion::start();
  const at::Tensor noise = diffusion::noise(0);
  for (const auto& [name, config] : cases()) {
    const PartialSampler partial = make_partial_sampler(config, objective_of(name), 1.0, kStrength);
    const at::Tensor begin = partial.alpha * data + partial.sigma * noise;
    const at::Tensor begins = file.read(name + ".begin");
    EXPECT_LT(((begin - begins).norm() / begins.norm()).item<double>(), 2e-5) << name;
    Recorded denoiser;
    const at::Tensor end = diffusion::sample(
        denoiser, partial.sampler, data.sizes(), {}, {.scale = 1.0},
        {.seed = 1, .sample_index = at::arange(2, at::kLong)}, at::kCPU, {},
        {.noise = noise, .data = data, .alpha = partial.alpha, .sigma = partial.sigma});
    const at::Tensor ends = file.read(name + ".end");
    EXPECT_LT(((end - ends).abs().max() / ends.abs().max()).item<double>(), 1e-4) << name;
  }
}

TEST(PartialSamplerTest, AllOfTheStepsAreTheSampler) {
  for (const auto& [name, config] : cases()) {
    const diffusion::Objective objective = objective_of(name);
    EXPECT_EQ(diffusion::num_steps(make_partial_sampler(config, objective, 1.0, 1.0).sampler),
              diffusion::num_steps(make_sampler(config, objective)))
        << name;
  }
  for (const Method method : {Method::kDdpm, Method::kPlms, Method::kLcm}) {
    const SamplingConfig config{.method = method, .steps = kSteps};
    const PartialSampler partial = make_partial_sampler(config, objective_of("chain"), 1.0, 0.35);
    EXPECT_EQ(diffusion::num_steps(partial.sampler), method == Method::kPlms ? 4 : 3);
    EXPECT_NEAR(partial.alpha * partial.alpha + partial.sigma * partial.sigma, 1.0, 1e-12);
  }
}

TEST(PartialSamplerTest, AStepMustBeLeft) {
  const auto refusal = [](double strength) {
    return error_of(ErrorKind::kConfig, [&] {
      return make_partial_sampler({.steps = kSteps}, objective_of("flow"), 1.0, strength).alpha;
    });
  };
  EXPECT_THAT(refusal(0.0), HasSubstr("above 0"));
  EXPECT_THAT(refusal(1.5), HasSubstr("got 1.5"));
  EXPECT_THAT(refusal(0.05), HasSubstr("at least one of 10 steps"));
}

TEST(SampleStartTest, NoiseAndDataMustHaveTheRunsShape) {
  Recorded denoiser;
  const diffusion::Sampler sampler = make_sampler({.steps = 2}, objective_of("flow"));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return diffusion::sample(
                             denoiser, sampler, {1, 3, 2, 2}, {}, {.scale = 1.0},
                             {.seed = 1, .sample_index = at::arange(1, at::kLong)}, at::kCPU, {},
                             {.noise = diffusion::noise(0)});
                       }),
              HasSubstr("must have its shape"));
}

}  // namespace partial_sampler_test
}  // namespace kinora::pipelines
