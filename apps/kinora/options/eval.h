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
  bool first_frame = false;  ///< of clips: each goes on from its own first frame
  /// A CLIP that says how well samples show their prompts; empty: not asked for. `samples` may be a
  /// run or checkpoint, which draws them.
  std::string clip = {};
  std::string interpolator = {};  ///< TorchScript of two frames, for motion smoothness; or empty
  std::string flow = {};          ///< the same, for the dynamic degree
  std::string prompts = {};       ///< a file of the samples' prompts; empty: theirs
  std::optional<double> guidance = {};      ///< of what a run draws; nothing: the recipe's
  uint64_t seed = 0;                        ///< likewise
  std::vector<std::string> overrides = {};  ///< key=value on the recipe of a run that draws
  bool json = false;

  /// Whether clips are asked for by themselves: what score_clips() computes.
  [[nodiscard]] bool judges_clips() const {
    return eval.metrics == std::vector<std::string>{"consistency"} || !interpolator.empty() ||
           !flow.empty();
  }
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t threads = 0;
  RankArguments ranks;
};

}  // namespace kinora::apps
