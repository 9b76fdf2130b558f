#include "kinora/ops/text_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include <optional>

#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/ragged_attention.h"
#include "kinora/kernels/rms_norm.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/text_launch.h"

namespace kinora::ops {
namespace {

int64_t rows_apart(const at::Tensor& matrix) {
  KINORA_CHECK(matrix.dim() == 2 && (matrix.stride(1) == 1 || matrix.size(1) == 1), kInternal,
               "[text kernels] a matrix needs adjacent columns, got ", matrix.sizes(),
               " with strides ", matrix.strides());
  return matrix.stride(0);
}

kernels::RaggedAttention call_of(const TextHeads& heads) {
  kernels::RaggedAttention call = {.texts = heads.offsets.numel() - 1,
                                   .heads = heads.q.size(1) / heads.head_dim,
                                   .head_dim = heads.head_dim,
                                   .longest = heads.longest,
                                   .type = device::dtype_of(heads.q.scalar_type()),
                                   .scale = heads.scale,
                                   .offsets = heads.offsets.const_data_ptr<int32_t>(),
                                   .q = heads.q.data_ptr(),
                                   .k = heads.k.data_ptr(),
                                   .v = heads.v.data_ptr(),
                                   .out = heads.q.data_ptr(),
                                   .q_stride = rows_apart(heads.q),
                                   .k_stride = rows_apart(heads.k),
                                   .v_stride = rows_apart(heads.v),
                                   .out_stride = rows_apart(heads.q)};
  if (heads.bias.defined()) {
    call.bias = heads.bias.const_data_ptr<float>();
    call.reach = (heads.bias.size(1) + 1) / 2;
  }
  return call;
}

}  // namespace

struct TextKernels::Impl {
  std::optional<cuda::Products> products;
};

TextKernels::TextKernels() : impl_(std::make_unique<Impl>()) {}
TextKernels::~TextKernels() = default;

bool TextKernels::takes(at::Device device, at::ScalarType type, int64_t head_dim, int64_t longest) {
  return device.is_cuda() && !device::in_dry_run() && cuda::has_block_kernels(device, type) &&
         cuda::ragged_attention_supported(
             {.head_dim = head_dim, .longest = longest, .type = device::dtype_of(type)});
}

void TextKernels::norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                       const at::Tensor& out) {
  const kernels::RmsNormForward call = {.rows = x.size(0),
                                        .width = x.size(1),
                                        .epsilon = static_cast<float>(epsilon),
                                        .type = DType::kF32,
                                        .y_type = device::dtype_of(out.scalar_type()),
                                        .x = x.const_data_ptr(),
                                        .weight = weight.const_data_ptr<float>(),
                                        .y = out.data_ptr()};
  if (x.is_cuda()) {
    cuda::rms_norm_forward(call);
  } else {
    kernels::rms_norm_forward(call);
  }
}

void TextKernels::linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out,
                         bool accumulate) {
  if (!x.is_cuda()) {
    const at::Tensor product = at::matmul(x.to(at::kFloat), weight.to(at::kFloat).t());
    at::Tensor(out).copy_(accumulate ? product + out : product);
    return;
  }
  if (!impl_->products) {
    // The library's first choice: the number of rows is another each time, so a search would not
    // end.
    impl_->products.emplace(/*deterministic=*/true);
  }
  impl_->products->run({.m = x.size(0),
                        .n = weight.size(0),
                        .k = x.size(1),
                        .transpose_b = true,
                        .a_type = device::dtype_of(x.scalar_type()),
                        .b_type = device::dtype_of(weight.scalar_type()),
                        .d_type = device::dtype_of(out.scalar_type()),
                        .accumulate = accumulate,
                        .lda = rows_apart(x),
                        .ldb = rows_apart(weight),
                        .ldd = rows_apart(out)},
                       {.a = x.data_ptr(), .b = weight.data_ptr(), .d = out.data_ptr()});
}

at::Tensor TextKernels::gate(kernels::Activation function, const at::Tensor& uv) {
  const kernels::GatedActivation call = {.function = function,
                                         .rows = uv.size(0),
                                         .width = uv.size(1) / 2,
                                         .type = device::dtype_of(uv.scalar_type()),
                                         .uv = uv.data_ptr(),
                                         .g = uv.data_ptr(),
                                         .g_stride = uv.size(1)};
  if (uv.is_cuda()) {
    cuda::gated_activation(call);
  } else {
    kernels::gated_activation(call);
  }
  return uv.slice(1, 0, call.width);
}

void TextKernels::attend(const TextHeads& heads) {
  const kernels::RaggedAttention call = call_of(heads);
  if (heads.q.is_cuda()) {
    cuda::ragged_attention(call);
  } else {
    kernels::ragged_attention(call);
  }
}

}  // namespace kinora::ops
