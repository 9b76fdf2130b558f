#pragma once

#include <string>
#include <vector>

namespace kinora::apps {

struct DemoArguments {
  std::string config = "configs/demo.yaml";
  std::vector<std::string> overrides;
};

}  // namespace kinora::apps
