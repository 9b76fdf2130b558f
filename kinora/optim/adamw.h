#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/kernels/optimizer.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// torch.optim.AdamW's defaults, except for the weight decay. The learning rate comes with each
/// step.
struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;   ///< decoupled; of every parameter
  double max_grad_norm = 0.0;  ///< of all gradients together; 0: no clipping
};

struct StepResult {
  float grad_norm = 0.0F;   ///< before clipping; inf or NaN where skipped
  bool skipped = false;     ///< a gradient was not finite: no weight, moment or EMA has changed
  float loss_scale = 1.0F;  ///< of the next backward
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
};

/// What a checkpoint keeps beside the arena's arrays, for a resumed run to go on with the same
/// bits.
struct AdamWState {
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
  float loss_scale = 1.0F;
  int32_t good_steps = 0;  ///< applied steps since the loss scale last changed

  bool operator==(const AdamWState&) const = default;
};

/// AdamW with clipping, the dynamic loss scale of fp16 and the arena's EMAs: one pass over memory
/// for the norm, one for everything else (kernels/optimizer.h).
class AdamW {
 public:
  /// The loss scale is dynamic if the arena computes in fp16, else 1. Throws kConfig for values out
  /// of range or an arena without training state.
  AdamW(const AdamWConfig& config, const Arena& arena);

  /// Updates all weights from the gradients, which it zeros. Waits for the device once, at the end.
  StepResult step(Arena& arena, double lr);

  /// What to multiply the loss by before backward: fp32, no dims, on the arena's device; always the
  /// current one.
  [[nodiscard]] at::Tensor loss_scale() const;

  /// Waits for the device.
  [[nodiscard]] AdamWState state() const;
  /// kIo for values that no run can have.
  void restore(const AdamWState& state);

 private:
  AdamWConfig config_;
  kernels::UpdatePolicy policy_;
  at::Tensor control_;  // kernels::StepControl in the device's memory
};

}  // namespace kinora::optim
