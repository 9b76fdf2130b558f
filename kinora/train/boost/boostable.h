#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/optim/arena.h"

namespace kinora::train {

class Chain;

/// What a model tells the hook of its buckets.
enum class ToldReads : uint8_t {
  /// Gradients alone: whole weights lie there from step to step.
  kNone,
  /// Before and after it reads a bucket, forward and backward, in the same order in every pass.
  kInOrder,
  /// The same, in any order, and reads of backward as those of forward: kBeforeBackward and
  /// kAfterBackward are of gradients alone. The model itself says that a pass begins
  /// (tell_forward).
  kWatched,
};

/// What the Booster needs of a model: the seam between it and Kinora's own models on one side,
/// torch::nn::Modules on the other.
class Boostable {
 public:
  Boostable() = default;
  Boostable(const Boostable&) = delete;
  Boostable& operator=(const Boostable&) = delete;
  virtual ~Boostable() = default;

  /// Parameters and buffers by name.
  [[nodiscard]] virtual nn::Module& module() = 0;
  [[nodiscard]] virtual std::vector<nn::BucketSpec> buckets() const = 0;

  [[nodiscard]] virtual ToldReads told_reads() const = 0;
  /// Overwrites the gradients of ring buckets where diffusion::Pass::overwrite says so.
  [[nodiscard]] virtual bool overwrites_gradients() const { return false; }
  /// Computes in fp8, from weights that it quantises when it has told that it reads them.
  [[nodiscard]] virtual bool is_fp8() const { return false; }
  /// Weights that are trained are there from the moment that the hook is told of to the next:
  /// nothing of their size may be kept. Before settle().
  virtual void trained_weights_take_turns() {}
  /// Magnitudes (fp32) of a step, which ends with the largest of all ranks; undefined: none.
  [[nodiscard]] virtual at::Tensor magnitudes() const { return {}; }

  /// The parameters have their memory, filled as their nn::Init says: the model goes there, and may
  /// give them other values. All ranks of `world` call it.
  virtual void settle(optim::Arena& arena, const comm::Group& world) = 0;
  virtual void tell_buckets(ops::BucketHook hook) = 0;
  /// Of kWatched: `begins` is called before the first read of a pass.
  virtual void tell_forward(std::function<void()> /*begins*/) {}
  /// Weights were loaded, and buffers of module() may be other tensors than before.
  virtual void loaded() {}

  /// Of a torch::nn::Module, the blocks that a pipeline passes through; null: it has no such list,
  /// or says them by diffusion::Pass::stage.
  [[nodiscard]] virtual const Chain* chain() const { return nullptr; }
  /// Runs `action` while the buffers that other ranks of a pipeline have are in module(), too. All
  /// of them call it.
  virtual void with_all_buffers(const std::function<void()>& action) { action(); }

  /// Before the passes of an optimizer step.
  virtual void begin_step() {}
  /// Before forward and backward of a micro-batch, or of kNone before backward. Of a pipeline a
  /// pass is a backward.
  virtual void begin_pass() {}
  /// After backward.
  virtual void end_pass() {}
};

}  // namespace kinora::train
