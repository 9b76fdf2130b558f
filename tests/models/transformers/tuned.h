#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"

/// Models that are fine-tuned, for tests of their paths.
namespace kinora::models {

/// Of ops::expect_as_near: updates, here as large as what they change, round once more on their way
/// and go into the residual stream of the fast path, which is bf16 where the plain one's is fp32.
inline constexpr double kTunedSlack = 1.6;

/// Of the linears by turns: a low-rank update, frozen, only the bias frozen, trained.
inline void tune(nn::Module& model) {
  int64_t number = 0;
  for (const auto& [path, layer] : model.named_weight_layers()) {
    switch (number++ % 4) {
      case 0:
        layer->adapt({.rank = 2, .scale = 0.7});
        break;
      case 1:
        layer->weight.frozen = true;
        [[fallthrough]];
      case 2:
        layer->bias.frozen = true;
        break;
      default:
        break;
    }
  }
}

/// As a run of LoRA: updates of the blocks' linears but modulation are trained, and nothing else.
inline void adapt_blocks(nn::Module& model, int64_t rank) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->frozen = true;
  }
  for (const auto& [path, layer] : model.named_weight_layers()) {
    if (path.starts_with("blocks.") && path.find("adaLN") == std::string::npos) {
      layer->adapt({.rank = rank, .scale = 0.7});
    }
  }
}

/// Updates lie in the buckets of their weights.
inline std::vector<nn::BucketSpec> buckets_with_updates(std::vector<nn::BucketSpec> buckets,
                                                        nn::Module& model) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    const auto owner = nn::owner_of_update(path);
    if (!owner) {
      continue;
    }
    for (nn::BucketSpec& bucket : buckets) {
      const std::vector<std::string>& held = bucket.parameters;
      if (std::find(held.begin(), held.end(), *owner + ".weight") != held.end()) {
        bucket.parameters.push_back(path);
      }
    }
  }
  return buckets;
}

}  // namespace kinora::models
