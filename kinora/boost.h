#pragma once

#include "kinora/train/boost/booster.h"

/// The fourth function of kinora/kinora.h, in a header of its own since it needs libtorch's.
namespace kinora {

/// Any model of libtorch, ready to train: parameters on the device, in the precision that
/// options.precision says, with AdamW.
///
///   auto boosted = kinora::boost(*model, {.weight_decay = 0.01}, {.value = 1e-3});
///   for each step:  boosted.backward(loss);  boosted.step();
///
/// On several ranks all make the call, with the `world` of comm::connect(). A program that also
/// wants its place among the ranks makes a train::Booster (docs/booster.md). kConfig, kCuda.
[[nodiscard]] train::Boosted boost(torch::nn::Module& module,
                                   const optim::OptimizerConfig& optimizer = {},
                                   const optim::LrSchedule& schedule = {},
                                   const train::BoosterOptions& options = {},
                                   const comm::Group& world = {});

}  // namespace kinora
