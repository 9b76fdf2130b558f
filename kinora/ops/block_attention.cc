// BlockKernels' attention, and what happens to queries and keys before it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/rms_norm.h"
#include "kinora/ops/block_composed.h"
#include "kinora/ops/block_impl.h"

// Shapes: B batch, N queries, L keys, C width, H heads, D = C / H, R rows.

namespace kinora::ops {
namespace {

kernels::HeadsView heads_view(const at::Tensor& heads) {
  KINORA_CHECK(heads.dim() == 4 && heads.stride(3) == 1, kInternal,
               "[kernels] heads must be [B, N, H, D] with adjacent dims, got ", heads.sizes(),
               " with strides ", heads.strides());
  return {heads.data_ptr(), heads.stride(0), heads.stride(1), heads.stride(2)};
}

kernels::AttentionShape shape_of(const HeadTensors& in) {
  const int64_t head_dim = in.q.size(3);
  return {.batch = in.q.size(0),
          .heads = in.q.size(2),
          .query_length = in.q.size(1),
          .key_length = in.k.size(1),
          .head_dim = head_dim,
          .type = device::dtype_of(in.q.scalar_type()),
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))),
          .key_lengths =
              in.keys.lengths.defined() ? in.keys.lengths.const_data_ptr<int32_t>() : nullptr,
          .mask = in.keys.blocks != nullptr ? in.keys.blocks->view() : kernels::BlockMask()};
}

float* data_of(const at::Tensor& vector) {
  return vector.defined() ? vector.data_ptr<float>() : nullptr;
}

/// Whether the norm is of all heads together.
bool is_wide_norm(const HeadRule& rule, int64_t head_dim) {
  return rule.has_norm() && rule.q_weight.numel() != head_dim;
}

kernels::RowRotation rotation_of(const HeadRule& rule) {
  if (!rule.cosines.defined()) {
    return {};
  }
  return {.cosine = data_of(rule.cosines),
          .sine = data_of(rule.sines),
          .num_positions = rule.cosines.size(0),
          .num_angles = rule.cosines.size(1)};
}

/// Of a weight or bias of the rule's norm, which have one type.
const void* values_of(const HeadRule& rule, const at::Tensor& vector) {
  if (!vector.defined()) {
    return nullptr;
  }
  KINORA_CHECK(vector.is_contiguous() && vector.scalar_type() == rule.q_weight.scalar_type(),
               kInternal, "[kernels] weights and biases of heads' norms must be contiguous, of ",
               rule.q_weight.scalar_type(), ", one is of ", vector.scalar_type());
  return vector.const_data_ptr();
}

/// The passes of kernels/qk_norm_rotary.h that make a rule without a norm of all heads together,
/// the first first.
struct RulePasses {
  RulePasses(const HeadRule& rule, const at::Tensor& in, int64_t heads, int64_t head_dim) {
    kernels::QkNormRotary pass{.rows = in.size(0),
                               .heads = heads,
                               .head_dim = head_dim,
                               .type = device::dtype_of(in.scalar_type()),
                               .normalise = rule.has_norm(),
                               .epsilon = static_cast<float>(rule.epsilon)};
    if (rule.has_norm()) {
      pass.weight_type = device::dtype_of(rule.q_weight.scalar_type());
      pass.q_weight = values_of(rule, rule.q_weight);
      pass.k_weight = values_of(rule, rule.k_weight);
      pass.q_bias = values_of(rule, rule.q_bias);
      pass.k_bias = values_of(rule, rule.k_bias);
    }
    if (rule.cosines.defined()) {
      pass.cosine = data_of(rule.cosines);
      pass.sine = data_of(rule.sines);
      pass.num_positions = rule.cosines.size(0);
    }
    if (rule.norm_after_rotary && pass.normalise && rule.cosines.defined()) {
      second = pass;
      second.cosine = nullptr;
      second.sine = nullptr;
      has_second = true;
      pass.normalise = false;
    }
    first = pass;
  }

  kernels::QkNormRotary first;
  kernels::QkNormRotary second;
  bool has_second = false;
};

