#include "kinora/ops/fp8_linears.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/random.h"

namespace kinora::ops {
namespace {

using kernels::MatmulProblem;
using kernels::Scaling;

constexpr size_t kInFp8 = 0;  // of the ways
constexpr size_t kInType = 1;

constexpr const char* kLacks = "cuBLASLt has not all its products in fp8";

const char* name_of(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::kDelayed:
      return "delayed";
    case Fp8Scaling::kCurrent:
      return "current";
    case Fp8Scaling::kBlock:
      return "block";
  }
  KINORA_UNREACHABLE("[fp8] scaling ", static_cast<int>(scaling));
}

const char* name_of(at::ScalarType type) {
  return type == at::kHalf ? "fp16" : "bf16";
}

MatmulProblem without_bias(MatmulProblem problem) {
  problem.epilogue = kernels::Epilogue::kNone;
  return problem;
}

LinearShape product_shape(const Operand& operand, const Operand& weight) {
  return {.rows = operand.rows(), .in = weight.fp8.size(1), .out = weight.fp8.size(0)};
}

/// A linear and its operands, random: products of zeros take less power, and so less time.
struct Trial {
  Trial(const LinearShape& shape, const Fp8& like, at::ScalarType type)
      : fp8(1, like.device(), like.scaling(), like.use()) {
    const at::Device device = like.device();
    uint64_t sample = 0;
    const auto normal = [&](int64_t rows, int64_t columns, double deviation) {
      at::Tensor values = at::empty({rows, columns}, at::device(device).dtype(at::kFloat));
      random_fill(values, {.sample = sample++, .purpose = RandomPurpose::kInit},
                  kernels::Distribution::kNormal, deviation);
      return values.to(type);
    };
    x = normal(shape.rows, shape.in, 1.0);
    linear.weight = normal(shape.out, shape.in, 1.0 / std::sqrt(static_cast<double>(shape.in)));
    linear.bias = at::zeros({shape.out}, x.options());
    if (shape.trains_weight) {
      linear.weight_grad = at::empty({shape.out, shape.in}, x.options().dtype(at::kFloat));
    }
    if (shape.update_rank > 0) {
      a = normal(shape.update_rank, shape.in, 1.0);
      b = normal(shape.out, shape.update_rank, 1.0);
      low = normal(shape.rows, shape.update_rank, 1.0);
    }
    linear.number = 0;
    fp8.begin_step();
    fp8.begin_step();  // delayed scales are known, then
    fp8.know({linear});
    fp8.begin_block({linear}, /*is_forward=*/true, /*are_new=*/true);
    linear.number = -1;  // of the block's type
    x_fp8 = fp8.quantise(x, 0, Fp8::kInput);
    if (!fp8.is_for_sampling()) {
      dy = normal(shape.rows, shape.out, 1.0);
      dy_fp8 = fp8.quantise(dy, 0, Fp8::kGradient);
    }
  }

  Fp8 fp8;
  LinearWeights linear;
  at::Tensor x, dy;      // in sampling without dy
  at::Tensor a, b, low;  // of updates
  Operand x_fp8, dy_fp8;
};

/// Whether the library does not refuse to run it.
bool runs(const std::function<void()>& launch) {
  try {
    launch();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInternal) {
      throw;
    }
    return false;
  }
}

}  // namespace

Fp8Problems fp8_problems(Fp8Scaling scaling, const LinearShape& shape, DType type) {
  const bool in_blocks = scaling == Fp8Scaling::kBlock;
  const Scaling rows = in_blocks ? Scaling::kRow128 : Scaling::kTensor;
  const Scaling weight = in_blocks ? Scaling::kBlock128 : Scaling::kTensor;
  const DType gradient = fp8_type(scaling, Fp8::kGradient);
  const DType other = fp8_type(scaling, Fp8::kInput);  // weights, too
  return {.forward = {.m = shape.rows,
                      .n = shape.out,
                      .k = shape.in,
                      .transpose_b = true,
                      .a_type = other,
                      .b_type = other,
                      .d_type = type,
                      .epilogue = kernels::Epilogue::kBias,
                      .fast_accumulation = true,
                      .a_scaling = rows,
                      .b_scaling = weight},
          .input_grad = {.m = shape.rows,
                         .n = shape.in,
                         .k = shape.out,
                         .transpose_b = true,
                         .a_type = gradient,
                         .b_type = other,
                         .d_type = type,
                         .a_scaling = rows,
                         .b_scaling = weight},
          .weight_grad = {.m = shape.out,
                          .n = shape.in,
                          .k = kernels::transposed_pitch(shape.rows),
                          .transpose_b = true,
                          .a_type = gradient,
                          .b_type = other,
                          .d_type = DType::kF32,
                          .a_scaling = rows,
                          .b_scaling = rows}};
}

