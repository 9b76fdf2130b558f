#pragma once

#include <map>
#include <string>

#include "kinora/core/compute_choice.h"
#include "kinora/train/boost/booster_options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}

/// Options of several subcommands that name one of a few things.
namespace kinora::apps {

/// --device.
void add_device_option(CLI::App& command, DeviceChoice& device);

/// By their names: "fp32", "bf16", "fp16".
[[nodiscard]] const std::map<std::string, Precision>& precisions();

}  // namespace kinora::apps
