#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/compute_choice.h"
#include "kinora/train/boost/booster_options.h"

namespace kinora::apps {

/// One of both models.
struct ComparedSide {
  std::string path;
  std::vector<std::string> overrides;
  std::optional<Precision> precision;
  std::string weights = "ema";
};

struct CompareArguments {
  ComparedSide a;
  ComparedSide b;
  std::string config;
  int64_t count = 4;
  int64_t seed = 0;
  double threshold = 0.0;
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t threads = 0;
  bool json = false;
  bool all = false;
};

}  // namespace kinora::apps