Fp8Linears::Fp8Linears(std::unique_ptr<Fp8> fp8, at::ScalarType type, cuda::Products& products,
                       FastestWay& ways, Plain plain)
    : fp8_(std::move(fp8)),
      type_(type),
      products_(products),
      ways_(ways),
      plain_(std::move(plain)) {}

LinearShape Fp8Linears::shape_of(int64_t number, int64_t rows) const {
  const at::Tensor& weight = fp8_->weight(number).fp8;
  return {.rows = rows,
          .in = weight.size(1),
          .out = weight.size(0),
          .trains_weight = fp8_->trains_weight(number),
          .update_rank = fp8_->update_rank(number)};
}

std::string Fp8Linears::obstacle(const LinearShape& shape) {
  const bool trains = !fp8_->is_for_sampling();
  const bool in_blocks = fp8_->scaling() == Fp8Scaling::kBlock;
  if (in_blocks && shape.rows % Fp8::kMultiple != 0) {
    return "block scaling takes multiples of " + std::to_string(Fp8::kMultiple) + " rows";
  }
  const Fp8Problems problems = fp8_problems(fp8_->scaling(), shape, device::dtype_of(type_));
  MatmulProblem adding = problems.weight_grad;
  adding.accumulate = true;
  const bool has_forward =
      products_.supports(problems.forward) && products_.supports(without_bias(problems.forward));
  const bool has_weight_grad = !shape.trains_weight || (products_.supports(problems.weight_grad) &&
                                                        products_.supports(adding));
  const bool has_all =
      has_forward && (!trains || (products_.supports(problems.input_grad) && has_weight_grad));
  return has_all ? "" : kLacks;
}

bool Fp8Linears::covers(int64_t number, int64_t rows) {
  if (number < 0 || number >= fp8_->num_linears()) {
    return false;
  }
  const auto [first, end] = parts_of(number);
  bool can = true;
  for (int64_t part = first; part < end; ++part) {
    const LinearShape shape = shape_of(part, rows);
    if (find(shape) == nullptr && cuda::is_capturing()) {
      can = can && obstacle(shape).empty();
    } else if (find(shape) == nullptr) {
      decisions_.push_back(decide(shape));
    }
  }
  return can && decided(number, rows).value_or(true);
}

const Fp8Linears::Decision* Fp8Linears::find(const LinearShape& shape) const {
  const auto found = std::ranges::find(decisions_, shape, &Decision::shape);
  return found != decisions_.end() ? &*found : nullptr;
}

std::optional<bool> Fp8Linears::decided(int64_t number, int64_t rows) const {
  const auto [first, end] = parts_of(number);
  double gain = 0.0;
  bool are_known = true;
  for (int64_t part = first; part < end; ++part) {
    const Decision* decision = find(shape_of(part, rows));
    if (decision != nullptr && !decision->can) {
      return false;
    }
    are_known = are_known && decision != nullptr;
    gain += decision != nullptr ? decision->gain : 0.0;
  }
  return are_known ? std::optional(gain >= 0.0) : std::nullopt;
}

std::pair<int64_t, int64_t> Fp8Linears::parts_of(int64_t number) const {
  const int64_t first = fp8_->first_part(number);
  int64_t end = number + 1;
  while (end < fp8_->num_linears() && fp8_->first_part(end) == first) {
    ++end;
  }
  return {first, end};
}

