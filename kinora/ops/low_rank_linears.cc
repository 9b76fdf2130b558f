#include "kinora/ops/low_rank_linears.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "kinora/core/rounding.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/branch_pass.h"

namespace kinora::ops {
namespace {

// Rows of 16-bit elements that start on 128 bytes: products are slower on others.
constexpr int64_t kRowElements = 64;

/// The least that kernels have; 0: none.
int64_t kernel_rank(int64_t rank) {
  for (const int64_t other : {8, 16, 32, 64}) {
    if (rank > 0 && rank <= other) {
      return other;
    }
  }
  return 0;
}

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

/// Whether there is room for the updates behind the rows of the weight, or of its copy, and below
/// them.
bool has_columns(const LinearWeights& linear) {
  return !linear.has_room() || linear.free_columns > 0;
}

bool has_rows(const LinearWeights& linear) {
  return !linear.has_room() || linear.free_rows > 0;
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

/// Whether kernels can read the rows: A may have columns of another part of its linear between
/// them.
bool starts_on_chunks(const at::Tensor& a) {
  constexpr int64_t kChunk = 8;  // elements: 16 bytes
  return a.stride(1) == 1 && a.stride(0) % kChunk == 0 && a.storage_offset() % kChunk == 0;
}

at::Tensor own_rows(const at::Tensor& a, const LowRankWeights& update, int64_t first) {
  return a.narrow(0, first, update.rank());
}

/// x.low, which is there: x A^T.
kernels::LowRankForward low_call(const Operand& x, const LinearWeights& linear,
                                 const JoinedFactors& factors) {
  return {.rows = x.value.size(0),
          .in = linear.weight.size(1),
          .out = linear.weight.size(0),
          .rank = factors.a.size(0),
          .type = device::dtype_of(x.value.scalar_type()),
          .scale = static_cast<float>(factors.scale),
          .x = x.value.const_data_ptr(),
          .x_stride = x.value.stride(0),
          .a = factors.a.const_data_ptr(),
          .a_stride = factors.a.stride(0),
          .b = factors.b.const_data_ptr(),
          .low = x.low.data_ptr(),
          .low_stride = x.low.stride(0)};
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
  return kernel_rank(sum);
}

bool is_joined(const LinearWeights& linear) {
  const LowRankWeights& first = linear.updates.front();
  return linear.updates.size() == 1 && first.rows() == linear.weight.size(0) &&
         first.rank() == joined_rank(linear) && starts_on_chunks(first.a);
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

int64_t LowRankLinears::room_beside(int64_t out, int64_t in, int64_t rank, at::ScalarType type) {
  constexpr int64_t kRow = 16;  // of what dequantise() writes
  const int64_t room = kernel_rank(rank);
  const bool is_supported = room > 0 && in % kRow == 0 &&
                            (type == at::kBFloat16 || type == at::kHalf) &&
                            cuda::low_rank_supported(device::dtype_of(type), in, out, room);
  return is_supported ? room : 0;
}

at::Tensor LowRankLinears::empty(int64_t rows, int64_t columns, int64_t room,
                                 const at::TensorOptions& options) {
  if (room == 0) {
    return at::empty({rows, columns}, options);
  }
  const int64_t pitch = round_up(columns + room, kRowElements);
  return at::empty({rows, pitch}, options).narrow(1, 0, columns);
}

LowRankLinears::Joined LowRankLinears::new_joined(const LinearWeights& linear) {
  const at::Tensor& weight = linear.weight;
  const int64_t rank = joined_rank(linear);
  return {.weight = weight,
          .matrix = linear.has_room()
                        ? weight
                        : empty(weight.size(0) + rank, weight.size(1), rank, weight.options()),
          .factors = is_joined(linear) ? JoinedFactors{} : new_factors(linear)};
}

JoinedFactors LowRankLinears::new_factors(const LinearWeights& linear) {
  const LowRankWeights& update = linear.updates.front();
  if (is_joined(linear)) {
    return {.a = update.a, .b = update.b, .scale = update.scale};
  }
  const at::Tensor& weight = linear.weight;
  const int64_t rank = joined_rank(linear);
  JoinedFactors factors{.a = at::zeros({rank, weight.size(1)}, weight.options()),
                        .b = at::zeros({weight.size(0), rank}, weight.options()),
                        .scale = update.scale};
  join(linear, factors);
  return factors;
}

bool LowRankLinears::is_kept(const LinearWeights& linear) {
  if (take_turns_) {
    return false;
  }
  const auto key = key_of(linear.weight);
  if (kept_.contains(key)) {
    return true;
  }
  const int64_t bytes = linear.has_room() ? 0 : static_cast<int64_t>(linear.weight.nbytes());
  if (copied_ + bytes > kMostKept) {
    return false;
  }
  copied_ += bytes;
  kept_[key];
  return true;
}

LowRankLinears::Joined& LowRankLinears::joined_of(const LinearWeights& linear) {
  const at::Tensor& weight = linear.weight;
  const bool keeps = is_kept(linear);
  Joined& joined = keeps ? kept_[key_of(weight)] : turn_;
  const int64_t version = weight._version();
  if (!keeps || !joined.weight.defined()) {
    joined = {};  // its memory is the next one's
    joined = new_joined(linear);
  }
  if (joined.version != version) {
    joined.version = version;
    if (!linear.has_room()) {
      joined.matrix.narrow(0, 0, weight.size(0)).copy_(weight);
    }
  }
  return joined;
}

JoinedFactors LowRankLinears::factors_of(const Joined& joined, const LinearWeights& linear) {
  return is_joined(linear) ? new_factors(linear) : joined.factors;
}

LowRankLinears::Joined& LowRankLinears::write(Operand& x, const LinearWeights& linear) {
  Joined& joined = joined_of(linear);
  const JoinedFactors factors = factors_of(joined, linear);
  if (!is_joined(linear)) {
    join(linear, factors);
  }
  const int64_t out = linear.weight.size(0);
  const int64_t in = linear.weight.size(1);
  const at::Tensor whole =
      joined.matrix.as_strided({out + x.room, in + x.room}, joined.matrix.strides());
  const bool needs_low = !x.low.defined();
  x.low = room_of(x.value, x.room);
  kernels::LowRankForward call = low_call(x, linear, factors);
  call.low = needs_low ? call.low : nullptr;
  call.behind = has_columns(linear) ? whole.narrow(1, in, x.room).data_ptr() : nullptr;
  call.below = has_rows(linear) ? whole.narrow(0, out, x.room).data_ptr() : nullptr;
  call.weight_stride = whole.stride(0);
  cuda::low_rank_forward(call);
  return joined;
}

JoinedProduct LowRankLinears::forward(Operand& x, const LinearWeights& linear) {
  const Joined& joined = write(x, linear);
  const LinearWeights plain{
      .weight = linear.weight, .bias = linear.bias, .weight_grad = {}, .bias_grad = {}};
  if (!has_columns(linear)) {
    return {{.value = x.value}, plain, raised(linear, x.low)};
  }
  LinearWeights weights = plain;
  weights.weight = with_room(joined.matrix.narrow(0, 0, linear.weight.size(0)), x.room);
  return {{.value = with_room(x.value, x.room)}, std::move(weights)};
}

JoinedProduct LowRankLinears::backward(const Operand& dy, Operand& x, const LinearWeights& linear,
                                       UpdateGradients& gradients) {
  const Joined& joined = x.low.defined() && is_kept(linear) ? joined_of(linear) : write(x, linear);
  const JoinedFactors factors = factors_of(joined, linear);
  const at::Tensor dlow = room_of(dy.value, dy.room);
  add_gradients(dy, x, dlow, factors, linear, gradients);
  LinearWeights weights{.weight = linear.weight, .bias = {}, .weight_grad = {}, .bias_grad = {}};
  if (!has_rows(linear)) {
    return {{.value = dy.value}, std::move(weights), at::mm(dlow, factors.a)};
  }
  weights.weight = joined.matrix.as_strided(
      {linear.weight.size(0) + dy.room, linear.weight.size(1)}, joined.matrix.strides());
  return {{.value = with_room(dy.value, dy.room)}, std::move(weights)};
}

void LowRankLinears::make_low(Operand& x, const LinearWeights& linear,
                              const JoinedFactors& factors) {
  x.low = at::empty({x.value.size(0), factors.a.size(0)}, x.value.options());
  cuda::low_rank_forward(low_call(x, linear, factors));
}

at::Tensor LowRankLinears::forward_apart(Operand& x, const LinearWeights& linear) {
  if (!x.low.defined()) {
    make_low(x, linear, new_factors(linear));
  }
  return raised(linear, x.low);
}

at::Tensor LowRankLinears::backward_apart(const Operand& dy, Operand& x,
                                          const LinearWeights& linear, UpdateGradients& gradients) {
  const JoinedFactors factors = new_factors(linear);
  if (!x.low.defined()) {
    make_low(x, linear, factors);
  }
  const at::Tensor dlow = at::empty(x.low.sizes(), x.low.options());
  add_gradients(dy, x, dlow, factors, linear, gradients);
  return at::mm(dlow, factors.a);
}

void LowRankLinears::add_gradients(const Operand& dy, const Operand& x, const at::Tensor& dlow,
                                   const JoinedFactors& factors, const LinearWeights& linear,
                                   UpdateGradients& gradients) {
  const bool is_whole = is_joined(linear);
  const auto floats = dy.value.options().dtype(at::kFloat);
  const at::Tensor a_grad =
      is_whole ? linear.updates.front().a_grad : at::zeros(factors.a.sizes(), floats);
  const at::Tensor b_grad =
      is_whole ? linear.updates.front().b_grad : at::zeros(factors.b.sizes(), floats);
  const kernels::LowRankBackward call{.rows = x.value.size(0),
                                      .in = x.value.size(1),
                                      .out = linear.weight.size(0),
                                      .rank = dlow.size(1),
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
                                      .a_grad_stride = a_grad.stride(0),
                                      .b_grad = b_grad.data_ptr<float>()};
  cuda::LowRankParts parts{call, cuda::low_rank_backward(call)};
  if (is_whole) {
    gradients.wait(std::move(parts));
  } else {
    gradients.wait(std::move(parts), linear, a_grad, b_grad);
  }
}

}  // namespace kinora::ops