/// in, out: [R, ..]; out may be [B, n, ..], where the rule has rows of samples.
void run(const kernels::QkNormRotary& rule, const at::Tensor& in, const at::Tensor& out) {
  const kernels::QkNormRotaryForward call{.rule = rule,
                                          .in = in.const_data_ptr(),
                                          .in_stride = in.stride(0),
                                          .out = out.data_ptr(),
                                          .out_stride = out.stride(-2),
                                          .out_sample_stride = out.stride(0)};
  if (in.is_cpu()) {
    kernels::qk_norm_rotary_forward(call);
  } else {
    cuda::qk_norm_rotary_forward(call);
  }
}

void run_backward(const kernels::QkNormRotary& pass, const HeadRule& rule, const at::Tensor& dout,
                  const at::Tensor& in, const at::Tensor& din) {
  const kernels::QkNormRotaryBackward call{
      .rule = pass,
      .dout = dout.const_data_ptr(),
      .dout_stride = dout.stride(-2),
      .in = in.const_data_ptr(),
      .in_stride = in.stride(0),
      .din = din.data_ptr(),
      .din_stride = din.stride(0),
      .dq_weight = pass.normalise ? data_of(rule.q_weight_grad) : nullptr,
      .dk_weight = pass.normalise ? data_of(rule.k_weight_grad) : nullptr,
      .dq_bias = pass.normalise ? data_of(rule.q_bias_grad) : nullptr,
      .dk_bias = pass.normalise ? data_of(rule.k_bias_grad) : nullptr,
      .dout_sample_stride = dout.stride(0)};
  if (in.is_cpu()) {
    kernels::qk_norm_rotary_backward(call);
  } else {
    cuda::qk_norm_rotary_backward(call);
  }
}

/// Of rows of one stream [B n, 3 C], n of a sample.
kernels::QkNormRotary placing(const HeadRule& rule, const RulePasses& passes,
                              int64_t rows_per_sample) {
  KINORA_CHECK(!passes.has_second && !is_wide_norm(rule, passes.first.head_dim), kInternal,
               "[kernels] heads of a stream are normed each, before their rotation");
  kernels::QkNormRotary pass = passes.first;
  pass.copies_values = true;
  pass.rows_per_sample = rows_per_sample;
  return pass;
}

}  // namespace

bool BlockKernels::attend(const HeadTensors& in, const at::Tensor& out, const at::Tensor& lse) {
  if (impl_->attention) {
    const kernels::AttentionForward call{.shape = shape_of(in),
                                         .q = heads_view(in.q),
                                         .k = heads_view(in.k),
                                         .v = heads_view(in.v),
                                         .out = heads_view(out),
                                         .lse = data_of(lse)};
    const std::string refusal = impl_->attention->unsupported_reason(call);
    if (refusal.empty()) {
      impl_->attention->forward(call);
      return true;
    }
    KINORA_CHECK(!impl_->attention_required, kConfig,
                 "[kernels] kernels.attention is on, but neither our kernels nor cuDNN's can: ",
                 refusal, ". Hint: auto takes libtorch's.");
    impl_->attention_refusal = refusal;
  }
  at::Tensor(out).copy_(composed::attention(in, impl_->attention_fused));
  return false;
}

void BlockKernels::attend_backward(const at::Tensor& dout, const HeadTensors& in,
                                   const at::Tensor& out, const at::Tensor& lse,
                                   const HeadTensors& grads) {
  if (!lse.defined()) {
    composed::attention_backward(dout, in, grads, impl_->attention_fused);
    return;
  }
  impl_->attention->backward({.shape = shape_of(in),
                              .q = heads_view(in.q),
                              .k = heads_view(in.k),
                              .v = heads_view(in.v),
                              .out = heads_view(out),
                              .dout = heads_view(dout),
                              .lse = lse.const_data_ptr<float>(),
                              .dq = heads_view(grads.q),
                              .dk = heads_view(grads.k),
                              .dv = heads_view(grads.v)});
}

bool BlockKernels::has_head_rules() const {
  return impl_->device.is_cpu() || cuda::has_block_kernels(impl_->device, impl_->type);
}

void BlockKernels::apply(const HeadRule& rule, const at::Tensor& in, int64_t heads,
                         const at::Tensor& out) {
  const int64_t width = out.size(1) / 2;
  if (is_wide_norm(rule, width / heads)) {
    norm_rows(rule, in.narrow(1, 0, width), rule.q_weight, out.narrow(1, 0, width));
    norm_rows(rule, in.narrow(1, width, width), rule.k_weight, out.narrow(1, width, width));
    return;
  }
  const RulePasses passes(rule, in, heads, width / heads);
  run(passes.first, in, out);
  if (passes.has_second) {
    run(passes.second, out, out);
  }
}

