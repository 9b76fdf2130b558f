// What the Booster refuses.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/boost/torch_net.h"

namespace kinora::train {
namespace booster_error_test {

using testing::HasSubstr;

std::string refusal(const BoosterOptions& options, const comm::Group& world = {}) {
  return error_of(ErrorKind::kConfig, [&] {
    Net net;
    return Booster(options, world).boost(net, adamw(), constant());
  });
}

TEST(BoosterErrorTest, PluginsThatCannotBeHad) {
  BoosterOptions options = fp32();
  options.plugin = "zero4";
  EXPECT_THAT(refusal(options),
              HasSubstr("must be ddp, zero1, zero2, zero3, gemini or hybrid, got zero4"));
  options.plugin = "zero1";
  options.plugin_config.zero_stage = 2;
  EXPECT_THAT(refusal(options), HasSubstr("zero1 is zero_stage 1, but zero_stage is 2"));
  options = fp32();
  options.plugin_config.zero_stage = 4;
  EXPECT_THAT(refusal(options), HasSubstr("must be 0 to 3"));
}

TEST(BoosterErrorTest, WhatATorchModuleCannotDo) {
  BoosterOptions options = fp32();
  options.use_fp8 = true;
  EXPECT_THAT(refusal(options), HasSubstr("use_fp8 needs"));
  options = fp32();
  options.plugin = "zero3";
  EXPECT_EQ(refusal(options), "no error");  // nothing is divided
  struct : torch::nn::Module {
  } empty;
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return Booster(fp32()).boost(empty, adamw(), constant()); }),
              HasSubstr("no parameter that requires gradients"));
}

TEST(BoosterErrorTest, DividedLinearsOnRanks) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    BoosterOptions options = fp32();
    options.plugin = "hybrid";
    options.plugin_config.tp_size = 2;
    EXPECT_THAT(refusal(options, world),
                HasSubstr("nothing says which layers of the torch::nn::Module ranks divide"));
    options.tensor_rules = {{"head", LayerCut::kGathered}};
    EXPECT_THAT(refusal(options, world), HasSubstr("tensor_rules"));
  });
}

TEST(BoosterErrorTest, DividedSequencesOnRanks) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    BoosterOptions options = fp32();
    options.plugin_config.sp_size = 2;
    EXPECT_THAT(
        refusal(options, world),
        HasSubstr("sp_size must be 1 for a torch::nn::Module, which does not divide tokens"));
    options.plugin_config.sp_size = 1;
    options.plugin_config.divided_norms = true;
    EXPECT_THAT(refusal(options, world), HasSubstr("divided_norms is of Kinora's own models"));
    world.barrier();
  });
}

TEST(BoosterErrorTest, CallsAndValues) {
  Net net;
  BoosterOptions options = fp32();
  options.grad_clip = 1.0;
  const Booster booster(options);
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return booster.boost(net, {.max_grad_norm = 2.0}, constant()); }),
              HasSubstr("leave one of them out"));
  Boosted boosted = booster.boost(net, adamw(), constant());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return booster.boost(net, adamw(), constant()); }),
              HasSubstr("boosted already"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return boosted.step(); }),
              HasSubstr("after 1 calls of backward(), got 0"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         boosted.accumulate(0);
                         return 0;
                       }),
              HasSubstr("1 pass or more"));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         boosted.backward(at::ones({2}));
                         return 0;
                       }),
              HasSubstr("loss of one element"));
  boosted.backward(loss_of(net, 0));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         boosted.backward(loss_of(net, 1));
                         return 0;
                       }),
              HasSubstr("step() must come"));
  (void)boosted.step();
}

}  // namespace booster_error_test
}  // namespace kinora::train
