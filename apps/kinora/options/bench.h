#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"
#include "kinora/train/bench/benchmark_pipeline.h"
#include "kinora/train/bench/benchmark_sample.h"
#include "kinora/train/bench/benchmark_step.h"

namespace kinora::apps {

/// Of bench train, ablate, buckets, sample and pipeline.
struct BenchArguments {
  enum class What { kTrain, kAblate, kBuckets, kSample, kPipeline } what = What::kTrain;
  std::string config;
  std::vector<std::string> overrides;
  train::StepBenchmarkOptions step;
  train::SampleBenchmarkOptions sample;
  train::PipelineBenchmarkOptions pipeline;
  int64_t sampling_steps = 0;
  double guidance = -1.0;
  RankArguments ranks;
  bool profile = false;
  std::string trace;  ///< file; "": none
  bool json = false;
};

}  // namespace kinora::apps
