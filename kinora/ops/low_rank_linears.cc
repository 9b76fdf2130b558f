#include "kinora/ops/low_rank_linears.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

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

std::pair<const void*, int64_t> key_of(const at::Tensor& weight) {
  return {weight.storage().unsafeGetStorageImpl(), weight.storage_offset()};
}

/// visit(update, first) with the first of its columns among those of all.
template <typename Visit>
void for_each(const std::vector<LowRankWeights>& updates, const Visit& visit) {
  int64_t first = 0;
  for (const LowRankWeights& update : updates) {
    visit(update, first);
    first += update.rank();
  }
}

at::Tensor own_rows(const at::Tensor& a, const LowRankWeights& update, int64_t first) {
  return a.narrow(0, first, update.rank());
}

at::Tensor own_block(const at::Tensor& b, const LowRankWeights& update, int64_t first) {
  return b.narrow(0, update.first_row, update.rows()).narrow(1, first, update.rank());
}

}  // namespace

int64_t joined_rank(const LinearWeights& linear) {
  int64_t sum = 0;
  for (const LowRankWeights& update : linear.updates) {
    if (update.scale != linear.updates.front().scale) {
      return 0;
    }
    sum += update.rank();
  }
  for (const int64_t rank : {8, 16, 32, 64}) {
    if (sum > 0 && sum <= rank) {
      return rank;
    }
  }
  return 0;
}

bool is_joined(const LinearWeights& linear) {
  const LowRankWeights& first = linear.updates.front();
  return linear.updates.size() == 1 && first.rows() == linear.weight.size(0) &&
         first.rank() == joined_rank(linear) && first.a.is_contiguous();
}

void join(const LinearWeights& linear, const JoinedFactors& factors) {
  for_each(linear.updates, [&](const LowRankWeights& update, int64_t first) {
    own_rows(factors.a, update, first).copy_(update.a);
    own_block(factors.b, update, first).copy_(update.b);
  });
}

void add_parts(const std::vector<LowRankWeights>& updates, const at::Tensor& a_grad,
               const at::Tensor& b_grad) {
  for_each(updates, [&](const LowRankWeights& update, int64_t first) {
    at::Tensor(update.a_grad).add_(own_rows(a_grad, update, first));
    at::Tensor(update.b_grad).add_(own_block(b_grad, update, first));
  });
}

void UpdateGradients::wait(cuda::LowRankParts parts, const LinearWeights& linear,
                           const at::Tensor& a_grad, const at::Tensor& b_grad) {
  wait(std::move(parts));
  joined_.push_back({linear.updates, a_grad, b_grad});
}

void UpdateGradients::add() {
  if (waiting_.empty()) {
    return;
  }
  cuda::low_rank_add_gradients(waiting_);
  for (const Joined& joined : joined_) {
    add_parts(joined.updates, joined.a_grad, joined.b_grad);
  }
  waiting_.clear();
  joined_.clear();
}

int64_t LowRankLinears::room(const LinearWeights& linear) {
  if (linear.updates.empty()) {
    return 0;
  }
  const at::ScalarType type = linear.weight.scalar_type();
  const int64_t rank = joined_rank(linear);
  const bool is_supported =
      rank > 0 && !linear.weight_grad.defined() && (type == at::kBFloat16 || type == at::kHalf) &&
      std::ranges::all_of(
          linear.updates,
          [type](const LowRankWeights& update) { return update.a.scalar_type() == type; }) &&
      cuda::low_rank_supported(device::dtype_of(type), linear.weight.size(1), linear.weight.size(0),
                               rank);
  return is_supported ? rank : 0;
}

at::Tensor LowRankLinears::empty(int64_t rows, int64_t columns, int64_t room,
                                 const at::TensorOptions& options) {
  if (room == 0) {
    return at::empty({rows, columns}, options);
  }
  const int64_t pitch = (columns + room + kRowElements - 1) / kRowElements * kRowElements;
  return at::empty({rows, pitch}, options).narrow(1, 0, columns);
}

LowRankLinears::Copy LowRankLinears::new_copy(const LinearWeights& linear) {
  const at::Tensor& weight = linear.weight;
  const int64_t rank = joined_rank(linear);
  Copy copy{.weight = weight,
            .joined = empty(weight.size(0) + rank, weight.size(1), rank, weight.options()),
            .factors = {}};
  if (!is_joined(linear)) {
    copy.factors = {.a = at::zeros({rank, weight.size(1)}, weight.options()),
                    .b = at::zeros({weight.size(0), rank}, weight.options()),
                    .scale = linear.updates.front().scale};
  }
  return copy;
}

