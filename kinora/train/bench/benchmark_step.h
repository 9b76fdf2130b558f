#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/device/gpu_profile.h"
#include "kinora/inference/conditions.h"
#include "kinora/train/bench/batch_search.h"
#include "kinora/train/micro_batch.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

struct StepBenchmarkOptions {
  int64_t warmup = 5;    ///< steps before timing; at least four where CUDA graphs are recorded
  int64_t steps = 20;    ///< timed steps
  bool profile = false;  ///< trace as many steps again, after the timed ones
  /// Tokens of each caption, which T5-XXL's encoder with random weights makes vectors of in each
  /// step; 0: captions lie in memory as vectors.
  int64_t encoded_tokens = 0;
  int64_t text_layers = 24;  ///< of that encoder; T5-XXL has 24
};

/// What encoding captions in each step costs.
struct TextStepCost {
  double cached_step_seconds = 0.0;  ///< of a step on the same captions as vectors in memory
  double encoder_seconds = 0.0;      ///< of encoding a step's captions with nothing beside it
};

/// Speed of the training step, without the data pipeline.
struct StepBenchmark {
  std::string device;
  std::string kernels;
  bool fast_path = false;
  bool graphs = false;
  double step_seconds = 0.0;  ///< of one step in the median block of steps
  double samples_per_s = 0.0;
  double model_tflops = 0.0;  ///< TFLOP/s: 3 x 2 x multiply-accumulates of a forward pass
  int64_t peak_memory = 0;    ///< bytes of tensors on the GPU, of this benchmark; 0 on the CPU
  int64_t peak_reserved = 0;  ///< likewise with what the allocator held beside them
  int64_t used_memory = 0;    ///< bytes of the GPU, context and libraries included, at the end
  double last_loss = 0.0;     ///< to see that it computed
  std::string far_updates;    ///< who updated what has no state on the GPU; "": there is none
  std::optional<device::GpuRecords> trace;  ///< of options.steps steps
  std::optional<TextStepCost> texts;        ///< where options.encoded_tokens is not 0
  std::vector<std::string> products;        ///< a line for each of the fast path's matrix products
};

/// Steps of several buckets by one choice of ranks.
struct SpreadRow {
  int64_t ranks = 0;          ///< that divide each sample; 0: as its size wants
  std::string refused;        ///< a size for which so few ranks have no memory; the rest is 0 then
  double step_seconds = 0.0;  ///< the mean
  double samples_per_s = 0.0;
  double slowdown = 1.0;  ///< against the dynamic choice
};

/// Dynamic numbers of sequence ranks against fixed ones, on the same steps.
struct SpreadBenchmark {
  std::string device;
  int64_t batches = 0;          ///< of a step
  int64_t peak_memory = 0;      ///< bytes of a GPU, of all choices
  std::string seconds;          ///< a table: describe() of dynamic_sequence.h
  std::vector<SpreadRow> rows;  ///< the dynamic choice first
};

/// A recipe's model and optimizer, whose steps are timed on random inputs that lie in memory, one
/// behind the other as in training. Layers that start at zero are randomised: products of zeros are
/// faster than real ones. Nothing is left in the device's memory at the end. With several ranks all
/// make one and call it, and the figures are of this rank's time and all ranks' samples.
class StepTimer {
 public:
  /// Errors as those of a run.
  explicit StepTimer(const RunConfig& config, const comm::Group& world = {});
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  ~StepTimer();

  /// Of the recipe's batches. kConfig where captions are to be encoded and the model does not take
  /// T5-XXL's states of so many tokens.
  [[nodiscard]] StepBenchmark time(const StepBenchmarkOptions& options);

  /// Of steps of one batch a rank, of pictures or clips of that size in pixels: the median of three
  /// after those in which the device warms up. The memory is that of tensors on a GPU; on a CPU the
  /// whole process's, 0 where the system does not say. Errors of running out of memory: the timer
  /// is of no use then.
  [[nodiscard]] StepCost time(const inference::ClipSize& size, int64_t batch);

  /// Of a recipe with data.buckets and parallel.dynamic_sequence: options.steps steps of
  /// data.bucket_batches batches, each of a row drawn at random, by the ranks that the run would
  /// choose and by 1, 2, 4, ... ranks for all sizes, where groups of so many take batches in turn.
  /// Of a step all choices are timed one after the other. The figures are the slowest rank's.
  [[nodiscard]] SpreadBenchmark time_spread(const StepBenchmarkOptions& options);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// StepTimer::time() of the recipe's batches.
[[nodiscard]] StepBenchmark benchmark_step(const RunConfig& config,
                                           const StepBenchmarkOptions& options,
                                           const comm::Group& world = {});

}  // namespace kinora::train
