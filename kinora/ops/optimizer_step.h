#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kinora/kernels/optimizer.h"

/// The optimizer's kernels (kernels/optimizer.h) on tensors. On the CPU the plain kernels, in
/// parallel; on a GPU one kernel each, or ATen calls in a build without nvcc. Results on the CPU do
/// not depend on the number of threads.
namespace kinora::ops {

/// A control block on `device`, uint8 [sizeof(StepControl)].
[[nodiscard]] at::Tensor make_step_control(const kernels::StepControl& start, at::Device device);

/// Its content. Waits for the device.
[[nodiscard]] kernels::StepControl read_step_control(const at::Tensor& control);

/// The loss scale within the control block: fp32, no dims, on its device; follows the updates.
[[nodiscard]] at::Tensor loss_scale_of(const at::Tensor& control);

/// Adds the sum of squares of `grad` (fp32, contiguous, on the control block's device) to
/// grad_sum_squares. Throws kShape.
void add_sum_squares(const at::Tensor& grad, const at::Tensor& control);

/// kernels::prepare_update, where the control block lies.
void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy);

/// Contiguous tensors of one size on one device.
struct OptimizerBucket {
  at::Tensor master;            ///< fp32
  at::Tensor grad;              ///< fp32, zero afterwards
  at::Tensor exp_avg;           ///< fp32
  at::Tensor exp_avg_sq;        ///< fp32
  std::vector<at::Tensor> ema;  ///< fp32, at most kMaxEmas
  at::Tensor compute;           ///< bf16 or fp16; undefined: none
};

/// kernels::adamw_update over a whole bucket; parameters.num_emas = bucket.ema.size(). Throws
/// kShape.
void adamw_update(const OptimizerBucket& bucket, const kernels::AdamwParameters& parameters,
                  const at::Tensor& control);

/// The same as ATen calls, on any device: the path of a GPU without our own kernels, and the oracle
/// of tests. Waits for the device, to read the control block.
void adamw_update_composed(const OptimizerBucket& bucket,
                           const kernels::AdamwParameters& parameters, const at::Tensor& control);

/// out = in, rounded to nearest even. in: fp32, contiguous; out: same size, bf16 or fp16,
/// contiguous, same device. Throws kShape.
void round_to(const at::Tensor& in, const at::Tensor& out);

}  // namespace kinora::ops
