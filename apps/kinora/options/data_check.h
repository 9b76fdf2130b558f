#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora::apps {

struct DataCheckArguments {
  std::string set;
  std::vector<std::string> overrides;
  std::string index;
  std::string quarantine;
  int64_t threads = 0;
  bool full = false;
  bool json = false;
  bool all = false;
};

}  // namespace kinora::apps
