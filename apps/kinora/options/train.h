#pragma once

#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"

namespace kinora::apps {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "never";
  RankArguments ranks;
  bool help_config = false;
};

}  // namespace kinora::apps
