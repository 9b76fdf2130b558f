#include "kinora/nn/mlp.h"

#include <ATen/ops/gelu.h>

namespace kinora::nn {

Mlp::Mlp(int64_t in_features, int64_t hidden, int64_t out_features, bool fp32_island)
    : fc1(in_features, hidden, Init::xavier_uniform(in_features, hidden),
          {.fp32_island = fp32_island}),
      fc2(hidden, out_features, Init::xavier_uniform(hidden, out_features),
          {.fp32_island = fp32_island}) {
  fc1.set_cut({Cut::Dim::kOutputs, {{hidden, hidden}}});
  fc2.set_cut({Cut::Dim::kInputs, {{hidden, hidden}}});
  add_child("fc1", fc1);
  add_child("fc2", fc2);
}

at::Tensor Mlp::forward(const at::Tensor& x) const {
  return tapped(fc2.forward(at::gelu(fc1.forward(x), "tanh")));
}

}  // namespace kinora::nn
