#include "kinora/ops/block_composed.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <optional>

// Shapes: R rows, C width, V vectors, B batch, N tokens, H heads, D head dim.

namespace kinora::ops::composed {
namespace {

/// [R, C] -> fp32 [V, R / V, C].
at::Tensor by_vector(const at::Tensor& rows, const at::Tensor& vectors) {
  return rows.to(at::kFloat).view({vectors.size(0), -1, rows.size(1)});
}

at::Tensor per_row(const at::Tensor& vectors) {
  return vectors.unsqueeze(1);  // [V, 1, C]
}

/// Who attends to what: bool, [B, 1, 1 or N, L] or [N, L]. Where a sample has no keys: all, since
/// what kernels make of that differs. Undefined: everyone to all.
at::Tensor attended_keys(const HeadTensors& in) {
  at::Tensor attended;
  if (in.keys.blocks != nullptr) {
    attended = in.keys.blocks->of_rows(in.q.size(1), in.k.size(1));
  }
  if (!in.keys.lengths.defined()) {
    return attended;
  }
  const at::Tensor lengths = in.keys.lengths.view({-1, 1, 1, 1});
  const at::Tensor counts =
      (at::arange(in.k.size(1), lengths.options()) < lengths).logical_or(lengths == 0);
  return attended.defined() ? counts.logical_and(attended) : counts;
}

/// softmax(Q K^T / sqrt(D)) V of [B, H, N, D] with every intermediate in memory.
at::Tensor unfused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& attended) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  at::Tensor scores = at::matmul(q * scale, k.transpose(-2, -1));
  if (attended.defined()) {
    scores = scores.masked_fill(attended.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return at::matmul(scores.softmax(-1, at::kFloat).to(q.scalar_type()), v);
}

/// Those of a vector of all columns that are here.
at::Tensor own_columns(const at::Tensor& vector, const ColumnRanks& ranks) {
  const int64_t columns = vector.size(0) / ranks.size;
  return vector.narrow(0, ranks.rank * columns, columns);
}

/// From sums over the columns that are here.
at::Tensor mean_of_columns(const at::Tensor& sums, int64_t columns, const ColumnRanks& ranks) {
  if (ranks.sum) {
    ranks.sum(sums);
  }
  return sums / static_cast<double>(columns * ranks.size);
}

}  // namespace

SeamForward seam(const at::Tensor& x, const at::Tensor& branch, const SeamVectors& vectors,
                 at::ScalarType h_type) {
  at::Tensor sum = by_vector(x, vectors.scale);
  if (branch.defined()) {
    sum = sum + per_row(vectors.gate) * by_vector(branch, vectors.scale);
  }
  at::Tensor mean = sum.mean(-1, true);
  if (!vectors.centres) {
    mean.zero_();
  }
  const at::Tensor centred = sum - mean;
  const at::Tensor rstd = (centred.square().mean(-1, true) + vectors.epsilon).rsqrt();
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
  const at::Tensor centred = vectors.centres ? g - g.mean(-1, true) : g;
  at::Tensor dx = rstd * (centred - xhat * (g * xhat).mean(-1, true));
  if (dx_out.defined()) {
    dx = dx + by_vector(dx_out, vectors.scale);
  }
  if (grads.shift.defined()) {
    at::Tensor(grads.shift).copy_(dh32.sum(1));
    at::Tensor(grads.scale).copy_((dh32 * xhat).sum(1));
  }
  SeamBackward result{dx.view_as(x).to(x.scalar_type()), {}};
  if (vectors.gate.defined()) {
    if (grads.gate.defined()) {
      at::Tensor(grads.gate).copy_((by_vector(branch, vectors.scale) * dx).sum(1));
    }
    const at::Tensor dbranch = per_row(vectors.gate) * dx;
    if (branch_bias_grad.defined()) {
      at::Tensor(branch_bias_grad).add_(dbranch.sum(at::IntArrayRef{0, 1}));
    }
    result.dbranch.value = dbranch.view_as(x).to(x.scalar_type());
  }
  return result;
}

at::Tensor norm_rows(const at::Tensor& in, const at::Tensor& weight, double epsilon,
                     const ColumnRanks& ranks) {
  const at::Tensor x = in.to(at::kFloat);
  const at::Tensor mean = mean_of_columns(x.square().sum(-1, true), in.size(1), ranks);
  return (x * (mean + epsilon).rsqrt() * own_columns(weight, ranks)).to(in.scalar_type());
}

void norm_rows_backward(const at::Tensor& in, const at::Tensor& weight, double epsilon,
                        const ColumnRanks& ranks, const at::Tensor& grad,
                        const at::Tensor& weight_grad) {
  const at::Tensor x = in.to(at::kFloat);
  const at::Tensor dy = grad.to(at::kFloat);
  const at::Tensor g = dy * own_columns(weight, ranks);
  const at::Tensor means = mean_of_columns(
      at::stack({x.square().sum(-1, true), (g * x).sum(-1, true)}), in.size(1), ranks);
  const at::Tensor rstd = (means[0] + epsilon).rsqrt();
  const at::Tensor xhat = x * rstd;
  if (weight_grad.defined()) {
    own_columns(weight_grad, ranks).add_((dy * xhat).sum(0));
  }
  at::Tensor(grad).copy_(rstd * (g - xhat * (means[1] * rstd)));
}

at::Tensor gated_add(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& gate) {
  return (by_vector(x, gate) + per_row(gate) * by_vector(branch, gate))
      .view_as(x)
      .to(x.scalar_type());
}

at::Tensor gated_add_backward(const at::Tensor& dout, const at::Tensor& branch,
                              const at::Tensor& gate, const at::Tensor& gate_grad) {
  const at::Tensor dout32 = by_vector(dout, gate);
  if (gate_grad.defined()) {
    at::Tensor(gate_grad).copy_((by_vector(branch, gate) * dout32).sum(1));
  }
  return (per_row(gate) * dout32).view_as(dout).to(dout.scalar_type());
}

at::Tensor attention(const HeadTensors& in, bool fused) {
  const at::Tensor q = in.q.transpose(1, 2);  // [B, H, N, D]
  const at::Tensor k = in.k.transpose(1, 2);
  const at::Tensor v = in.v.transpose(1, 2);
  const at::Tensor attended = attended_keys(in);
  std::optional<at::Tensor> mask;
  if (attended.defined()) {
    mask = attended;
  }
  const at::Tensor out = fused ? at::scaled_dot_product_attention(q, k, v, mask)
                               : unfused_attention(q, k, v, attended);
  at::Tensor result = out.transpose(1, 2);
  if (in.keys.lengths.defined()) {
    result = result.masked_fill((in.keys.lengths == 0).view({-1, 1, 1, 1}), 0.0);
  }
  return result;
}

void attention_backward(const at::Tensor& dout, const HeadTensors& in, const HeadTensors& grads,
                        bool fused) {
  const auto leaf = [](const at::Tensor& part) { return part.detach().set_requires_grad(true); };
  const HeadTensors leaves{leaf(in.q), leaf(in.k), leaf(in.v), in.keys};
  at::Tensor out;
  {
    const at::AutoGradMode with_grad(true);
    out = attention(leaves, fused);
  }
  const torch::autograd::variable_list parts =
      torch::autograd::grad({out}, {leaves.q, leaves.k, leaves.v}, {dout});
  at::Tensor(grads.q).copy_(parts[0]);
  at::Tensor(grads.k).copy_(parts[1]);
  at::Tensor(grads.v).copy_(parts[2]);
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
