#include "kinora/ops/low_rank_linears.h"

#include <ATen/ops/empty.h>

#include "kinora/device/host_bytes.h"

namespace kinora::ops {
namespace {

// Rows of 16-bit elements that start on 128 bytes: products are slower on others.
constexpr int64_t kRowElements = 64;

/// `matrix` and the room behind its rows.
at::Tensor with_room(const at::Tensor& matrix, int64_t room) {
  return matrix.as_strided({matrix.size(0), matrix.size(1) + room}, matrix.strides());
}

at::Tensor room_of(const at::Tensor& matrix, int64_t room) {
  return with_room(matrix, room).narrow(1, matrix.size(1), room);
}

}  // namespace

void UpdateGradients::add() {
  if (waiting_.empty()) {
    return;
  }
  cuda::low_rank_add_gradients(waiting_);
  waiting_.clear();
}

int64_t LowRankLinears::room(const LinearWeights& linear) {
  if (!linear.update) {
    return 0;
  }
  const at::Tensor& a = linear.update->a;
  const at::Tensor& weight = linear.weight;
  const bool is_supported = !linear.weight_grad.defined() &&
                            a.scalar_type() == weight.scalar_type() &&
                            (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf) &&
                            cuda::low_rank_supported(device::dtype_of(a.scalar_type()),
                                                     weight.size(1), weight.size(0), a.size(0));
  return is_supported ? a.size(0) : 0;
}

at::Tensor LowRankLinears::empty(int64_t rows, int64_t columns, int64_t room,
                                 const at::TensorOptions& options) {
  if (room == 0) {
    return at::empty({rows, columns}, options);
  }
  const int64_t pitch = (columns + room + kRowElements - 1) / kRowElements * kRowElements;
  return at::empty({rows, pitch}, options).narrow(1, 0, columns);
}

const at::Tensor& LowRankLinears::joined(const LinearWeights& linear) {
  const at::Tensor& weight = linear.weight;
  Copy& copy = copies_[weight.const_data_ptr()];
  const int64_t version = weight._version();
  if (copy.version != version) {
    copy.version = version;
    if (!copy.weight.defined()) {
      const int64_t rank = linear.update->a.size(0);
      copy.weight = weight;
      copy.joined = empty(weight.size(0) + rank, weight.size(1), rank, weight.options());
    }
    copy.joined.narrow(0, 0, weight.size(0)).copy_(weight);
  }
  return copy.joined;
}

void LowRankLinears::write_low(Operand& x, const LinearWeights& linear) {
  const LowRankWeights& update = *linear.update;
  const at::Tensor& weights = joined(linear);
  x.low = room_of(x.value, x.room);
  cuda::low_rank_forward({.rows = x.value.size(0),
                          .in = x.value.size(1),
                          .out = linear.weight.size(0),
                          .rank = update.a.size(0),
                          .type = device::dtype_of(x.value.scalar_type()),
                          .scale = static_cast<float>(update.scale),
                          .x = x.value.const_data_ptr(),
                          .x_stride = x.value.stride(0),
                          .a = update.a.const_data_ptr(),
                          .b = update.b.const_data_ptr(),
                          .low = x.low.data_ptr(),
                          .low_stride = x.low.stride(0),
                          .joined = weights.data_ptr(),
                          .joined_stride = weights.stride(0)});
}

JoinedProduct LowRankLinears::forward(Operand& x, const LinearWeights& linear) {
  write_low(x, linear);
  const int64_t rank = x.room;
  return {{.value = with_room(x.value, rank)},
          {.weight = with_room(joined(linear).narrow(0, 0, linear.weight.size(0)), rank),
           .bias = linear.bias,
           .weight_grad = {},
           .bias_grad = {}}};
}

JoinedProduct LowRankLinears::backward(const Operand& dy, Operand& x, const LinearWeights& linear,
                                       UpdateGradients& gradients) {
  if (!x.low.defined()) {
    write_low(x, linear);
  }
  const LowRankWeights& update = *linear.update;
  const at::Tensor dlow = room_of(dy.value, dy.room);
  const kernels::LowRankBackward call{.rows = x.value.size(0),
                                      .in = x.value.size(1),
                                      .out = linear.weight.size(0),
                                      .rank = update.a.size(0),
                                      .type = device::dtype_of(x.value.scalar_type()),
                                      .scale = static_cast<float>(update.scale),
                                      .dy = dy.value.const_data_ptr(),
                                      .dy_stride = dy.value.stride(0),
                                      .x = x.value.const_data_ptr(),
                                      .x_stride = x.value.stride(0),
                                      .low = x.low.const_data_ptr(),
                                      .low_stride = x.low.stride(0),
                                      .b = update.b.const_data_ptr(),
                                      .dlow = dlow.data_ptr(),
                                      .dlow_stride = dlow.stride(0),
                                      .a_grad = update.a_grad.data_ptr<float>(),
                                      .b_grad = update.b_grad.data_ptr<float>()};
  gradients.wait({call, cuda::low_rank_backward(call)});
  return {{.value = with_room(dy.value, dy.room)},
          {.weight = joined(linear), .bias = {}, .weight_grad = {}, .bias_grad = {}}};
}

}  // namespace kinora::ops
