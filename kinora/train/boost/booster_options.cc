#include "kinora/train/boost/booster_options.h"

#include <algorithm>
#include <array>

#include "kinora/core/error.h"

namespace kinora::train {

parallel::MeshShape PluginConfig::mesh() const {
  return {.pipeline = pp_size,
          .replicate = replicate,
          .shard = shard,
          .sequence = sp_size,
          .tensor = tp_size};
}

int zero_stage(const std::string& plugin, const PluginConfig& config) {
  constexpr std::array<const char*, 4> kPlugins = {"ddp", "zero1", "zero2", "zero3"};
  KINORA_CHECK(config.zero_stage >= -1 && config.zero_stage <= 3, kConfig,
               "[parallel] zero_stage must be 0 to 3, or -1 for what the plugin says, got ",
               config.zero_stage);
  if (plugin.empty() || plugin == "hybrid") {
    return static_cast<int>(std::max<int64_t>(config.zero_stage, 0));
  }
  if (plugin == "gemini") {
    const double share = config.shard_param_frac;
    KINORA_CHECK(share == 0.0 || share == 1.0, kConfig,
                 "[parallel] shard_param_frac must be 1 (weights are divided, zero_stage 3) or 0 "
                 "(they are whole, zero_stage 2), got ",
                 share);
    KINORA_CHECK(config.zero_stage < 0, kConfig,
                 "[parallel] plugin gemini has its zero_stage from shard_param_frac, but "
                 "zero_stage is ",
                 config.zero_stage, ". Hint: leave it out");
    return share == 1.0 ? 3 : 2;
  }
  const auto* const found = std::find(kPlugins.begin(), kPlugins.end(), plugin);
  KINORA_CHECK(found != kPlugins.end(), kConfig,
               "[parallel] plugin must be ddp, zero1, zero2, zero3, gemini or hybrid, got ",
               plugin);
  const auto stage = static_cast<int>(found - kPlugins.begin());
  KINORA_CHECK(config.zero_stage < 0 || config.zero_stage == stage, kConfig, "[parallel] plugin ",
               plugin, " is zero_stage ", stage, ", but zero_stage is ", config.zero_stage,
               ". Hint: leave one of them out");
  return stage;
}

optim::OptimizerConfig placed(const BoosterOptions& options, optim::OptimizerConfig optimizer,
                              int64_t num_parameters, int64_t ranks, int64_t free_bytes) {
  const PluginConfig& config = options.plugin_config;
  if (options.plugin != "gemini") {
    KINORA_CHECK(config.placement == Placement::kStatic && config.offload_optim_frac == 0.0 &&
                     config.offload_param_frac == 0.0 && config.shard_param_frac == 1.0,
                 kConfig,
                 "[booster] placement, shard_param_frac, offload_optim_frac and "
                 "offload_param_frac are of plugin gemini. Hint: OptimizerConfig::offload and "
                 "offload_weights work with every plugin");
    return optimizer;
  }
  if (optimizer.offload > 0.0) {
    return optimizer;  // said more exactly
  }
  if (config.placement == Placement::kStatic) {
    KINORA_CHECK(config.offload_param_frac <= config.offload_optim_frac, kConfig,
                 "[booster] offload_param_frac must be at most offload_optim_frac, ",
                 config.offload_optim_frac, ": weights follow their state, got ",
                 config.offload_param_frac);
    optimizer.offload = config.offload_optim_frac;
    optimizer.offload_weights = config.offload_param_frac;
    return optimizer;
  }
  if (config.placement == Placement::kCpu) {
    optimizer.offload = 1.0;
    optimizer.offload_weights = 1.0;
    return optimizer;
  }
  const bool coded = optimizer.moments == kernels::MomentFormat::k8Bit;
  const double moments = (kernels::has_second_moment(optimizer.rule) ? 1.0 : 0.0) +
                         (optim::keeps_first_moments(optimizer.rule) ? 1.0 : 0.0);
  const double own = static_cast<double>(num_parameters) / static_cast<double>(ranks);
  const double weights = own * (options.precision == Precision::kFp32 ? 4.0 : 2.0 + 4.0);
  const double state = own * (4.0 + (coded ? 1.0 : 4.0) * moments +
                              4.0 * static_cast<double>(options.ema_decays.size()));
  const double room = kAutoShare * static_cast<double>(free_bytes);
  optimizer.offload = std::clamp((weights + state - room) / state, 0.0, 1.0);
  optimizer.offload_weights = std::clamp((weights - room) / weights, 0.0, optimizer.offload);
  return optimizer;
}

}  // namespace kinora::train
