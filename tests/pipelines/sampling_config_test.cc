#include "kinora/pipelines/sampling_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/config.h"
#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace {

using Method = SamplingConfig::Method;
using testing::HasSubstr;

const diffusion::Objective& learned() {
  static const diffusion::Objective kObjective = diffusion::Iddpm(1000, true);
  return kObjective;
}
const diffusion::Objective& fixed() {
  static const diffusion::Objective kObjective = diffusion::Iddpm(1000, false);
  return kObjective;
}
const diffusion::Objective& flow() {
  static const diffusion::Objective kObjective =
      diffusion::RectifiedFlow{.schedule = {.shift = 3.0}};
  return kObjective;
}

std::string refusal(const SamplingConfig& config, const diffusion::Objective& objective) {
  try {
    (void)make_sampler(config, objective);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(MakeSamplerTest, AutoFollowsTheObjective) {
  const auto of_learned = make_sampler({.steps = 10}, learned());
  ASSERT_TRUE(std::holds_alternative<diffusion::DdpmSampler>(of_learned));
  EXPECT_EQ(std::get<diffusion::DdpmSampler>(of_learned).variance,
            diffusion::Variance::kLearnedRange);
  EXPECT_EQ(diffusion::num_steps(of_learned), 10);
  const auto of_fixed = make_sampler({.steps = 10}, fixed());
  EXPECT_EQ(std::get<diffusion::DdpmSampler>(of_fixed).variance, diffusion::Variance::kFixedLarge);
  const auto of_flow = make_sampler({.steps = 10}, flow());
  ASSERT_TRUE(std::holds_alternative<diffusion::FlowEulerSampler>(of_flow));
  EXPECT_EQ(diffusion::num_steps(of_flow), 10);
}

TEST(MakeSamplerTest, SettingsArrive) {
  const SamplingConfig config{
      .method = Method::kDdim, .steps = 7, .eta = 0.5, .clip_denoised = true};
  const auto sampler = std::get<diffusion::DdimSampler>(make_sampler(config, learned()));
  EXPECT_EQ(sampler.eta, 0.5);
  EXPECT_TRUE(sampler.clip_denoised);
  EXPECT_EQ(sampler.schedule.num_timesteps(), 7);
  // Esser et al. 2024, eq. 23: t' = s t / (1 + (s - 1) t); the middle of two steps is 3/4.
  const auto euler = std::get<diffusion::FlowEulerSampler>(make_sampler({.steps = 2}, flow()));
  ASSERT_EQ(euler.times.size(), 3U);
  EXPECT_DOUBLE_EQ(euler.times[0], 1.0);
  EXPECT_DOUBLE_EQ(euler.times[1], 0.75);
  EXPECT_DOUBLE_EQ(euler.times[2], 0.0);
}

TEST(MakeSamplerTest, MethodsOfTheOtherObjectiveAreRefused) {
  EXPECT_THAT(refusal({.method = Method::kEuler}, learned()), HasSubstr("flow models"));
  EXPECT_THAT(refusal({.method = Method::kDdpm}, flow()), HasSubstr("must be euler"));
  EXPECT_THAT(refusal({.method = Method::kDdim}, flow()), HasSubstr("must be euler"));
  EXPECT_THAT(refusal({.steps = 1001}, learned()), HasSubstr("1001"));
}

struct OnlySampling {
  SamplingConfig sampling;
};

void describe(Fields& fields, OnlySampling& config) {
  const auto scope = fields.scope("sample");
  describe(fields, config.sampling);
}

TEST(SamplingConfigTest, KeysAreCheckedAndParseBack) {
  const auto parse = [](const std::string& text) {
    return parse_config<OnlySampling>({.text = "sample: {" + text + "}", .origin = "test"});
  };
  EXPECT_EQ(parse("method: ddim, eta: 1").sampling.method, Method::kDdim);
  const std::string dumped = dump_config(parse("guidance_interval: [0.25, 0.5], steps: 3"));
  EXPECT_EQ(dump_config(parse_config<OnlySampling>({.text = dumped, .origin = "dump"})), dumped);
  for (const char* wrong :
       {"steps: 0", "eta: 1.5", "guidance: -1", "method: heun", "guidance_interval: [0.5]",
        "guidance_interval: [0.6, 0.5]", "guidance_interval: [-0.1, 0.5]", "spacing: random"}) {
    EXPECT_THROW((void)parse(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace kinora::pipelines
