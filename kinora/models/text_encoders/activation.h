#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::models {

/// As transformers names them: "relu", "gelu", "gelu_new", "quick_gelu", "silu".
enum class Activation {
  kRelu,
  kGelu,       ///< x Phi(x)
  kGeluTanh,   ///< its approximation by a tanh (Hendrycks and Gimpel 2016)
  kQuickGelu,  ///< x sigmoid(1.702 x), OpenAI's CLIP
  kSilu,
};

[[nodiscard]] at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace kinora::models
