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

TEST_F(SchedulerSamplingTest, SolversOfOneClassAreFound) {
  const auto method = [this](const char* name, const json& more = json::object()) {
    json config = {{"_class_name", name}};
    config.update(more);
    return recipe(config);
  };
  const json deis = method("DEISMultistepScheduler", {{"solver_order", 3}, {"thresholding", true}});
  EXPECT_EQ(deis["method"], "deis");
  EXPECT_EQ(deis["order"], 3);
  EXPECT_EQ(deis["end_clean"], false);
  EXPECT_EQ(deis["threshold"], 0.995);
  const json sa = method("SASolverScheduler", {{"predictor_order", 3}, {"corrector_order", 3}});
  EXPECT_EQ(sa["method"], "sa_solver");
  EXPECT_EQ(sa["order"], 3);
  EXPECT_EQ(sa["eta"], 1.0);
  EXPECT_EQ(sa["end_clean"], false);
  const json tcd = method("TCDScheduler", {{"clip_sample", true}});
  EXPECT_EQ(tcd["method"], "tcd");
  EXPECT_EQ(tcd["clip_denoised"], false);
  EXPECT_EQ(method("KDPM2DiscreteScheduler", {{"use_karras_sigmas", true}})["sigmas"], "karras");
  EXPECT_EQ(method("KDPM2AncestralDiscreteScheduler")["method"], "dpm2_ancestral");
  EXPECT_EQ(method("DPMSolverSDEScheduler")["method"], "dpm2_sde");
  EXPECT_EQ(method("IPNDMScheduler", {{"beta_schedule", "linear"}})["method"], "ipndm");
}

TEST_F(SchedulerSamplingTest, AFileWithoutAChainHasThatOfItsClass) {
  const auto chain = [this](const char* name) {
    (void)recipe({{"_class_name", name}});
    return json::parse(objective_recipe(path_));
  };
  EXPECT_EQ(chain("DEISMultistepScheduler")["beta_end"], 0.02);
  EXPECT_EQ(chain("KDPM2DiscreteScheduler")["beta_end"], 0.012);
  EXPECT_EQ(chain("KDPM2DiscreteScheduler")["betas"], "linear");
  EXPECT_EQ(chain("TCDScheduler")["betas"], "scaled_linear");
}

TEST_F(SchedulerSamplingTest, ThoseOfCogVideoXAreRead) {
  const json published = {{"clip_sample", true},  // which they do not read
                          {"prediction_type", "v_prediction"},
                          {"rescale_betas_zero_snr", true},
                          {"timestep_spacing", "trailing"}};
  for (const auto& [name, method] : {std::pair("CogVideoXDDIMScheduler", "ddim"),
                                     {"CogVideoXDPMScheduler", "dpm++_sde_chain"}}) {
    json config = published;
    config["_class_name"] = name;
    EXPECT_EQ(recipe(config), json({{"method", method},
                                    {"sigmas", "timesteps"},
                                    {"clip_denoised", false},
                                    {"end_clean", true},
                                    {"spacing", "trailing"},
                                    {"steps_offset", 0}}));
    const json chain = json::parse(objective_recipe(path_));
    EXPECT_EQ(chain["snr_shift"], 3.0);
    EXPECT_EQ(chain["betas"], "scaled_linear");
    EXPECT_EQ(chain["zero_terminal_snr"], true);
    config["snr_shift_scale"] = 1.0;
    (void)recipe(config);
    EXPECT_EQ(json::parse(objective_recipe(path_))["snr_shift"], 1.0);
  }
  diffusion::ObjectiveConfig objective;
  objective.snr_shift = 3.0;
  const json described = json::parse(describe_scheduler(objective, "0.42.1"));
  EXPECT_EQ(described["_class_name"], "CogVideoXDDIMScheduler");
  EXPECT_EQ(described["snr_shift_scale"], 3.0);
}

// As LTX-Video has it.
TEST_F(SchedulerSamplingTest, AFlowWhoseLastLevelIsSetIsRead) {
  const json sample = recipe({{"_class_name", "FlowMatchEulerDiscreteScheduler"},
                              {"use_dynamic_shifting", true},
                              {"base_shift", 0.95},
                              {"max_shift", 2.05},
                              {"base_image_seq_len", 1024},
                              {"max_image_seq_len", 4096},
                              {"shift_terminal", 0.1}});
  EXPECT_EQ(sample["last_level"], 0.1);
  EXPECT_EQ(sample["spacing"], "dit");
  const json objective = json::parse(objective_recipe(path_));
  EXPECT_EQ(objective["shift_by_tokens"], json({0.95, 2.05}));
  EXPECT_EQ(objective["shift_tokens"], json({1024, 4096}));
}

// As Wan has it.
TEST_F(SchedulerSamplingTest, AFlowOfUniPcIsRead) {
  const json wan = {{"_class_name", "UniPCMultistepScheduler"},
                    {"use_flow_sigmas", true},
                    {"prediction_type", "flow_prediction"},
                    {"flow_shift", 3.0}};
  EXPECT_EQ(recipe(wan), json({{"method", "unipc"}, {"order", 2}, {"whole_timesteps", true}}));
  const json objective = json::parse(objective_recipe(path_));
  EXPECT_EQ(objective["kind"], "flow");
  EXPECT_EQ(objective["shift"], 3.0);
  const auto changed = [&](const char* key, const json& value) {
    json config = wan;
    config[key] = value;
    return config;
  };
  EXPECT_THAT(refusal(changed("disable_corrector", json::array({0}))),
              HasSubstr("disable_corrector must be [], got [0]"));
  EXPECT_THAT(refusal(changed("shift_terminal", 0.1)), HasSubstr("shift_terminal must be null"));
  EXPECT_THAT(refusal(changed("solver_type", "bh1")),
              HasSubstr("solver_type must be \"bh2\", got \"bh1\""));
  for (const auto& [key, value] : {std::pair<const char*, json>("prediction_type", "epsilon"),
                                   {"use_dynamic_shifting", true},
                                   {"num_train_timesteps", 100}}) {
    (void)recipe(changed(key, value));
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return objective_recipe(path_); }),
                HasSubstr(key));
  }
}

TEST_F(SchedulerSamplingTest, WhatKinoraLacksIsRefusedByName) {
  EXPECT_THAT(refusal({{"_class_name", "CMStochasticIterativeScheduler"}}),
              HasSubstr("got \"CMStochasticIterativeScheduler\""));
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
  EXPECT_THAT(refusal({{"_class_name", "IPNDMScheduler"}}), HasSubstr("beta_schedule"));
  EXPECT_THAT(refusal({{"_class_name", "SASolverScheduler"}, {"corrector_order", 3}}),
              HasSubstr("corrector_order must be 2, got 3"));
  EXPECT_THAT(
      refusal({{"_class_name", "SASolverScheduler"}, {"algorithm_type", "noise_prediction"}}),
      HasSubstr("noise_prediction"));
  EXPECT_THAT(refusal({{"_class_name", "DPMSolverSDEScheduler"}, {"noise_sampler_seed", 3}}),
              HasSubstr("noise_sampler_seed must be null, got 3"));
  for (const char* name : {"LCMScheduler", "TCDScheduler"}) {
    EXPECT_THAT(refusal({{"_class_name", name}, {"original_inference_steps", 40}}),
                HasSubstr("original_inference_steps must be 50, got 40"));
  }
  EXPECT_THAT(refusal({{"_class_name", "LCMScheduler"}, {"timestep_scaling", 5.0}}),
              HasSubstr("timestep_scaling"));
}

}  // namespace diffusers_scheduler_test
}  // namespace kinora::pipelines