Fp8Linears::Decision Fp8Linears::decide(const LinearShape& shape) {
  if (std::string obstacle = this->obstacle(shape); !obstacle.empty()) {
    return {.shape = shape, .can = false, .gain = 0.0, .reason = std::move(obstacle)};
  }
  const Fp8Scaling scaling = fp8_->scaling();
  Trial trial(shape, *fp8_, type_);
  // Of a block's linears one operand comes from or goes to the residual stream, whose kernels
  // quantise it on their way where they know its scale. The other, at least as wide, takes a pass:
  // one by itself around attention, and around GELU the one that the block's type has within its
  // products.
  const bool quantises_both = scaling != Fp8Scaling::kDelayed;
  const bool input_is_wide = shape.in >= shape.out;
  const bool trains = !fp8_->is_for_sampling();
  const auto run = [&](size_t way) {
    Addends addends;
    if (shape.update_rank > 0) {
      addends = {at::mm(trial.low, trial.b.t()), at::mm(trial.low, trial.a)};
    }
    if (way != kInFp8) {
      plain_(trial.x, trial.dy, trial.linear, addends);
      return;
    }
    if (quantises_both || input_is_wide) {
      trial.x_fp8 = trial.fp8.quantise(trial.x, 0, Fp8::kInput);
    }
    if (trains && (quantises_both || !input_is_wide)) {
      trial.dy_fp8 = trial.fp8.quantise(trial.dy, 0, Fp8::kGradient);
    }
    const Operand& weight = trial.fp8.weight(0);
    (void)linear(trial.x_fp8, weight, trial.linear.bias, addends.y);
    if (!trains) {
      return;
    }
    (void)input_grad(trial.dy_fp8, weight, addends.dx);
    if (shape.trains_weight) {
      weight_grad(trial.dy_fp8, trial.x_fp8, trial.linear.weight_grad, /*overwrite=*/true);
    }
  };
  if (!runs([&] { run(kInFp8); })) {
    return {.shape = shape, .can = false, .gain = 0.0, .reason = kLacks};
  }
  const Fp8Problems problems = fp8_problems(scaling, shape, device::dtype_of(type_));
  // By which the three kinds of linears of one size are told apart.
  const MatmulProblem& part = shape.trains_weight     ? problems.weight_grad
                              : shape.update_rank > 0 ? problems.input_grad
                                                      : problems.forward;
  (void)ways_.choose(part, {{"fp8", true}, {name_of(type_), true}}, run);
  const std::vector<double> times = ways_.milliseconds(part);
  return {.shape = shape,
          .can = true,
          .gain = times.empty() ? 0.0 : times[kInType] - times[kInFp8],
          .reason = ways_.times(part)};
}

Operand Fp8Linears::operand(const at::Tensor& value, int64_t number, Fp8::Role role,
                            const at::Tensor& column_sums) {
  if (!fp8_->is_calibrating()) {
    return fp8_->quantise(value, number, role, column_sums);
  }
  fp8_->measure(value, number, role);
  return {.value = value, .number = number};
}

at::Tensor Fp8Linears::run_adding(MatmulProblem problem, kernels::MatmulArguments arguments,
                                  const at::Tensor& sum, const at::Tensor& to) {
  problem.accumulate = sum.defined();
  const bool is_one = !sum.defined() || products_.supports(problem);
  problem.accumulate = sum.defined() && is_one;
  at::Tensor out = sum.defined() && is_one ? sum : to;
  if (!out.defined()) {
    out = at::empty({problem.m, problem.n}, at::device(fp8_->device()).dtype(type_));
  }
  arguments.d = out.data_ptr();
  products_.run(problem, arguments);
  return is_one ? out : at::Tensor(sum).add_(out);
}

at::Tensor Fp8Linears::linear(const Operand& x, const Operand& weight, const at::Tensor& bias,
                              const at::Tensor& sum, const at::Tensor& out) {
  const MatmulProblem problem =
      fp8_problems(fp8_->scaling(), product_shape(x, weight), device::dtype_of(type_)).forward;
  return run_adding(bias.defined() ? problem : without_bias(problem),
                    {.a = x.fp8.data_ptr(),
                     .b = weight.fp8.data_ptr(),
                     .bias = bias.defined() ? bias.data_ptr() : nullptr,
                     .a_scale = x.factors.const_data_ptr<float>(),
                     .b_scale = weight.factors.const_data_ptr<float>()},
                    sum, out);
}

MatmulProblem Fp8Linears::gelu_problem(const Operand& x, const Operand& weight) const {
  MatmulProblem problem =
      fp8_problems(fp8_->scaling(), product_shape(x, weight), device::dtype_of(type_)).forward;
  problem.epilogue = kernels::Epilogue::kBiasGelu;
  problem.d_type = fp8_type(fp8_->scaling(), Fp8::kInput);
  return problem;
}

