#pragma once

#include <cstdint>
#include <vector>

#include "kinora/train/bench/scaling_model.h"
#include "kinora/train/plan/gpu_facts.h"
#include "kinora/train/run_config.h"

/// How fast a run will be, by arithmetic.
namespace kinora::train {

/// Of the seconds of a micro-step; backward computes two products for each of forward's.
inline constexpr double kForwardShare = 1.0 / 3.0;

/// The buckets of a recipe's model, which is resolved, where a micro-step of one GPU takes
/// `micro_step_s`; the blocks have all of the computation, by their size, since the others' work is
/// that of one token or pixel, not of all.
[[nodiscard]] std::vector<BucketCost> bucket_costs(const RunConfig& config, double micro_step_s);

/// Samples per second of the training step on `ranks` GPUs, of all of them. A roofline: products at
/// the share of the GPU's best that DiTs reach on an H200, the update at the share of its
/// bandwidth (docs/performance.md), what is computed again, and what ranks exchange
/// (scaling_model.h), with 8 GPUs a host and 50 GB/s a GPU between hosts. Without loading data. 0
/// where the GPU's speed is not known.
class StepEstimate {
 public:
  /// `config.model` is resolved.
  StepEstimate(const RunConfig& config, const GpuFacts& gpu);

  /// Of the recipe or one that differs from it in train.*, model.path and parallel.*.
  [[nodiscard]] double samples_per_s(const RunConfig& config, int64_t ranks) const;

 private:
  GpuFacts gpu_;
  std::vector<BucketCost> shares_;  // of a micro-step of one second
  double parameters_ = 0.0;
  double divisible_share_ = 0.0;  // of them (parallel/tensor.h)
  double block_share_ = 0.0;      // of them: what a pipeline's ranks divide
  double trained_share_ = 1.0;    // of them; the others are frozen
  double forward_share_ = 0.0;    // of frozen weights: read by forward alone
  double matrix_macs_ = 0.0;      // of muon, a step
  double blocks_a_unit_ = 1.0;    // of what train.recompute counts: 2 where that is pairs
};

}  // namespace kinora::train
