#include "kinora/models/text_encoders/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "kinora/core/error.h"

namespace kinora::models {

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kRelu:
      return x.clamp_min(0.0);  // as relu, which dry runs cannot count
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kQuickGelu:
      return x * at::sigmoid(1.702 * x);
    case Activation::kSilu:
      return at::silu(x);
  }
  KINORA_UNREACHABLE("[activation] ", static_cast<int>(activation));
}

}  // namespace kinora::models
