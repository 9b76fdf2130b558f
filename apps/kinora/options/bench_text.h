#pragma once

#include "kinora/train/bench/benchmark_text.h"

namespace kinora::apps {

struct BenchTextArguments {
  train::TextBenchmarkOptions options;
  bool json = false;
};

}  // namespace kinora::apps
