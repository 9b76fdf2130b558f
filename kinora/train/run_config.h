#pragma once

#include <cstdint>
#include <string>

#include "kinora/core/compute_choice.h"
#include "kinora/data/data_config.h"
#include "kinora/inference/recipe.h"
#include "kinora/io/clip_file.h"
#include "kinora/ops/fp8.h"
#include "kinora/optim/lr_schedule.h"
#include "kinora/optim/optimizer.h"
#include "kinora/train/boost/booster_options.h"
#include "kinora/train/lr_factors.h"

namespace kinora::train {

/// What a run does about a step for which memory is too little.
enum class OutOfMemory : uint8_t {
  kStop,
  kReplan,  ///< goes on with the next smaller plan
};

/// The keys train.*, but for precision and deterministic; their meanings stand in describe().
struct TrainOptions {
  int64_t steps = 1000;
  int64_t global_batch = 64;
  int64_t micro_batch = 0;
  bool fp8 = false;
  ops::Fp8Scaling fp8_scaling = ops::Fp8Scaling::kDelayed;
  std::string recompute = "none";
  bool fp8_activations = false;
  std::string vram_budget = "none";  ///< budget_bytes()
  OutOfMemory oom = OutOfMemory::kStop;
  double graph_memory_gib = 0.0;  ///< 0: what there is room for
  int64_t seed = 0;
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t threads = 0;
  double label_dropout = 0.1;
  double pooled_dropout = 0.0;
  int64_t max_skipped = 3;
  bool self_test = true;
  int64_t log_every = 1;
  double stall_timeout = 600.0;
  int64_t profile_from = 0;
  int64_t profile_steps = 0;
};

/// Steps that take their samples from image_data: its keys share, global_batch, micro_batch.
struct ImageSteps {
  double share = 0.0;
  int64_t global_batch = 0;  ///< 0: train.global_batch
  int64_t micro_batch = 0;   ///< 0: all of a rank's

  [[nodiscard]] bool any() const { return share > 0.0; }
};

/// What of prior_data every step takes beside its other samples (Ruiz et al. 2023, "DreamBooth",
/// section 3.2): its keys weight, global_batch, micro_batch.
struct PriorBatch {
  double weight = 0.0;       ///< of its mean loss, which is added to the step's; 0: none
  int64_t global_batch = 0;  ///< 0: train.global_batch
  int64_t micro_batch = 0;   ///< 0: all of a rank's

  [[nodiscard]] bool any() const { return weight > 0.0; }
};

/// The keys checkpoint.*.
struct CheckpointOptions {
  int64_t every = 1000;
  int64_t keep_last = 3;
  int64_t keep_every = 0;
  std::string init_from;
  bool export_weights = false;
};

/// The keys validation.*.
struct ValidationOptions {
  int64_t every = 0;
  int64_t bands = 4;
};

/// The keys sample.every and sample.format, of the samples that a run shows while it trains.
struct ShownOptions {
  int64_t every = 0;
  io::ClipFormat format = io::ClipFormat::kWebp;  ///< of clips
};

/// A run, complete: what `kinora train` reads, and writes back with everything resolved. What its
/// model is, and how that is trained. (It inherits, since all of a recipe is also a run's.)
struct RunConfig : inference::ModelRecipe {
  std::string run_dir;
  std::string text_start;  ///< no key: where the weights of the model's own CLIP come from at first
  data::DataConfig image_data;
  ImageSteps image_steps;  ///< image_data.*
  data::DataConfig prior_data;
  PriorBatch prior;  ///< prior_data.*
  TrainOptions train;
  std::string plugin;             ///< parallel.plugin
  PluginConfig parallel;          ///< parallel.*
  bool dynamic_sequence = false;  ///< parallel.dynamic_sequence
  optim::LrSchedule lr;
  LrFactors lr_factors;  ///< lr.layer_decay, lr.factors
  optim::OptimizerConfig optim;
  CheckpointOptions checkpoint;
  ValidationOptions validation;
  ShownOptions shown;

  /// Samples that each of `data_ranks` computes at once. kConfig unless the global batch is a
  /// multiple of what they compute at once together.
  [[nodiscard]] int64_t micro_batch(int64_t data_ranks = 1) const;

  /// The same of steps with image_data, and their global batch.
  [[nodiscard]] int64_t image_micro_batch(int64_t data_ranks = 1) const;
  [[nodiscard]] int64_t image_batch() const {
    return image_steps.global_batch > 0 ? image_steps.global_batch : train.global_batch;
  }

  /// The same of what a step takes of prior_data.
  [[nodiscard]] int64_t prior_micro_batch(int64_t data_ranks = 1) const;
  [[nodiscard]] int64_t prior_batch() const {
    return prior.global_batch > 0 ? prior.global_batch : train.global_batch;
  }
};

/// Registers every key.
void describe(Fields& fields, RunConfig& config);

}  // namespace kinora::train
