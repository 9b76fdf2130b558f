#include "kinora/ops/block_composed.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kinora/ops/attention.h"

// Shapes: R rows, C width, V vectors, B batch, N tokens, H heads, D head dim.

namespace kinora::ops::composed {
namespace {

constexpr double kNormEpsilon = 1e-6;

/// [R, C] -> fp32 [V, R / V, C].
at::Tensor by_vector(const at::Tensor& rows, const at::Tensor& vectors) {
  return rows.to(at::kFloat).view({vectors.size(0), -1, rows.size(1)});
}

at::Tensor per_row(const at::Tensor& vectors) {
  return vectors.unsqueeze(1);  // [V, 1, C]
}

/// softmax(Q K^T / sqrt(D)) V with every intermediate in memory.
at::Tensor unfused_attention(const at::Tensor& qkv, int64_t heads) {
  const std::vector<at::Tensor> parts = qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1})
                                            .permute({2, 0, 3, 1, 4})  // [3, B, H, N, D]
                                            .unbind(0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(parts[0].size(-1)));
  const at::Tensor scores = at::matmul(parts[0] * scale, parts[1].transpose(-2, -1));
  const at::Tensor weights = scores.softmax(-1, at::kFloat).to(qkv.scalar_type());
  return at::matmul(weights, parts[2]).transpose(1, 2).flatten(2);  // [B, N, C]
}

}  // namespace

SeamForward seam(const at::Tensor& x, const at::Tensor& branch, const SeamVectors& vectors,
                 at::ScalarType h_type) {
  at::Tensor sum = by_vector(x, vectors.scale);
  if (branch.defined()) {
    sum = sum + per_row(vectors.gate) * by_vector(branch, vectors.scale);
  }
  const at::Tensor mean = sum.mean(-1, true);
  const at::Tensor centred = sum - mean;
  const at::Tensor rstd = (centred.square().mean(-1, true) + kNormEpsilon).rsqrt();
  const at::Tensor h = centred * rstd * (1.0 + per_row(vectors.scale)) + per_row(vectors.shift);
  return {branch.defined() ? sum.view_as(x).to(x.scalar_type()) : x,
          {.value = h.view_as(x).to(h_type)},
          {mean.flatten(), rstd.flatten()}};
}

SeamBackward seam_backward(const at::Tensor& dh, const at::Tensor& dx_out, const at::Tensor& x,
                           const NormStatistics& statistics, const at::Tensor& branch,
                           const SeamVectors& vectors, const SeamVectors& grads,
                           const at::Tensor& branch_bias_grad) {
  const at::Tensor dh32 = by_vector(dh, vectors.scale);
  const at::Tensor mean = statistics.mean.view({dh32.size(0), -1, 1});
  const at::Tensor rstd = statistics.rstd.view({dh32.size(0), -1, 1});
  const at::Tensor xhat = (by_vector(x, vectors.scale) - mean) * rstd;
  const at::Tensor g = dh32 * (1.0 + per_row(vectors.scale));
  at::Tensor dx = rstd * (g - g.mean(-1, true) - xhat * (g * xhat).mean(-1, true));
  if (dx_out.defined()) {
    dx = dx + by_vector(dx_out, vectors.scale);
  }
  at::Tensor(grads.shift).copy_(dh32.sum(1));
  at::Tensor(grads.scale).copy_((dh32 * xhat).sum(1));
  SeamBackward result{dx.view_as(x).to(x.scalar_type()), {}};
  if (branch.defined()) {
    at::Tensor(grads.gate).copy_((by_vector(branch, vectors.scale) * dx).sum(1));
    const at::Tensor dbranch = per_row(vectors.gate) * dx;
    if (branch_bias_grad.defined()) {
      at::Tensor(branch_bias_grad).add_(dbranch.sum(at::IntArrayRef{0, 1}));
    }
    result.dbranch.value = dbranch.view_as(x).to(x.scalar_type());
  }
  return result;
}

at::Tensor attention(const at::Tensor& qkv, int64_t heads, bool fused) {
  return fused ? ops::attention(qkv, heads) : unfused_attention(qkv, heads);
}

at::Tensor attention_backward(const at::Tensor& dout, const at::Tensor& qkv, int64_t heads,
                              bool fused) {
  const at::Tensor leaf = qkv.detach().set_requires_grad(true);
  at::Tensor out;
  {
    const at::AutoGradMode with_grad(true);
    out = attention(leaf, heads, fused);
  }
  return torch::autograd::grad({out}, {leaf}, {dout})[0];
}

void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
            const at::Tensor& out) {
  at::Tensor(out).copy_(at::linear(x, weight, bias));
}

at::Tensor gelu(const at::Tensor& pre) {
  return at::gelu(pre, "tanh");
}

at::Tensor gelu_backward(const at::Tensor& dout, const at::Tensor& pre) {
  return at::gelu_backward(dout, pre, "tanh");
}

}  // namespace kinora::ops::composed
