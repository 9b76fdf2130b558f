#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"
#include "kinora/core/compute_choice.h"
#include "kinora/train/bench/benchmark_sequence.h"
#include "kinora/train/boost/booster_options.h"

namespace kinora::apps {

struct BenchSequenceArguments {
  RankArguments ranks;
  DeviceChoice device = DeviceChoice::kAuto;
  std::vector<int64_t> tokens = {4096};
  std::vector<std::string> schemes = {"one", "ulysses4", "ulysses", "fastseq", "ring"};
  train::SequenceWork work;
  bool json = false;
};

}  // namespace kinora::apps
