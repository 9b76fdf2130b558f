#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora::apps {

struct SimulateArguments {
  std::string config;
  std::vector<std::string> overrides;
  int64_t gpus_per_node = 8;
  int64_t nodes = 1;
  double step_seconds = 0.0;  // 0: measured
  double update_seconds = 0.0;
  std::vector<double> inside;  // latency, bytes/s
  std::vector<double> across;
  int64_t ranks_per_link = 1;
  std::string route = "torus";
  double quantised = 0.0;  // bytes/s; 0: at once
  int64_t zero_stage = 0;
  bool json = false;
};

}  // namespace kinora::apps
