#include "kinora/pipelines/diffusers_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/error_of.h"

namespace kinora::pipelines {
namespace diffusers_scheduler_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class SchedulerSamplingTest : public testing::Test {
 protected:
  ~SchedulerSamplingTest() override { fs::remove(path_); }

  json recipe(const json& config) {
    std::ofstream(path_) << config;
    return json::parse(sampling_recipe(path_));
  }
  std::string refusal(const json& config) {
    return error_of(ErrorKind::kConfig, [&] { return recipe(config); });
  }

 private:
  fs::path path_ =
      fs::path(testing::TempDir()) / ("scheduler-" + std::to_string(::getpid()) + ".json");
};

TEST_F(SchedulerSamplingTest, MethodAndTimestepsAreTheSchedulers) {
  EXPECT_EQ(recipe({{"_class_name", "DPMSolverMultistepScheduler"},
                    {"algorithm_type", "sde-dpmsolver++"},
                    {"solver_order", 3},
                    {"solver_type", "heun"},
                    {"use_karras_sigmas", true},
                    {"timestep_spacing", "trailing"}}),
            json({{"method", "dpm++_sde"},
                  {"order", 3},
                  {"second_order", "heun"},
                  {"sigmas", "karras"},
                  {"clip_denoised", false},
                  {"spacing", "trailing"},
                  {"steps_offset", 0}}));
  EXPECT_EQ(recipe({{"_class_name", "DDIMScheduler"}, {"steps_offset", 1}}),
            json({{"method", "ddim"},
                  {"sigmas", "timesteps"},
                  {"clip_denoised", true},
                  {"end_clean", true},
                  {"spacing", "leading"},
                  {"steps_offset", 1}}));
  for (const char* name : {"DDIMScheduler", "PNDMScheduler"}) {  // as Stable Diffusion has them
    const json sample =
        recipe({{"_class_name", name}, {"skip_prk_steps", true}, {"set_alpha_to_one", false}});
    EXPECT_EQ(sample["end_clean"], false);
  }
  const json ddpm = recipe({{"_class_name", "DDPMScheduler"},
                            {"thresholding", true},
                            {"sample_max_value", 1.5},
                            {"variance_type", "fixed_large"}});
  EXPECT_EQ(ddpm["variance"], "fixed_large");
  EXPECT_EQ(ddpm["threshold"], 0.995);
  EXPECT_EQ(ddpm["threshold_max"], 1.5);
  EXPECT_EQ(ddpm["clip_denoised"], false);
  EXPECT_EQ(recipe({{"_class_name", "UniPCMultistepScheduler"}})["order"], 2);
  EXPECT_EQ(recipe({{"_class_name", "EulerAncestralDiscreteScheduler"}})["method"],
            "euler_ancestral");
  EXPECT_EQ(recipe({{"_class_name", "LCMScheduler"}})["clip_denoised"], false);
}

TEST_F(SchedulerSamplingTest, WhatKinoraLacksIsRefusedByName) {
  EXPECT_THAT(refusal({{"_class_name", "KDPM2DiscreteScheduler"}}),
              HasSubstr("got \"KDPM2DiscreteScheduler\""));
  const auto of_dpm = [this](const char* key, const json& value) {
    return refusal({{"_class_name", "DPMSolverMultistepScheduler"}, {key, value}});
  };
  EXPECT_THAT(of_dpm("algorithm_type", "dpmsolver"), HasSubstr("got \"dpmsolver\""));
  EXPECT_THAT(of_dpm("euler_at_final", true), HasSubstr("euler_at_final must be false, got true"));
  EXPECT_THAT(of_dpm("use_lu_lambdas", true), HasSubstr("use_lu_lambdas"));
  EXPECT_THAT(of_dpm("lower_order_final", false), HasSubstr("lower_order_final"));
  EXPECT_THAT(of_dpm("final_sigmas_type", "sigma_min"), HasSubstr("sigma_min"));
  EXPECT_THAT(of_dpm("lambda_min_clipped", -5.1), HasSubstr("lambda_min_clipped"));
  EXPECT_THAT(refusal({{"_class_name", "PNDMScheduler"}}), HasSubstr("skip_prk_steps"));
  EXPECT_THAT(refusal({{"_class_name", "UniPCMultistepScheduler"}, {"solver_type", "bh1"}}),
              HasSubstr("bh1"));
}

}  // namespace diffusers_scheduler_test
}  // namespace kinora::pipelines
