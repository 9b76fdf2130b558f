#pragma once

#include <string>

#include "apps/kinora/options/ranks.h"

namespace kinora::apps {

struct DoctorArguments {
  std::string folder = ".";
  RankArguments ranks;
  bool json = false;
};

}  // namespace kinora::apps
