#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/train/run_config.h"

/// The memory that a run needs, known before anything of it is there.
namespace kinora::train {

/// What is planned for.
struct PlanTarget {
  c10::DeviceType device = c10::DeviceType::CPU;
  int64_t ranks = 1;
  int64_t memory = 0;  ///< bytes that a GPU has, or the host; 0: as much as is needed
};

/// Bytes with a name: "gradients", "blocks.3".
struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
};

/// Of one rank; all are alike.
struct MemoryPlan {
  PlanTarget target;
  int64_t parameters = 0;
  int64_t micro_batch = 0;  ///< samples computed at once
  int64_t passes = 0;       ///< micro-batches of a step
  std::string bucket;       ///< of data.buckets, that which needs the most
  bool fast_path = false;
  std::string sharing;  ///< Boosted::describe_ranks()

  /// What is held at the peak, of which it is the sum.
  std::vector<MemoryPart> parts;
  /// Of it what each block keeps for backward. Empty with several ranks and where parameters are
  /// frozen.
  std::vector<MemoryPart> layers;
  /// The most bytes at once as a run reports them (peak_memory in log.jsonl): of tensors on a GPU,
  /// of the whole process on a CPU.
  int64_t peak = 0;
  int64_t process = 0;  ///< of the peak what the program and its heap take, on a CPU
  /// What the target has to have besides: the GPU's context and libraries, and what its allocator
  /// cannot use.
  int64_t besides = 0;
  int64_t outside = 0;  ///< of it what no tensors' allocator takes: context and libraries
  /// With data.buckets what their CUDA graphs hold, where there is room for it.
  int64_t graphs = 0;
  /// Bytes that lie in the host's memory: of the optimizer's state (optim.offload), of frozen
  /// weights (finetune.offload) and of activations (train.recompute=offload).
  int64_t offloaded = 0;
  int64_t on_disk = 0;  ///< or in a file (optim.disk)
  /// What no file said, and was taken for granted.
  std::vector<std::string> assumed;

  [[nodiscard]] int64_t needed() const { return peak + besides + graphs; }
  /// True also where nobody knows the target's memory.
  [[nodiscard]] bool fits() const { return target.memory == 0 || needed() <= target.memory; }
};

/// The recipe with everything that it leaves to its data: model.num_classes, height and width. Data
/// that are not there are replaced by what is said in `assumed`. kConfig where that cannot be.
[[nodiscard]] RunConfig without_data(RunConfig config, std::vector<std::string>& assumed);

/// The plan of a recipe whose model is resolved: the run's own code lays out the state and takes a
/// step on tensors without memory (device::DryRun). Errors of a run whose settings contradict each
/// other.
[[nodiscard]] MemoryPlan plan_memory(const RunConfig& config, const PlanTarget& target);

/// The same at the start of a run: nothing, with a warning, where it cannot be had, which is no
/// reason not to run.
[[nodiscard]] std::optional<MemoryPlan> plan_of_run(const RunConfig& config,
                                                    const PlanTarget& target);

/// A table of its parts and, where `by_layer`, of the activations' parts.
[[nodiscard]] std::string table(const MemoryPlan& plan, bool by_layer);

}  // namespace kinora::train
