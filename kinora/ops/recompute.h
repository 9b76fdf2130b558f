#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace kinora::ops {

/// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"):
/// computes function(inputs) keeping only `inputs`; backward computes it again with gradients.
///
/// `function` must be pure (the same result both times) and is kept until backward has run.
/// Gradients reach those of `inputs` that require them, and parameters used through with_gradient.
[[nodiscard]] std::vector<at::Tensor> recompute(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs);
[[nodiscard]] at::Tensor recompute(
    std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs);

/// Whether this thread computes a function of recompute() for the first time, without gradients:
/// what it returns must be what backward will compute.
[[nodiscard]] bool will_recompute();

}  // namespace kinora::ops
