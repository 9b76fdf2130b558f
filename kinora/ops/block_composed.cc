#include "kinora/ops/block_composed.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
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
#include <vector>

// Shapes: R rows, C width, V vectors, B batch, N tokens, H heads, D head dim.

namespace kinora::ops::composed {
namespace {

/// How vectors [V, C] belong to rows [R, C].
class RowsOfVectors {
 public:
  RowsOfVectors(const at::Tensor& rows, const at::Tensor& vectors, const SeamVectors& seam)
      : samples_(seam.first_rows > 0 ? vectors.size(0) / 2 : vectors.size(0)),
        parts_(seam.first_rows > 0
                   ? std::vector{seam.first_rows, rows.size(0) / samples_ - seam.first_rows}
                   : std::vector{rows.size(0) / samples_}) {}

  /// Each row's vector: [R, C].
  [[nodiscard]] at::Tensor spread(const at::Tensor& vectors) const {
    const int64_t width = vectors.size(1);
    const at::Tensor each = vectors.view({samples_, std::ssize(parts_), width});
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < std::ssize(parts_); ++i) {
      rows.push_back(each.narrow(1, i, 1).expand({-1, parts_[static_cast<size_t>(i)], -1}));
    }
    return at::cat(rows, 1).view({-1, width});
  }
  /// The sums of each vector's rows: [V, C].
  [[nodiscard]] at::Tensor sum(const at::Tensor& rows) const {
    std::vector<at::Tensor> sums;
    for (const at::Tensor& part :
         rows.view({samples_, -1, rows.size(1)}).split_with_sizes(parts_, 1)) {
      sums.push_back(part.sum(1));
    }
    return at::stack(sums, 1).view({-1, rows.size(1)});
  }

 private:
  int64_t samples_;
  std::vector<int64_t> parts_;  // rows of a sample
};

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

/// Pairs of columns of rows [R, C'] turned by the rule's angles, or by direction -1 back.
at::Tensor turned(const HeadRule& rule, const at::Tensor& rows, double direction) {
  if (!rule.cosines.defined()) {
    return rows;
  }
  const int64_t angles = rule.cosines.size(1);
  const at::Tensor cosines = rule.cosines.unsqueeze(1);  // [P, 1, angles]
  const at::Tensor sines = direction * rule.sines.unsqueeze(1);
  const at::Tensor pairs =
      rows.view({-1, rule.cosines.size(0), rows.size(1) / (2 * angles), angles, 2});
  const at::Tensor first = pairs.select(-1, 0);
  const at::Tensor second = pairs.select(-1, 1);
  return at::stack({first * cosines - second * sines, first * sines + second * cosines}, -1)
      .view(rows.sizes());
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
  const RowsOfVectors rows(x, vectors.scale, vectors);
  at::Tensor sum = x.to(at::kFloat);
  if (branch.defined()) {
    sum = sum + rows.spread(vectors.gate) * branch;
  }
  at::Tensor mean = sum.mean(-1, true);
  if (!vectors.centres) {
    mean.zero_();
  }
  const at::Tensor centred = sum - mean;
  const at::Tensor rstd = (centred.square().mean(-1, true) + vectors.epsilon).rsqrt();
  const at::Tensor h =
      centred * rstd * (1.0 + rows.spread(vectors.scale)) + rows.spread(vectors.shift);
  return {branch.defined() ? sum.to(x.scalar_type()) : x,
          {.value = h.to(h_type)},
          {mean.flatten(), rstd.flatten()}};
}

SeamBackward seam_backward(const at::Tensor& dh, const at::Tensor& dx_out, const at::Tensor& x,
                           const NormStatistics& statistics, const at::Tensor& branch,
                           const SeamVectors& vectors, const SeamVectors& grads,
                           const at::Tensor& branch_bias_grad) {
  const RowsOfVectors rows(x, vectors.scale, vectors);
  const at::Tensor dh32 = dh.to(at::kFloat);
  const at::Tensor rstd = statistics.rstd.unsqueeze(1);
  const at::Tensor xhat = (x.to(at::kFloat) - statistics.mean.unsqueeze(1)) * rstd;
  const at::Tensor g = dh32 * (1.0 + rows.spread(vectors.scale));
  const at::Tensor centred = vectors.centres ? g - g.mean(-1, true) : g;
  at::Tensor dx = rstd * (centred - xhat * (g * xhat).mean(-1, true));
  if (dx_out.defined()) {
    dx = dx + dx_out;
  }
  if (grads.shift.defined()) {
    at::Tensor(grads.shift).copy_(rows.sum(dh32));
    at::Tensor(grads.scale).copy_(rows.sum(dh32 * xhat));
  }
  SeamBackward result{dx.to(x.scalar_type()), {}};
  if (vectors.gate.defined()) {
    if (grads.gate.defined()) {
      at::Tensor(grads.gate).copy_(rows.sum(branch * dx));
    }
    const at::Tensor dbranch = rows.spread(vectors.gate) * dx;
    if (branch_bias_grad.defined()) {
      at::Tensor(branch_bias_grad).add_(dbranch.sum(0));
    }
    result.dbranch.value = dbranch.to(x.scalar_type());
  }
  return result;
}

at::Tensor norm_rows(const HeadRule& rule, const at::Tensor& in, const at::Tensor& weight) {
  const at::Tensor x = in.to(at::kFloat);
  const at::Tensor mean = mean_of_columns(x.square().sum(-1, true), in.size(1), rule.ranks);
  const at::Tensor normed = x * (mean + rule.epsilon).rsqrt() * own_columns(weight, rule.ranks);
  return turned(rule, normed, 1.0).to(in.scalar_type());
}

void norm_rows_backward(const HeadRule& rule, const at::Tensor& in, const at::Tensor& weight,
                        const at::Tensor& grad, const at::Tensor& weight_grad) {
  const at::Tensor x = in.to(at::kFloat);
  const at::Tensor dy = turned(rule, grad.to(at::kFloat), -1.0);
  const at::Tensor g = dy * own_columns(weight, rule.ranks);
  const at::Tensor means = mean_of_columns(
      at::stack({x.square().sum(-1, true), (g * x).sum(-1, true)}), in.size(1), rule.ranks);
  const at::Tensor rstd = (means[0] + rule.epsilon).rsqrt();
  const at::Tensor xhat = x * rstd;
  if (weight_grad.defined()) {
    own_columns(weight_grad, rule.ranks).add_((dy * xhat).sum(0));
  }
  at::Tensor(grad).copy_(rstd * (g - xhat * (means[1] * rstd)));
}

at::Tensor gated_add(const at::Tensor& x, const at::Tensor& branch, const SeamVectors& vectors) {
  const RowsOfVectors rows(x, vectors.gate, vectors);
  return (x.to(at::kFloat) + rows.spread(vectors.gate) * branch).to(x.scalar_type());
}

at::Tensor gated_add_backward(const at::Tensor& dout, const at::Tensor& branch,
                              const SeamVectors& vectors, const at::Tensor& gate_grad) {
  const RowsOfVectors rows(dout, vectors.gate, vectors);
  const at::Tensor dout32 = dout.to(at::kFloat);
  if (gate_grad.defined()) {
    at::Tensor(gate_grad).copy_(rows.sum(branch * dout32));
  }
  return (rows.spread(vectors.gate) * dout32).to(dout.scalar_type());
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
