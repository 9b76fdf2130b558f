#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/ops/fp8_state.h"
#include "kinora/optim/optimizer.h"

namespace kinora::checkpoint {

/// What the bits of a deterministic run depend on besides its configuration.
struct PinnedChoices {
  std::map<std::string, std::string> versions;  ///< by name: "cuDNN" -> "91300"
  /// The algorithm of every matrix product run so far, as kernels/matmul_cache.h writes it. Not
  /// looked into here.
  std::vector<std::string> products;

  bool operator==(const PinnedChoices&) const = default;
};

/// Tensors on the CPU, by name.
using Arrays = std::map<std::string, at::Tensor>;

/// Everything of a run besides the arena's arrays.
struct TrainingState {
  int64_t step = 0;            ///< optimizer updates done, skipped ones included
  int64_t position = 0;        ///< samples of the data stream consumed
  int64_t image_position = 0;  ///< likewise of image_data; 0 in older checkpoints
  optim::OptimizerState optimizer;
  /// Of importance sampling (diffusion::LossSecondMoment); empty without it.
  std::vector<double> timestep_history;
  std::vector<int64_t> timestep_counts;
  std::string config;  ///< the run's resolved configuration, YAML
  /// Nothing where the run was not deterministic or the checkpoint is older than this field.
  std::optional<PinnedChoices> pinned;
  /// Of fp8; nothing likewise, and nothing from load_state(): it lies in a file of its own.
  std::optional<ops::Fp8State> fp8;
  /// Of the model (buffers.h), the same on all ranks; likewise in a file of their own.
  Arrays buffers;
  /// What the run does not train (frozen_of), likewise.
  Arrays frozen;
};

}  // namespace kinora::checkpoint
