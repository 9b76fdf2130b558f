#pragma once

#include <string>
#include <vector>

#include "kinora/train/bench/bucket_search.h"

namespace kinora::apps {

struct SearchBatchArguments {
  std::string config;
  std::vector<std::string> overrides;
  double memory_gib = 0.0;
  train::BucketSearchOptions search;
  std::string out;
  bool json = false;
};

}  // namespace kinora::apps
