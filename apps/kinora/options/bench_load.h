#pragma once

#include "kinora/train/bench/benchmark_load.h"

namespace kinora::apps {

struct BenchLoadArguments {
  train::LoadBenchmarkOptions options;
  bool json = false;
};

}  // namespace kinora::apps
