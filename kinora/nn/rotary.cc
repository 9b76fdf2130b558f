#include "kinora/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>

#include <vector>

namespace kinora::nn {

at::Tensor rotated(const at::Tensor& x, const at::Tensor& angles) {
  const at::Tensor wide = x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
  const std::vector<at::Tensor> pairs = wide.unflatten(-1, {-1, 2}).unbind(-1);
  const at::Tensor quarter_turn = at::stack({-pairs[1], pairs[0]}, -1).flatten(-2);
  return (wide * at::cos(angles) + quarter_turn * at::sin(angles)).to(x.scalar_type());
}

}  // namespace kinora::nn
