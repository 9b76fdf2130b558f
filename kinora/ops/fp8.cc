#include "kinora/ops/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/any.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/block_launch.h"

namespace kinora::ops {
namespace {

kernels::ScaleUpdate scale_update(const at::Tensor& amax, const at::Tensor& history, int64_t window,
                                  const at::Tensor& largest, const at::Tensor& scale,
                                  const at::Tensor& inverse) {
  kernels::ScaleUpdate update;
  update.count = amax.numel();
  update.amax = amax.data_ptr<float>();
  update.history = window > 0 ? history.data_ptr<float>() : nullptr;
  update.window = window;
  update.largest = largest.const_data_ptr<float>();
  update.scale = scale.data_ptr<float>();
  update.inverse_scale = inverse.data_ptr<float>();
  return update;
}

/// With a factor for each block.
Operand unfilled_blocks(Operand operand, bool is_square) {
  const at::IntArrayRef shape = operand.fp8.sizes();
  const auto floats = operand.fp8.options().dtype(at::kFloat);
  operand.factors = at::empty({kernels::block_factors(shape[0], shape[1], is_square)}, floats);
  if (operand.fp8_transposed.defined()) {
    operand.transposed_factors =
        at::empty({kernels::block_factors(shape[1], shape[0], is_square)}, floats);
  }
  return operand;
}

constexpr int64_t kAllBits = -1;
constexpr int64_t kBitsOfExponent = 0x7f800000;  // of a float: a power of two is left

/// The bits of a value of `type` that E4M3 does not have: it has three behind the point.
int64_t further_digits(at::ScalarType type) {
  return type == at::kHalf ? 0x7f : 0xf;
}

/// Null where there is none.
void* data_or_null(const at::Tensor& bytes) {
  return bytes.defined() ? bytes.data_ptr() : nullptr;
}

void fill_blocks(const at::Tensor& value, bool is_square, const Operand& operand) {
  kernels::BlockQuantise call;
  call.is_square = is_square;
  call.out_type = DType::kF8E4M3;
  call.data = operand.fp8.data_ptr();
  call.factors = operand.factors.data_ptr<float>();
  call.transposed = data_or_null(operand.fp8_transposed);
  call.transposed_factors =
      operand.transposed_factors.defined() ? operand.transposed_factors.data_ptr<float>() : nullptr;
  cuda::block_quantise(value, call);
}

}  // namespace

DType fp8_type(Fp8Scaling scaling, Fp8::Role role) {
  return role == Fp8::kGradient && scaling != Fp8Scaling::kBlock ? DType::kF8E5M2 : DType::kF8E4M3;
}

bool Fp8::possible(at::Device device) {
  return device::in_dry_run() ? cuda::has_block_kernels(device, at::kBFloat16)
                              : cuda::kernel_capability(device) >= 89;
}

Fp8::Fp8(int64_t num_linears, at::Device device, Fp8Scaling scaling, Fp8Use use)
    : num_linears_(num_linears), device_(device), scaling_(scaling), use_(use) {
  const char* const key = is_for_sampling() ? "sample.fp8" : "train.fp8";
  KINORA_CHECK(possible(device), kConfig, "[fp8] ", key,
               " needs a GPU of compute capability 8.9 or more (Ada, Hopper or newer) and a build "
               "with nvcc. Hint: ",
               key, "=false computes in 16 bits");
  const auto options = at::device(device).dtype(at::kFloat);
  amax_ = at::zeros({2 * num_linears * kStride}, options);
  history_ = at::zeros({2 * num_linears * kStride, kFp8History}, options);
  scale_ = at::ones({2 * num_linears * kStride}, options);
  inverse_ = at::ones({2 * num_linears * kStride}, options);
  largest_ = at::full({num_linears, 2, kStride}, kernels::kLargestE4M3, options);
  largest_.select(1, kGradient).fill_(kernels::kLargestE5M2);
  weight_amax_ = at::zeros({num_linears * kStride}, options);
  weight_scale_ = at::ones({num_linears * kStride}, options);
  weight_inverse_ = at::ones({num_linears * kStride}, options);
  weight_largest_ = at::full({num_linears * kStride}, kernels::kLargestE4M3, options);
  weight_digits_ = at::full({num_linears * kStride}, kAllBits, options.dtype(at::kInt));
}

void Fp8::begin_anew() {
  num_steps_ = 0;
  amax_.zero_();
  history_.zero_();
}

Operand Fp8::unfilled_bytes(at::IntArrayRef shape, bool has_transposed) const {
  const auto bytes = at::device(device_).dtype(at::kByte);
  Operand operand;
  operand.fp8 = at::empty(shape, bytes);
  if (has_transposed) {
    operand.fp8_transposed = at::empty({shape[1], kernels::transposed_pitch(shape[0])}, bytes);
  }
  return operand;
}

void Fp8::begin_step() {
  if (is_delayed() && num_steps_ > 0) {
    cuda::update_scales(scale_update(amax_, history_, kFp8History, largest_, scale_, inverse_));
  }
  ++num_steps_;
  ++turn_;
}

Operand Fp8::unfilled_weight(at::IntArrayRef shape) const {
  Operand weight = unfilled_bytes(shape, /*has_transposed=*/!is_for_sampling());
  return scaling_ == Fp8Scaling::kBlock ? unfilled_blocks(std::move(weight), /*is_square=*/true)
                                        : weight;
}

bool Fp8::is_quantised(const LinearWeights& linear) const {
  const Linear& known = this->linear(linear.number);
  const at::Tensor& weight = linear.weight;
  return known.storage && known.version == weight._version() &&
         known.offset == weight.storage_offset() &&
         known.storage->lock().get() == weight.storage().unsafeGetStorageImpl();
}

void Fp8::make_room(const std::vector<LinearWeights>& of_block) {
  std::map<std::pair<int64_t, int64_t>, size_t> taken;
  for (const LinearWeights& linear : of_block) {
    if (linear.number < num_linears()) {
      continue;
    }
    linears_.resize(static_cast<size_t>(linear.number));  // what is between is not here
    int64_t rank = 0;
    for (const LowRankWeights& update : linear.updates) {
      rank += update.rank();
    }
    const at::IntArrayRef shape = linear.weight.sizes();
    Operand weight;
    if (takes_turns(linear)) {
      std::vector<Operand>& rooms = rooms_[{shape[0], shape[1]}];
      const size_t place = taken[{shape[0], shape[1]}]++;
      if (place == rooms.size()) {
        rooms.push_back(unfilled_weight(shape));
      }
      weight = rooms[place];
    } else {
      weight = unfilled_weight(shape);
    }
    if (scaling_ != Fp8Scaling::kBlock) {
      weight.factors = weight_inverse_.narrow(0, kStride * linear.number, 1);
      weight.transposed_factors = weight.factors;
    }
    linears_.push_back({.weight = std::move(weight),
                        .first_part = linear.first_part < 0 ? linear.number : linear.first_part,
                        .trains_weight = linear.weight_grad.defined(),
                        .update_rank = rank});
  }
}

void Fp8::learn_digits(const LinearWeights& linear) {
  if (device::in_dry_run()) {
    return;
  }
  constexpr int64_t kAtOnce = int64_t{1} << 22;
  const at::Tensor& weight = linear.weight;
  at::Tensor has_more = at::zeros({}, at::device(device_).dtype(at::kBool));
  for (const at::Tensor& rows : weight.split(std::max(int64_t{1}, kAtOnce / weight.size(1)))) {
    const at::Tensor further =
        at::bitwise_and(rows.view(at::kShort), further_digits(weight.scalar_type()));
    has_more = at::logical_or(has_more, at::any(further));
  }
  weight_digits_.narrow(0, kStride * linear.number, 1)
      .copy_(at::where(has_more, kAllBits, kBitsOfExponent));
}

void Fp8::scale_weights(const std::vector<LinearWeights>& linears) {
  if (linears.empty() || scaling_ == Fp8Scaling::kBlock) {
    return;
  }
  bool any_frozen = false;
  for (const LinearWeights& linear : linears) {
    cuda::quantise(linear.weight,
                   {.amax = weight_amax_.data_ptr<float>() + kStride * linear.number});
    if (trains(linear)) {
      continue;
    }
    any_frozen = true;
    Linear& known = linears_[static_cast<size_t>(linear.number)];
    if (!takes_turns(linear) || !known.knows_digits) {
      learn_digits(linear);
      known.knows_digits = true;
    }
  }
  // Those between that are not among these have no new magnitude, and stay.
  const int64_t first = linears.front().number;
  const int64_t count = linears.back().number + 1 - first;
  const auto of_these = [&](const at::Tensor& numbers) {
    return numbers.narrow(0, kStride * first, kStride * count);
  };
  const at::Tensor scales = of_these(weight_scale_);
  const at::Tensor inverses = of_these(weight_inverse_);
  cuda::update_scales(
      scale_update(of_these(weight_amax_), {}, 0, of_these(weight_largest_), scales, inverses));
  if (any_frozen && !device::in_dry_run()) {
    scales.view(at::kInt).bitwise_and_(of_these(weight_digits_));
    inverses.copy_(at::reciprocal(scales));
  }
}

void Fp8::fill_weight(const LinearWeights& linear, bool with_transposed) {
  Operand copies = weight(linear.number);
  if (!with_transposed) {
    copies.fp8_transposed = at::Tensor();
    copies.transposed_factors = at::Tensor();
  }
  if (scaling_ == Fp8Scaling::kBlock) {
    fill_blocks(linear.weight.contiguous(), /*is_square=*/true, copies);
    return;
  }
  cuda::quantise(linear.weight,
                 {.type = DType::kF8E4M3,
                  .data = copies.fp8.data_ptr(),
                  .transposed = data_or_null(copies.fp8_transposed),
                  .scale = weight_scale_.const_data_ptr<float>() + kStride * linear.number});
}

void Fp8::know(const std::vector<LinearWeights>& of_block) {
  make_room(of_block);
  std::vector<LinearWeights> stale;
  for (const LinearWeights& linear : of_block) {
    if (!trains(linear) && !takes_turns(linear) && !is_quantised(linear)) {
      stale.push_back(linear);
      Linear& known = linears_[static_cast<size_t>(linear.number)];
      known.storage = linear.weight.storage().getWeakStorageImpl();
      known.offset = linear.weight.storage_offset();
      known.version = linear.weight._version();
    }
  }
  scale_weights(stale);
  for (const LinearWeights& linear : stale) {
    fill_weight(linear, /*with_transposed=*/true);
  }
}

void Fp8::begin_block(const std::vector<LinearWeights>& linears, bool is_forward, bool are_new) {
  if (is_calibrating()) {
    return;
  }
  std::vector<LinearWeights> due;
  for (const LinearWeights& linear : linears) {
    if (linear.number < 0) {
      continue;
    }
    // The first pass of a step may have computed it in a function, as attention among ranks is.
    Linear& known = linears_[static_cast<size_t>(linear.number)];
    const bool is_new = trains(linear) && is_forward && (are_new || known.quantised_in != turn_);
    if (takes_turns(linear) || is_new) {
      due.push_back(linear);
      known.quantised_in = turn_;
    }
  }
  std::ranges::sort(due, {}, &LinearWeights::number);
  if (is_forward) {
    scale_weights(due);
  }
  for (const LinearWeights& linear : due) {  // backward alone reads transposed copies
    fill_weight(linear, /*with_transposed=*/!is_forward || !takes_turns(linear));
  }
}

at::Tensor Fp8::of_linears(const at::Tensor& numbers) const {
  std::vector<int64_t> shape = numbers.sizes().vec();
  shape[0] = kStride;
  shape.insert(shape.begin(), {num_linears_, 2});
  return numbers.view(shape).select(2, 0);
}

std::optional<Fp8State> Fp8::state() const {
  if (!is_delayed() || num_steps_ == 0) {
    return std::nullopt;
  }
  const auto on_host = [this](const at::Tensor& numbers) {
    return of_linears(numbers).to(at::kCPU).contiguous();
  };
  return Fp8State{on_host(amax_), on_host(history_), on_host(scale_)};
}

void Fp8::restore(const Fp8State& state) {
  const std::string fault = fault_of(state);
  KINORA_CHECK(fault.empty(), kIo, "[fp8] ", fault);
  KINORA_CHECK(state.amax.size(0) == num_linears_, kIo, "[fp8] the scales must be of ",
               num_linears_, " linears, got ", state.amax.size(0));
  of_linears(amax_).copy_(state.amax);
  of_linears(history_).copy_(state.history);
  of_linears(scale_).copy_(state.scale);
  num_steps_ = 1;  // begin_step() of the next one makes its scales of these
}

void Fp8::measure(const at::Tensor& value, int64_t number, Role role) {
  cuda::quantise(value, {.amax = amax_.data_ptr<float>() + place(number, role)});
}

Operand Fp8::unfilled(at::IntArrayRef shape, int64_t number, Role role) const {
  Operand operand = unfilled_bytes(shape, has_transposed(number));
  operand.factors = inverse_.narrow(0, place(number, role), 1);
  operand.transposed_factors = operand.factors;
  operand.number = number;
  return operand;
}

kernels::Fp8Output Fp8::output(const Operand& operand, Role role) const {
  const int64_t place = Fp8::place(operand.number, role);
  return {.type = fp8_type(scaling_, role),
          .data = operand.fp8.data_ptr(),
          .transposed = data_or_null(operand.fp8_transposed),
          .scale = scale_.const_data_ptr<float>() + place,
          .amax = is_delayed() ? amax_.data_ptr<float>() + place : nullptr};
}

Operand Fp8::quantise(const at::Tensor& value, int64_t number, Role role,
                      const at::Tensor& column_sums) {
  if (scaling_ == Fp8Scaling::kBlock) {
    if (column_sums.defined()) {
      cuda::add_column_sums(value, column_sums);
    }
    Operand operand = unfilled_blocks(unfilled_bytes(value.sizes(), has_transposed(number)),
                                      /*is_square=*/false);
    operand.number = number;
    operand.value = update_rank(number) > 0 ? value : at::Tensor();
    fill_blocks(value, /*is_square=*/false, operand);
    return operand;
  }
  Operand operand = unfilled(value.sizes(), number, role);
  operand.value = update_rank(number) > 0 ? value : at::Tensor();
  if (scaling_ == Fp8Scaling::kCurrent || (is_for_sampling() && !knows_scales())) {
    // A factor of the operand's own: another pass may quantise the linear's next one before
    // backward reads this.
    operand.factors = at::empty({1}, inverse_.options());
    operand.transposed_factors = operand.factors;
    measure(value, number, role);
    const auto own = [at = place(number, role)](const at::Tensor& numbers) {
      return numbers.view(-1).narrow(0, at, 1);
    };
    cuda::update_scales(
        scale_update(own(amax_), {}, 0, own(largest_), own(scale_), operand.factors));
  }
  cuda::quantise(value, output(operand, role), column_sums);
  return operand;
}

}  // namespace kinora::ops