void BlockKernels::apply_backward(const HeadRule& rule, const at::Tensor& in, int64_t heads,
                                  int64_t head_dim, const at::Tensor& grad) {
  if (is_wide_norm(rule, head_dim)) {
    const int64_t width = heads * head_dim;
    norm_rows_backward(rule, in.narrow(1, 0, width), rule.q_weight, grad.narrow(1, 0, width),
                       rule.q_weight_grad);
    norm_rows_backward(rule, in.narrow(1, width, width), rule.k_weight,
                       grad.narrow(1, width, width), rule.k_weight_grad);
    return;
  }
  const RulePasses passes(rule, in, heads, head_dim);
  if (!passes.has_second) {
    run_backward(passes.first, rule, grad, in, grad);
    return;
  }
  const at::Tensor between = impl_->empty({in.size(0), 2 * heads * head_dim}, in.scalar_type());
  run(passes.first, in, between);
  run_backward(passes.second, rule, grad, between, grad);
  run_backward(passes.first, rule, grad, in, grad);
}

void BlockKernels::norm_rows(const HeadRule& rule, const at::Tensor& in, const at::Tensor& weight,
                             const at::Tensor& out) {
  if (!has_head_rules() || rule.ranks.size > 1) {
    at::Tensor(out).copy_(composed::norm_rows(rule, in, weight));
    return;
  }
  const at::Tensor weight32 = weight.to(at::kFloat);
  const kernels::RmsNormForward call{.rows = in.size(0),
                                     .width = in.size(1),
                                     .epsilon = static_cast<float>(rule.epsilon),
                                     .type = device::dtype_of(in.scalar_type()),
                                     .x = in.const_data_ptr(),
                                     .x_stride = in.stride(0),
                                     .weight = weight32.const_data_ptr<float>(),
                                     .rotation = rotation_of(rule),
                                     .y = out.data_ptr(),
                                     .y_stride = out.stride(0)};
  if (in.is_cpu()) {
    kernels::rms_norm_forward(call);
  } else {
    cuda::rms_norm_forward(call);
  }
}

void BlockKernels::norm_rows_backward(const HeadRule& rule, const at::Tensor& in,
                                      const at::Tensor& weight, const at::Tensor& grad,
                                      const at::Tensor& weight_grad) {
  if (!has_head_rules() || rule.ranks.size > 1) {
    composed::norm_rows_backward(rule, in, weight, grad, weight_grad);
    return;
  }
  const at::Tensor weight32 = weight.to(at::kFloat);
  const kernels::RmsNormBackward call{.rows = in.size(0),
                                      .width = in.size(1),
                                      .epsilon = static_cast<float>(rule.epsilon),
                                      .type = device::dtype_of(in.scalar_type()),
                                      .dy = grad.const_data_ptr(),
                                      .dy_stride = grad.stride(0),
                                      .x = in.const_data_ptr(),
                                      .x_stride = in.stride(0),
                                      .weight = weight32.const_data_ptr<float>(),
                                      .rotation = rotation_of(rule),
                                      .dx = grad.data_ptr(),
                                      .dx_stride = grad.stride(0),
                                      .dweight = data_of(weight_grad)};
  if (in.is_cpu()) {
    kernels::rms_norm_backward(call);
  } else {
    cuda::rms_norm_backward(call);
  }
}

void BlockKernels::place_heads(const HeadRule& rule, const at::Tensor& in, int64_t heads,
                               const at::Tensor& out) {
  const RulePasses passes(rule, in, heads, out.size(2) / (3 * heads));
  run(placing(rule, passes, out.size(1)), in, out);
}

void BlockKernels::place_heads_backward(const HeadRule& rule, const at::Tensor& in, int64_t heads,
                                        const at::Tensor& dout, const at::Tensor& din) {
  const RulePasses passes(rule, in, heads, dout.size(2) / (3 * heads));
  run_backward(placing(rule, passes, dout.size(1)), rule, dout, in, din);
}

}  // namespace kinora::ops
