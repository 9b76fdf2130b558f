#include "kinora/ops/partial_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

namespace kinora::ops {
namespace {

at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

/// [B, N, H, D] as [B, H, N, D]: libtorch's kernels take and give this view.
at::Tensor by_head(const at::Tensor& x) {
  return x.transpose(1, 2);
}

at::Tensor wide_by_head(const at::Tensor& x) {
  return by_head(x).to(wide_type(x));
}

double scale_of(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(3)));
}

Attended attend_composed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor logits =
      at::matmul(wide_by_head(q) * scale_of(q), wide_by_head(k).transpose(2, 3));  // [B, H, N, M]
  const at::Tensor log_normaliser = at::logsumexp(logits, {3});
  const at::Tensor weights = at::softmax(logits, 3);
  return {by_head(at::matmul(weights, wide_by_head(v))).to(q.scalar_type()), log_normaliser};
}

AttendGradients backward_composed(const at::Tensor& gradient, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v, const Attended& all) {
  const at::Tensor wide_q = wide_by_head(q) * scale_of(q);
  const at::Tensor wide_k = wide_by_head(k);
  const at::Tensor incoming = wide_by_head(gradient);
  const at::Tensor weights = at::exp(at::matmul(wide_q, wide_k.transpose(2, 3)) -
                                     all.log_normaliser.unsqueeze(3));  // of the softmax over all
  const at::Tensor mean = (incoming * wide_by_head(all.out)).sum(3, /*keepdim=*/true);
  const at::Tensor to_logits =
      weights * (at::matmul(incoming, wide_by_head(v).transpose(2, 3)) - mean);
  const at::ScalarType type = q.scalar_type();
  return {by_head(at::matmul(to_logits, wide_k) * scale_of(q)).to(type),
          by_head(at::matmul(to_logits.transpose(2, 3), wide_q)).to(type),
          by_head(at::matmul(weights.transpose(2, 3), incoming)).to(type)};
}

/// Stands for dropout's random seed and offset, arguments of the backward functions that are not
/// read without dropout.
at::Tensor no_randomness(const at::Tensor& like) {
  return at::empty({}, like.options().dtype(at::kUInt64));
}

Attended attend_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto result = at::_scaled_dot_product_flash_attention(by_head(q), by_head(k), by_head(v));
  return {by_head(std::get<0>(result)), std::get<1>(result)};
}

AttendGradients backward_flash(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Attended& all) {
  const at::Tensor none = no_randomness(q);
  const auto [to_q, to_k, to_v] = at::_scaled_dot_product_flash_attention_backward(
      by_head(gradient), by_head(q), by_head(k), by_head(v), by_head(all.out), all.log_normaliser,
      /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, q.size(1), k.size(1), /*dropout_p=*/0.0,
      /*is_causal=*/false, none, none);
  return {by_head(to_q), by_head(to_k), by_head(to_v)};
}

/// The memory-efficient kernels hold a multiple of so many queries' normalisers.
constexpr int64_t kEfficientAlignment = 32;

Attended attend_efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto result = at::_scaled_dot_product_efficient_attention(
      by_head(q), by_head(k), by_head(v), /*attn_bias=*/{}, /*compute_log_sumexp=*/true);
  return {by_head(std::get<0>(result)), std::get<1>(result).narrow(2, 0, q.size(1))};
}

AttendGradients backward_efficient(const at::Tensor& gradient, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& v, const Attended& all) {
  const at::Tensor none = no_randomness(q);
  const int64_t beyond =
      (kEfficientAlignment - q.size(1) % kEfficientAlignment) % kEfficientAlignment;
  // Queries beyond the last have a normaliser that makes all their weights 0.
  const at::Tensor log_normaliser =
      at::constant_pad_nd(all.log_normaliser, {0, beyond}, std::numeric_limits<double>::infinity());
  const auto result = at::_scaled_dot_product_efficient_attention_backward(
      by_head(gradient), by_head(q), by_head(k), by_head(v), /*attn_bias=*/{}, by_head(all.out),
      log_normaliser, none, none, /*dropout_p=*/0.0, {true, true, true, false});
  return {by_head(std::get<0>(result)), by_head(std::get<1>(result)), by_head(std::get<2>(result))};
}

}  // namespace

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (!q.is_cuda()) {
    return attend_composed(q, k, v);
  }
  return is_half(q) ? attend_flash(q, k, v) : attend_efficient(q, k, v);
}

void merge(Attended* seen, const Attended& part) {
  const at::Tensor out = part.out.to(wide_type(part.out));
  if (!seen->out.defined()) {
    *seen = {out, part.log_normaliser};
    return;
  }
  // By the difference, which is exact where it matters: shares add up to 1 however large both are.
  const at::Tensor lead = seen->log_normaliser - part.log_normaliser;
  const auto share = [](const at::Tensor& logit) {  // [B, N, H, 1]
    return at::sigmoid(logit).transpose(1, 2).unsqueeze(3);
  };
  seen->out = (seen->out * share(lead)).addcmul_(out, share(-lead));
  seen->log_normaliser = at::logaddexp(seen->log_normaliser, part.log_normaliser);
}

AttendGradients attend_backward(const at::Tensor& gradient, const at::Tensor& q,
                                const at::Tensor& k, const at::Tensor& v, const Attended& all) {
  if (!q.is_cuda()) {
    return backward_composed(gradient, q, k, v, all);
  }
  return is_half(q) ? backward_flash(gradient, q, k, v, all)
                    : backward_efficient(gradient, q, k, v, all);
}

}  // namespace kinora::ops
