#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"
#include "kinora/core/compute_choice.h"
#include "kinora/eval/feature_network.h"
#include "kinora/eval/sample_set.h"
#include "kinora/train/boost/booster_options.h"

namespace kinora::apps {

struct EvalOptions {
  std::string samples;
  std::string reference;  ///< empty: there is none
  std::string out;        ///< statistics of the samples; empty: not written
  std::vector<std::string> metrics;
  eval::NetworkChoice network;
  eval::SampleSetOptions set;  ///< labels: of the samples
  int64_t batch = 32;
};

struct EvalArguments {
  EvalOptions eval;
  bool pairs = false;
  int64_t scenes = 0;  ///< so many held-out scenes are drawn by the model `samples` and judged
  std::optional<double> guidance = {};  ///< of these; nothing: the recipe's
  bool json = false;
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t threads = 0;
  RankArguments ranks;
};

}  // namespace kinora::apps
