#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora::apps {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string gpu;
  int64_t ranks = 1;
  bool search = false;
  bool layers = false;
  bool json = false;
};

}  // namespace kinora::apps