bool LowRankLinears::is_kept(const LinearWeights& linear) {
  if (take_turns_) {
    return false;
  }
  const auto key = key_of(linear.weight);
  if (copies_.contains(key)) {
    return true;
  }
  const auto bytes = static_cast<int64_t>(linear.weight.nbytes());
  if (kept_ + bytes > kMostKept) {
    return false;
  }
  kept_ += bytes;
  copies_[key];
  return true;
}

LowRankLinears::Copy& LowRankLinears::copy_of(const LinearWeights& linear) {
  const at::Tensor& weight = linear.weight;
  const bool keeps = is_kept(linear);
  Copy& copy = keeps ? copies_[key_of(weight)] : turn_;
  const int64_t version = weight._version();
  if (!keeps || !copy.weight.defined()) {
    copy = {};  // its memory is the next one's
    copy = new_copy(linear);
  }
  if (copy.version != version) {
    copy.version = version;
    copy.joined.narrow(0, 0, weight.size(0)).copy_(weight);
  }
  return copy;
}

JoinedFactors LowRankLinears::factors_of(const Copy& copy, const LinearWeights& linear) {
  if (is_joined(linear)) {
    const LowRankWeights& update = linear.updates.front();
    return {.a = update.a, .b = update.b, .scale = update.scale};
  }
  return copy.factors;
}

LowRankLinears::Copy& LowRankLinears::write_low(Operand& x, const LinearWeights& linear) {
  Copy& copy = copy_of(linear);
  const at::Tensor& weights = copy.joined;
  const JoinedFactors factors = factors_of(copy, linear);
  if (!is_joined(linear)) {
    join(linear, factors);
  }
  x.low = room_of(x.value, x.room);
  cuda::low_rank_forward({.rows = x.value.size(0),
                          .in = x.value.size(1),
                          .out = linear.weight.size(0),
                          .rank = x.room,
                          .type = device::dtype_of(x.value.scalar_type()),
                          .scale = static_cast<float>(factors.scale),
                          .x = x.value.const_data_ptr(),
                          .x_stride = x.value.stride(0),
                          .a = factors.a.const_data_ptr(),
                          .b = factors.b.const_data_ptr(),
                          .low = x.low.data_ptr(),
                          .low_stride = x.low.stride(0),
                          .joined = weights.data_ptr(),
                          .joined_stride = weights.stride(0)});
  return copy;
}

JoinedProduct LowRankLinears::forward(Operand& x, const LinearWeights& linear) {
  const Copy& copy = write_low(x, linear);
  const int64_t rank = x.room;
  return {{.value = with_room(x.value, rank)},
          {.weight = with_room(copy.joined.narrow(0, 0, linear.weight.size(0)), rank),
           .bias = linear.bias,
           .weight_grad = {},
           .bias_grad = {}}};
}

JoinedProduct LowRankLinears::backward(const Operand& dy, Operand& x, const LinearWeights& linear,
                                       UpdateGradients& gradients) {
  const Copy& copy = x.low.defined() && is_kept(linear) ? copy_of(linear) : write_low(x, linear);
  const JoinedFactors factors = factors_of(copy, linear);
  const bool is_whole = is_joined(linear);
  const auto floats = dy.value.options().dtype(at::kFloat);
  const at::Tensor a_grad =
      is_whole ? linear.updates.front().a_grad : at::zeros(factors.a.sizes(), floats);
  const at::Tensor b_grad =
      is_whole ? linear.updates.front().b_grad : at::zeros(factors.b.sizes(), floats);
  const at::Tensor dlow = room_of(dy.value, dy.room);
  const kernels::LowRankBackward call{.rows = x.value.size(0),
                                      .in = x.value.size(1),
                                      .out = linear.weight.size(0),
                                      .rank = dy.room,
                                      .type = device::dtype_of(x.value.scalar_type()),
                                      .scale = static_cast<float>(factors.scale),
                                      .dy = dy.value.const_data_ptr(),
                                      .dy_stride = dy.value.stride(0),
                                      .x = x.value.const_data_ptr(),
                                      .x_stride = x.value.stride(0),
                                      .low = x.low.const_data_ptr(),
                                      .low_stride = x.low.stride(0),
                                      .b = factors.b.const_data_ptr(),
                                      .dlow = dlow.data_ptr(),
                                      .dlow_stride = dlow.stride(0),
                                      .a_grad = a_grad.data_ptr<float>(),
                                      .b_grad = b_grad.data_ptr<float>()};
  cuda::LowRankParts parts{call, cuda::low_rank_backward(call)};
  if (is_whole) {
    gradients.wait(std::move(parts));
  } else {
    gradients.wait(std::move(parts), linear, a_grad, b_grad);
  }
  return {{.value = with_room(dy.value, dy.room)},
          {.weight = copy.joined, .bias = {}, .weight_grad = {}, .bias_grad = {}}};
}

}  // namespace kinora::ops
