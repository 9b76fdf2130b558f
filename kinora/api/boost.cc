#include "kinora/boost.h"

namespace kinora {

train::Boosted boost(torch::nn::Module& module, const optim::OptimizerConfig& optimizer,
                     const optim::LrSchedule& schedule, const train::BoosterOptions& options,
                     const comm::Group& world) {
  return train::Booster(options, world).boost(module, optimizer, schedule);
}

}  // namespace kinora
