#pragma once

#include "apps/kinora/options/ranks.h"
#include "kinora/train/bench/benchmark_decode.h"

namespace kinora::apps {

struct BenchDecodeArguments {
  train::DecodeBenchmarkOptions options;
  double memory_gib = 0.0;
  RankArguments ranks;
  bool json = false;
};

}  // namespace kinora::apps
