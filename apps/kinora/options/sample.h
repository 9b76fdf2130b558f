#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"
#include "apps/kinora/sample_files.h"
#include "kinora/pipelines/sampling_ranks.h"

namespace kinora::apps {

/// The command line of `kinora sample`; 0 and empty: not given.
struct SampleArguments {
  std::string run;
  std::string checkpoint;
  std::string config;
  std::vector<std::string> overrides;
  std::string weights = "ema";
  std::vector<std::string> adapters;  ///< FILE or FILE:WEIGHT

  std::vector<int64_t> classes;
  std::vector<std::string> captions;
  std::string captions_file;
  std::string text_embeddings;

  int64_t count = 0;
  int64_t batch = 64;
  int64_t steps = 0;
  double guidance = -1.0;  ///< below 0: not given
  int64_t seed = 0;

  int64_t frames = 0;
  int64_t height = 0;  ///< in pixels, as width
  int64_t width = 0;
  double fps = 0.0;
  std::string given;
  std::string given_frames = "head";
  std::string frame_layout = "image";
  double given_edit = 0.0;
  int64_t loop = 1;
  int64_t overlap = 0;

  std::string autoencoder;
  std::optional<double> memory_budget;  ///< GiB; 0: no limit

  std::string out = "samples";
  FileFormat format = FileFormat::kUsual;
  std::string device = "auto";
  std::string precision;
  int64_t threads = 0;
  bool deterministic = false;
  bool judge = false;
  bool json = false;

  RankArguments ranks;
  pipelines::SamplingRanks sharing;
};

}  // namespace kinora::apps