bool Fp8Linears::has_linear_gelu(const Operand& x, const Operand& weight) {
  const MatmulProblem problem = gelu_problem(x, weight);
  return fp8_->is_for_sampling() && type_ == device::scalar_type(kernels::bias_type(problem)) &&
         products_.supports(problem);
}

Operand Fp8Linears::linear_gelu(const Operand& x, const Operand& weight, const at::Tensor& bias,
                                int64_t consumer) {
  const MatmulProblem problem = gelu_problem(x, weight);
  Operand result = fp8_->unfilled({problem.m, problem.n}, consumer, Fp8::kInput);
  const kernels::Fp8Output output = fp8_->output(result, Fp8::kInput);
  products_.run(problem, {.a = x.fp8.data_ptr(),
                          .b = weight.fp8.data_ptr(),
                          .d = output.data,
                          .bias = bias.data_ptr(),
                          .a_scale = x.factors.const_data_ptr<float>(),
                          .b_scale = weight.factors.const_data_ptr<float>(),
                          .d_scale = output.scale,
                          .d_amax = output.amax});
  return result;
}

at::Tensor Fp8Linears::input_grad(const Operand& dy, const Operand& weight, const at::Tensor& sum) {
  return run_adding(
      fp8_problems(fp8_->scaling(), product_shape(dy, weight), device::dtype_of(type_)).input_grad,
      {.a = dy.fp8.data_ptr(),
       .b = weight.fp8_transposed.data_ptr(),
       .a_scale = dy.factors.const_data_ptr<float>(),
       .b_scale = weight.transposed_factors.const_data_ptr<float>()},
      sum);
}

void Fp8Linears::weight_grad(const Operand& dy, const Operand& x, const at::Tensor& out,
                             bool overwrite) {
  const LinearShape shape{.rows = x.fp8_transposed.size(1),
                          .in = x.fp8_transposed.size(0),
                          .out = dy.fp8_transposed.size(0)};
  MatmulProblem problem = fp8_problems(fp8_->scaling(), shape, device::dtype_of(type_)).weight_grad;
  problem.accumulate = !overwrite;
  problem.ldd = out.is_contiguous() ? 0 : out.stride(0);
  products_.run(problem, {.a = dy.fp8_transposed.data_ptr(),
                          .b = x.fp8_transposed.data_ptr(),
                          .d = out.data_ptr(),
                          .a_scale = dy.transposed_factors.const_data_ptr<float>(),
                          .b_scale = x.transposed_factors.const_data_ptr<float>()});
}

void Fp8Linears::count(const Operand& operand, const LinearWeights& linear) {
  if (operand.number < 0 || fp8_->is_calibrating()) {
    return;
  }
  const double flops =
      2.0 * static_cast<double>(operand.rows()) * static_cast<double>(linear.weight.numel());
  numbered_flops_ += flops;
  fp8_flops_ += operand.fp8.defined() || operand.fp8_transposed.defined() ? flops : 0.0;
}

std::string Fp8Linears::describe() const {
  std::ostringstream text;
  text.precision(3);
  text << "fp8 where it can, " << name_of(fp8_->scaling()) << " scaling";
  if (decisions_.empty()) {
    return text.str();
  }
  std::set<int64_t> rows;
  for (const Decision& decision : decisions_) {
    rows.insert(decision.shape.rows);
  }
  int64_t count = 0;
  int64_t num_in_fp8 = 0;
  std::vector<LinearShape> staying;
  for (int64_t number = 0; number < fp8_->num_linears(); ++number) {
    if (!fp8_->weight(number).fp8.defined()) {
      continue;  // another rank's
    }
    ++count;
    bool stays = false;
    for (const int64_t each : rows) {
      if (!decided(number, each).value_or(true)) {
        stays = true;
        staying.push_back(shape_of(number, each));
      }
    }
    num_in_fp8 += stays ? 0 : 1;
  }
  text << ": ";
  if (numbered_flops_ > 0.0) {
    text << 100.0 * fp8_flops_ / numbered_flops_ << " % of the blocks' arithmetic, ";
  }
  text << num_in_fp8 << " of " << count << " linears";
  for (const Decision& decision : decisions_) {
    if (const LinearShape& shape = decision.shape;
        std::ranges::find(staying, shape) != staying.end()) {
      text << "; " << shape.in << " -> " << shape.out << " of " << shape.rows << " rows stays "
           << name_of(type_) << ": " << decision.reason;
    }
  }
  return text.str();
}

}  // namespace kinora::ops
