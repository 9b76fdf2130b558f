#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"
#include "kinora/pipelines/encode.h"

namespace kinora::apps {

struct EncodeArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  std::string autoencoder;
  int64_t batch = 0;
  double memory_budget = -1.0;
  std::string dtype = "bf16";
  bool mean_only = false;
  bool mirrored = false;
  double save_every = pipelines::EncodeOptions().block_seconds;
  RankArguments ranks;
};

}  // namespace kinora::apps
