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
  KINORA_CHECK(
      plugin != "gemini", kConfig,
      "[parallel] plugin gemini is not in this version, which has ddp, zero1, zero2, zero3 "
      "and hybrid");
  KINORA_CHECK(config.zero_stage >= -1 && config.zero_stage <= 3, kConfig,
               "[parallel] zero_stage must be 0 to 3, or -1 for what the plugin says, got ",
               config.zero_stage);
  if (plugin.empty() || plugin == "hybrid") {
    return static_cast<int>(std::max<int64_t>(config.zero_stage, 0));
  }
  const auto* const found = std::find(kPlugins.begin(), kPlugins.end(), plugin);
  KINORA_CHECK(found != kPlugins.end(), kConfig,
               "[parallel] plugin must be ddp, zero1, zero2, zero3 or hybrid, got ", plugin);
  const auto stage = static_cast<int>(found - kPlugins.begin());
  KINORA_CHECK(config.zero_stage < 0 || config.zero_stage == stage, kConfig, "[parallel] plugin ",
               plugin, " is zero_stage ", stage, ", but zero_stage is ", config.zero_stage,
               ". Hint: leave one of them out");
  return stage;
}

}  // namespace kinora::train
