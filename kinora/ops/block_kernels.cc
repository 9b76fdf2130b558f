#include "kinora/ops/block_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <sstream>

#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/block_composed.h"
#include "kinora/ops/block_impl.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/branch_pass.h"

namespace kinora::ops {
namespace {

using kernels::Epilogue;
using kernels::MatmulProblem;

/// Whether a part that `can` run by its own kernel does. kConfig where it must and cannot.
bool choose(Switch option, bool can, const char* part) {
  KINORA_CHECK(option != Switch::kOn || can, kConfig, "[kernels] kernels.", part,
               " is on, but its kernels cannot run here. Hint: auto takes slower ones.");
  return option != Switch::kOff && can;
}

kernels::VectorView view(const at::Tensor& vectors) {
  if (!vectors.defined()) {
    return {};
  }
  return {vectors.const_data_ptr<float>(), vectors.stride(0), nullptr};
}

/// Null where it is undefined.
float* floats(const at::Tensor& vectors) {
  return vectors.defined() ? vectors.data_ptr<float>() : nullptr;
}

int64_t vector_stride(const at::Tensor& vectors) {
  return vectors.defined() ? vectors.stride(0) : 0;
}

/// vectors: [V, C].
kernels::VectorRows rows_of_vectors(const at::Tensor& rows, const at::Tensor& vectors,
                                    int64_t first_rows) {
  if (first_rows == 0) {
    const int64_t each = rows.size(0) / vectors.size(0);
    return {each, each};
  }
  return {first_rows, rows.size(0) / (vectors.size(0) / 2) - first_rows};
}

void check_rows(const at::Tensor& tensor, const char* name, const at::Tensor& like) {
  KINORA_CHECK(
      tensor.sizes() == like.sizes() && tensor.is_contiguous() && tensor.device() == like.device(),
      kInternal, "[kernels] ", name, " must be contiguous ", like.sizes(), ", got ",
      tensor.sizes());
}

int64_t row_stride(const at::Tensor& matrix) {
  KINORA_CHECK(matrix.dim() == 2 && (matrix.stride(1) == 1 || matrix.size(1) == 1), kInternal,
               "[kernels] a matrix needs adjacent columns, got ", matrix.sizes(), " with strides ",
               matrix.strides());
  return matrix.stride(0);
}

MatmulProblem forward_problem(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& out) {
  return {.m = x.size(0),
          .n = weight.size(0),
          .k = x.size(1),
          .transpose_b = true,
          .a_type = device::dtype_of(x.scalar_type()),
          .b_type = device::dtype_of(weight.scalar_type()),
          .d_type = device::dtype_of(out.scalar_type()),
          .lda = row_stride(x),
          .ldb = row_stride(weight),
          .ldd = row_stride(out)};
}

MatmulProblem input_grad_problem(const at::Tensor& dy, const at::Tensor& weight,
                                 const at::Tensor& out) {
  return {.m = dy.size(0),
          .n = weight.size(1),
          .k = dy.size(1),
          .a_type = device::dtype_of(dy.scalar_type()),
          .b_type = device::dtype_of(weight.scalar_type()),
          .d_type = device::dtype_of(out.scalar_type()),
          .lda = row_stride(dy),
          .ldb = row_stride(weight),
          .ldd = row_stride(out)};
}

/// dW (fp32, maybe some columns of a matrix) (+)= dy^T x.
MatmulProblem weight_grad_problem(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& grad,
                                  bool overwrite) {
  return {.m = dy.size(1),
          .n = x.size(1),
          .k = dy.size(0),
          .transpose_a = true,
          .a_type = device::dtype_of(dy.scalar_type()),
          .b_type = device::dtype_of(x.scalar_type()),
          .d_type = DType::kF32,
          .accumulate = !overwrite,
          .lda = row_stride(dy),
          .ldb = row_stride(x),
          .ldd = grad.is_contiguous() ? 0 : row_stride(grad)};
}

}  // namespace

BlockKernels::Impl::Target BlockKernels::Impl::target(int64_t number, Fp8::Role role,
                                                      at::IntArrayRef sizes,
                                                      at::ScalarType value_type,
                                                      int64_t room) const {
  Target target;
  const bool quantises = fuses(number, sizes[0]);
  if (quantises) {
    target.operand = fp8->fp8().unfilled(sizes, number, role);
    target.fp8 = fp8->fp8().output(target.operand, role);
  }
  if (!quantises || fp8->fp8().update_rank(number) > 0) {
    target.operand.value =
        LowRankLinears::empty(sizes[0], sizes[1], room, at::device(device).dtype(value_type));
  }
  target.operand.room = room;
  return target;
}

Operand BlockKernels::Impl::finished(Target target, int64_t number, Fp8::Role role) const {
  if (kernels::is_wanted(target.fp8) || !covers(number, target.operand.rows())) {
    target.operand.number = number;
    return std::move(target.operand);
  }
  Operand operand = fp8->operand(target.operand.value, number, role);
  operand.room = target.operand.room;
  return operand;
}

bool BlockKernels::Impl::choose_bias_grad_type(MatmulProblem* problem) const {
  problem->bias_grad_type = DType::kF32;
  if (products->supports(*problem)) {
    return true;
  }
  problem->bias_grad_type = DType::kBF16;
  return problem->a_type == DType::kBF16 && products->supports(*problem);
}

void BlockKernels::Impl::run_adding_bias_grad(const MatmulProblem& problem,
                                              kernels::MatmulArguments arguments,
                                              const at::Tensor& bias_grad) const {
  const at::Tensor sums =
      empty({1, kernels::vector_size(problem)}, device::scalar_type(problem.bias_grad_type));
  arguments.bias_grad = sums.data_ptr();
  products->run(problem, arguments);
  cuda::add_column_sums(sums, bias_grad);
}

BlockKernels::BlockKernels(const KernelOptions& options, at::Device device, at::ScalarType type,
                           bool deterministic)
    : impl_(new Impl{.device = device,
                     .type = type,
                     .deterministic = deterministic,
                     .ways = FastestWay(deterministic)}) {
  const bool can = cuda::has_block_kernels(device, type);
  impl_->own_norm = choose(options.adaln, can, "adaln");
  if (choose(options.epilogue, can, "epilogue")) {
    impl_->products = std::make_unique<cuda::Products>(deterministic);
  }
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  if (choose(options.attention, can && half, "attention")) {
    impl_->attention = std::make_unique<cuda::FusedAttention>(deterministic);
  }
  impl_->attention_fused = options.attention != Switch::kOff;
  impl_->attention_required = options.attention == Switch::kOn;
}

BlockKernels::~BlockKernels() = default;

bool BlockKernels::worthwhile(at::Device device, at::ScalarType type) {
  return (type == at::kBFloat16 || type == at::kHalf) && cuda::has_block_kernels(device, type);
}

void BlockKernels::use_fp8(std::unique_ptr<Fp8> fp8) {
  KINORA_CHECK(impl_->products != nullptr && impl_->own_norm, kConfig,
               "[fp8] train.fp8 needs kernels.adaln and kernels.epilogue, which are off");
  impl_->fp8 = std::make_unique<Fp8Linears>(
      std::move(fp8), impl_->type, *impl_->products, impl_->ways,
      [this](const at::Tensor& x, const at::Tensor& dy, const LinearWeights& weights,
             const Fp8Linears::Addends& addends) {
        (void)linear({.value = x}, weights, addends.y);
        if (!dy.defined()) {
          return;
        }
        (void)input_grad({.value = dy}, weights, addends.dx);
        if (weights.weight_grad.defined()) {
          weight_grad({.value = dy}, {.value = x}, weights, /*overwrite=*/true);
        }
      });
}

Fp8* BlockKernels::fp8() const {
  return impl_->fp8 != nullptr ? &impl_->fp8->fp8() : nullptr;
}

void BlockKernels::weights_take_turns() {
  impl_->low_rank.take_turns();
  if (fp8() != nullptr) {
    fp8()->frozen_take_turns();
  }
}

int64_t BlockKernels::room(const LinearWeights& linear) const {
  return impl_->products != nullptr && impl_->fp8 == nullptr ? LowRankLinears::room(linear) : 0;
}

int64_t BlockKernels::room_beside(int64_t out, int64_t in, int64_t rank) const {
  return impl_->products != nullptr && impl_->fp8 == nullptr
             ? LowRankLinears::room_beside(out, in, rank, impl_->type)
             : 0;
}

at::Tensor BlockKernels::empty_with_room(int64_t rows, int64_t columns, int64_t room) const {
  return LowRankLinears::empty(rows, columns, room, at::device(impl_->device).dtype(impl_->type));
}

JoinedProduct BlockKernels::joined(Operand& x, const LinearWeights& linear) {
  return impl_->low_rank.forward(x, linear);
}

JoinedProduct BlockKernels::joined_grad(const Operand& dy, Operand& x, const LinearWeights& linear,
                                        UpdateGradients& gradients) {
  return impl_->low_rank.backward(dy, x, linear, gradients);
}

at::Tensor BlockKernels::update(Operand& x, const LinearWeights& linear) const {
  if (impl_->products != nullptr && LowRankLinears::room(linear) > 0) {
    return LowRankLinears::forward_apart(x, linear);
  }
  if (!x.low.defined()) {
    x.low = low_of(linear, x.value);
  }
  return raised(linear, x.low);
}

at::Tensor BlockKernels::update_grad(const Operand& dy, Operand& x, const LinearWeights& linear,
                                     UpdateGradients& gradients) const {
  if (impl_->products != nullptr && LowRankLinears::room(linear) > 0 &&
      linear.updates.front().b_grad.defined()) {
    return LowRankLinears::backward_apart(dy, x, linear, gradients);
  }
  return update_backward(linear, dy.value, x.value,
                         x.low.defined() ? x.low : low_of(linear, x.value));
}

Operand BlockKernels::operand(const at::Tensor& value, int64_t number, bool is_gradient) {
  if (!impl_->covers(number, value.size(0))) {
    return {.value = value, .number = number};
  }
  return impl_->fp8->operand(value, number, is_gradient ? Fp8::kGradient : Fp8::kInput);
}

ResultGrad BlockKernels::result_grad(const at::Tensor& dy, int64_t number,
                                     const at::Tensor& bias_grad) {
  if (!impl_->covers(number, dy.size(0))) {
    return {{.value = dy, .number = number}, dy};
  }
  Operand operand = impl_->fp8->operand(dy, number, Fp8::kGradient, bias_grad);
  const bool is_added = operand.fp8.defined();
  return {std::move(operand), is_added ? at::Tensor() : dy};
}

at::Tensor BlockKernels::linear(const Operand& x, const LinearWeights& linear,
                                const at::Tensor& addend, const at::Tensor& out) {
  impl_->count(x, linear);
  if (x.fp8.defined()) {
    return impl_->fp8->linear(x, fp8()->weight(linear.number), linear.bias, addend, out);
  }
  if (addend.defined()) {
    if (!add_linear(x.value, linear, addend, /*accumulate=*/true)) {
      at::Tensor(addend).addmm_(x.value, linear.weight.t());
      if (linear.bias.defined()) {
        at::Tensor(addend).add_(linear.bias);
      }
    }
    return addend;
  }
  if (!impl_->products && !out.defined()) {
    return at::linear(x.value, linear.weight, linear.bias);
  }
  const at::Tensor result =
      out.defined() ? out
                    : impl_->empty({x.value.size(0), linear.weight.size(0)}, x.value.scalar_type());
  linear_into(x.value, linear, result);
  return result;
}

bool BlockKernels::add_linear(const at::Tensor& x, const LinearWeights& linear,
                              const at::Tensor& out, bool accumulate) {
  if (!impl_->products) {
    return false;
  }
  MatmulProblem problem = forward_problem(x, linear.weight, out);
  problem.accumulate = accumulate;
  at::Tensor typed_bias;
  if (linear.bias.defined()) {
    problem.epilogue = Epilogue::kBias;
    typed_bias = linear.bias.to(out.scalar_type());
  }
  if (!impl_->products->supports(problem)) {
    return false;
  }
  impl_->products->run(problem, {.a = x.data_ptr(),
                                 .b = linear.weight.data_ptr(),
                                 .d = out.data_ptr(),
                                 .bias = typed_bias.defined() ? typed_bias.data_ptr() : nullptr});
  return true;
}

void BlockKernels::linear_into(const at::Tensor& x, const LinearWeights& linear,
                               const at::Tensor& out) {
  if (!impl_->products) {
    composed::linear(x, linear.weight, linear.bias, out);
    return;
  }
  if (add_linear(x, linear, out, /*accumulate=*/false)) {
    return;
  }
  if (linear.bias.defined()) {
    at::Tensor(out).copy_(linear.bias.to(out.scalar_type()).expand_as(out));
  } else {
    at::Tensor(out).zero_();
  }
  MatmulProblem problem = forward_problem(x, linear.weight, out);
  problem.accumulate = true;
  impl_->products->run(problem,
                       {.a = x.data_ptr(), .b = linear.weight.data_ptr(), .d = out.data_ptr()});
}

bool BlockKernels::places_gelu(int64_t consumer, int64_t rows) const {
  return impl_->products != nullptr && !impl_->covers(consumer, rows);
}

BlockKernels::Gelu BlockKernels::linear_gelu(const Operand& x, const LinearWeights& linear,
                                             Consumer consumer, bool keep,
                                             const at::Tensor& addend) {
  Impl& impl = *impl_;
  const bool adds = addend.defined();
  if (!adds && !keep && impl.products && !x.fp8.defined() &&
      !impl.covers(consumer.number, x.rows())) {
    const at::Tensor out =
        consumer.out.defined()
            ? consumer.out
            : empty_with_room(x.value.size(0), linear.weight.size(0), consumer.room);
    MatmulProblem problem = forward_problem(x.value, linear.weight, out);
    problem.epilogue = Epilogue::kBiasGelu;
    if (impl.products->supports(problem)) {
      impl.products->run(problem, {.a = x.value.data_ptr(),
                                   .b = linear.weight.data_ptr(),
                                   .d = out.data_ptr(),
                                   .bias = linear.bias.data_ptr()});
      return {{}, {.value = out, .number = consumer.number, .room = consumer.room}};
    }
  }
  if (!adds && !keep && x.fp8.defined() && linear.bias.defined() &&
      impl.fuses(consumer.number, x.rows()) &&
      impl.fp8->has_linear_gelu(x, fp8()->weight(linear.number))) {
    const Operand& weight = fp8()->weight(linear.number);
    constexpr size_t kFused = 0;
    Operand out;
    const auto run = [&](size_t way) {
      out = way == kFused ? impl.fp8->linear_gelu(x, weight, linear.bias, consumer.number)
                          : gelu(impl.fp8->linear(x, weight, linear.bias), consumer);
    };
    const size_t way = impl.ways.choose(impl.fp8->gelu_problem(x, weight),
                                        {{"fused", true}, {"in steps", true}}, run);
    impl.count(x, linear);
    run(way);
    return {{}, std::move(out)};
  }
  if (!impl.products || x.fp8.defined() || impl.covers(consumer.number, x.rows()) ||
      (adds && !keep)) {
    const at::Tensor pre = this->linear(x, linear, addend);
    return {pre, gelu(pre, consumer)};
  }
  impl.count(x, linear);
  const at::Tensor other =
      impl.empty({x.value.size(0), linear.weight.size(0)}, x.value.scalar_type());
  const auto problem_of = [&](const at::Tensor& out) {
    MatmulProblem problem = forward_problem(x.value, linear.weight, out);
    problem.accumulate = adds;
    problem.aux_type = problem.d_type;
    problem.epilogue = Epilogue::kBiasGeluAux;
    return problem;
  };
  if (consumer.room > 0 && !adds) {  // only the product leaves room
    const at::Tensor out = empty_with_room(other.size(0), other.size(1), consumer.room);
    if (const MatmulProblem problem = problem_of(out); impl.products->supports(problem)) {
      impl.products->run(problem, {.a = x.value.data_ptr(),
                                   .b = linear.weight.data_ptr(),
                                   .d = out.data_ptr(),
                                   .bias = linear.bias.data_ptr(),
                                   .aux = other.data_ptr()});
      return {other, {.value = out, .number = consumer.number, .room = consumer.room}};
    }
  }
  const MatmulProblem problem = problem_of(other);
  constexpr size_t kFused = 0;
  // The product's result lies in `made`: fused the outputs, else what they are made of.
  const auto run = [&](size_t way, const at::Tensor& made) {
    if (way == kFused) {
      impl.products->run(problem, {.a = x.value.data_ptr(),
                                   .b = linear.weight.data_ptr(),
                                   .d = made.data_ptr(),
                                   .bias = linear.bias.data_ptr(),
                                   .aux = other.data_ptr()});
      return;
    }
    if (adds) {
      (void)this->linear({.value = x.value}, linear, made);
    } else {
      linear_into(x.value, linear, made);
    }
    cuda::gelu(made, other, {});
  };
  const size_t way =
      impl.ways.choose(problem, {{"fused", impl.products->supports(problem)}, {"in steps", true}},
                       // Not to the addend, which would be added to each time.
                       [&](size_t timed) { run(timed, at::empty_like(other)); });
  const at::Tensor made = adds ? addend : at::empty_like(other);
  run(way, made);
  const bool is_fused = way == kFused;
  return {is_fused ? other : made, {.value = is_fused ? made : other, .number = consumer.number}};
}

Operand BlockKernels::gelu(const at::Tensor& pre, Consumer consumer) {
  Impl& impl = *impl_;
  if (!impl.products) {
    return operand(composed::gelu(pre), consumer.number, false);
  }
  Impl::Target target = impl.target(consumer.number, Fp8::kInput, pre.sizes(), pre.scalar_type());
  cuda::gelu(pre, target.operand.value, target.fp8);
  return impl.finished(std::move(target), consumer.number, Fp8::kInput);
}

at::Tensor BlockKernels::input_grad(const Operand& dy, const LinearWeights& linear,
                                    const at::Tensor& addend) {
  impl_->count(dy, linear);
  if (dy.fp8.defined()) {
    return impl_->fp8->input_grad(dy, fp8()->weight(linear.number), addend);
  }
  if (addend.defined()) {
    if (!impl_->products) {
      return at::Tensor(addend).addmm_(dy.value, linear.weight);
    }
    MatmulProblem problem = input_grad_problem(dy.value, linear.weight, addend);
    problem.accumulate = true;
    impl_->products->run(
        problem, {.a = dy.value.data_ptr(), .b = linear.weight.data_ptr(), .d = addend.data_ptr()});
    return addend;
  }
  if (!impl_->products) {
    return at::matmul(dy.value, linear.weight);
  }
  at::Tensor out = impl_->empty({dy.value.size(0), linear.weight.size(1)}, dy.value.scalar_type());
  impl_->products->run(
      input_grad_problem(dy.value, linear.weight, out),
      {.a = dy.value.data_ptr(), .b = linear.weight.data_ptr(), .d = out.data_ptr()});
  return out;
}

Operand BlockKernels::gelu_input_grad(const Operand& dy, const LinearWeights& linear,
                                      const at::Tensor& pre, const LinearWeights& producer,
                                      const at::Tensor& addend) {
  Impl& impl = *impl_;
  if (impl.products && !dy.fp8.defined()) {
    impl.count(dy, linear);
    const bool adds = addend.defined();
    const bool has_bias = producer.bias_grad.defined();
    const int64_t free = adds ? 0 : room(producer);
    const auto made = [&] {
      return empty_with_room(dy.value.size(0), linear.weight.size(1), free);
    };
    const at::Tensor out = adds ? addend : made();
    MatmulProblem product = input_grad_problem(dy.value, linear.weight, out);
    product.accumulate = adds;
    MatmulProblem fused = product;
    fused.aux_type = product.d_type;
    fused.epilogue = Epilogue::kGeluGrad;
    MatmulProblem fused_with_bias = fused;
    fused_with_bias.epilogue = Epilogue::kGeluGradBias;
    const bool has_fused_with_bias = impl.choose_bias_grad_type(&fused_with_bias);
    constexpr size_t kFused = 0;
    constexpr size_t kFusedWithBias = 2;
    const auto run = [&](size_t way, const at::Tensor& grad, const at::Tensor& bias_grad) {
      kernels::MatmulArguments arguments{
          .a = dy.value.data_ptr(), .b = linear.weight.data_ptr(), .d = grad.data_ptr()};
      if (way == kFusedWithBias && has_bias) {
        arguments.aux = pre.data_ptr();
        impl.run_adding_bias_grad(fused_with_bias, arguments, bias_grad);
      } else if (way == kFused || way == kFusedWithBias) {
        arguments.aux = pre.data_ptr();
        impl.products->run(fused, arguments);
        if (has_bias) {
          add_column_sums(grad, bias_grad);
        }
      } else {
        impl.products->run(product, arguments);
        cuda::gelu_backward(pre, grad, grad, {}, bias_grad);
      }
    };
    // Not to the gradient, nor to the addend, which would be added to each time.
    const auto scratch = [&] { return impl.empty({pre.size(1)}, at::kFloat); };
    const bool has_fused = impl.products->supports(fused);
    if (free > 0 && !has_fused) {  // only the product leaves room
      return gelu_backward(input_grad(dy, linear), pre, producer);
    }
    const size_t way = impl.ways.choose(
        fused,
        {{"fused", has_fused},
         {"in steps", free == 0},
         {fused_with_bias.bias_grad_type == DType::kF32 ? "fused with the bias gradient"
                                                        : "fused with the bias gradient in bf16",
          has_fused_with_bias && has_bias}},
        [&](size_t timed) { run(timed, adds ? made() : out, scratch()); });
    run(way, out, has_bias ? producer.bias_grad : scratch());
    Operand result = operand(out, producer.number, true);
    result.room = free;
    return result;
  }
  return gelu_backward(input_grad(dy, linear, addend), pre, producer);
}

Operand BlockKernels::gelu_backward(const at::Tensor& dout, const at::Tensor& pre,
                                    const LinearWeights& producer) {
  if (!impl_->products) {
    const at::Tensor grad = composed::gelu_backward(dout, pre);
    if (producer.bias_grad.defined()) {
      add_column_sums(grad, producer.bias_grad);
    }
    return operand(grad, producer.number, true);
  }
  const at::Tensor bias_grad =
      producer.bias_grad.defined() ? producer.bias_grad : impl_->empty({dout.size(1)}, at::kFloat);
  if (!impl_->fuses(producer.number, dout.size(0))) {
    cuda::gelu_backward(pre, dout, dout, {}, bias_grad);
    return operand(dout, producer.number, true);
  }
  Operand result = fp8()->unfilled(dout.sizes(), producer.number, Fp8::kGradient);
  if (fp8()->update_rank(producer.number) > 0) {
    result.value = dout;  // in its place
  }
  cuda::gelu_backward(pre, dout, result.value, fp8()->output(result, Fp8::kGradient), bias_grad);
  return result;
}

void BlockKernels::put_off_weight_grads(std::vector<std::function<void()>>* late) {
  impl_->late = late;
}

bool BlockKernels::puts_off_weight_grads() const {
  return impl_->late != nullptr;
}

void BlockKernels::weight_grad(const Operand& dy, const Operand& x, const LinearWeights& linear,
                               bool overwrite) {
  if (impl_->late != nullptr) {
    impl_->late->push_back([=, this] { weight_grad(dy, x, linear, overwrite); });
    return;
  }
  impl_->count(dy, linear);
  if (dy.fp8.defined()) {
    impl_->fp8->weight_grad(dy, x, linear.weight_grad, overwrite);
    return;
  }
  if (!impl_->products) {
    const at::Tensor product = at::matmul(dy.value.t(), x.value);
    if (overwrite) {
      at::Tensor(linear.weight_grad).copy_(product);
    } else {
      at::Tensor(linear.weight_grad).add_(product);
    }
    return;
  }
  impl_->products->run(
      weight_grad_problem(dy.value, x.value, linear.weight_grad, overwrite),
      {.a = dy.value.data_ptr(), .b = x.value.data_ptr(), .d = linear.weight_grad.data_ptr()});
}

void BlockKernels::weight_and_bias_grad(const Operand& dy, const at::Tensor& dy_values,
                                        const Operand& x, const LinearWeights& linear,
                                        bool overwrite) {
  Impl& impl = *impl_;
  if (impl.late != nullptr) {
    impl.late->push_back([=, this] { weight_and_bias_grad(dy, dy_values, x, linear, overwrite); });
    return;
  }
  if (!impl.products) {
    add_column_sums(dy_values, linear.bias_grad);
    weight_grad(dy, x, linear, overwrite);
    return;
  }
  impl.count(dy, linear);
  const MatmulProblem product =
      weight_grad_problem(dy.value, x.value, linear.weight_grad, overwrite);
  MatmulProblem fused = product;
  fused.epilogue = Epilogue::kBiasGrad;
  const bool has_fused = impl.choose_bias_grad_type(&fused);
  constexpr size_t kInSteps = 0;
  const auto run = [&](size_t way, const at::Tensor& dw, const at::Tensor& db) {
    const kernels::MatmulArguments arguments{
        .a = dy.value.data_ptr(), .b = x.value.data_ptr(), .d = dw.data_ptr()};
    if (way == kInSteps) {
      add_column_sums(dy_values, db);
      impl.products->run(product, arguments);
    } else {
      impl.run_adding_bias_grad(fused, arguments, db);
    }
  };
  const size_t way = impl.ways.choose(
      product,
      {{"in steps", true},
       {fused.bias_grad_type == DType::kF32 ? "with the bias gradient"
                                            : "with the bias gradient in bf16",
        has_fused}},
      // Not to the gradients, which would be added to each time.
      [&](size_t timed) {
        run(timed,
            at::empty_strided(linear.weight_grad.sizes(), linear.weight_grad.strides(),
                              linear.weight_grad.options()),
            at::empty_like(linear.bias_grad));
      });
  run(way, linear.weight_grad, linear.bias_grad);
}

void BlockKernels::add_input_grad(const at::Tensor& dy, const at::Tensor& weight,
                                  const at::Tensor& out) {
  if (!impl_->products) {
    at::Tensor(out).add_(at::matmul(dy, weight));
    return;
  }
  MatmulProblem problem = input_grad_problem(dy, weight, out);
  problem.accumulate = true;
  impl_->products->run(problem, {.a = dy.data_ptr(), .b = weight.data_ptr(), .d = out.data_ptr()});
}

void BlockKernels::add_column_sums(const at::Tensor& in, const at::Tensor& out) {
  if (impl_->products) {
    cuda::add_column_sums(in, out);
  } else {
    at::Tensor(out).add_(in.to(at::kFloat).sum(0));
  }
}

SeamForward BlockKernels::seam(const at::Tensor& x, const at::Tensor& branch,
                               const SeamVectors& vectors, at::ScalarType h_type, bool keep,
                               Consumer consumer) {
  Impl& impl = *impl_;
  if (!impl.own_norm) {
    SeamForward result = composed::seam(x, branch, vectors, h_type);
    result.h = operand(result.h.value, consumer.number, false);
    return result;
  }
  SeamForward result{branch.defined() ? at::empty_like(x) : x, {}, {}};
  kernels::ResidualNormForward call{
      .rows = x.size(0),
      .width = x.size(1),
      .rows_of_vectors = rows_of_vectors(x, vectors.scale, vectors.first_rows),
      .epsilon = static_cast<float>(vectors.epsilon),
      .centres = vectors.centres,
      .type = device::dtype_of(x.scalar_type()),
      .h_type = device::dtype_of(h_type),
      .x = x.data_ptr(),
      .gate = view(vectors.gate),
      .scale = view(vectors.scale),
      .shift = view(vectors.shift)};
  Impl::Target h = impl.target(consumer.number, Fp8::kInput, x.sizes(), h_type, consumer.room);
  call.h_fp8 = h.fp8;
  if (const at::Tensor& values = h.operand.value; values.defined()) {
    call.h = values.data_ptr();
    call.h_stride = values.stride(0);
  }
  if (branch.defined()) {
    check_rows(branch, "branch", x);
    call.branch = branch.data_ptr();
    call.x_out = result.x.data_ptr();
  }
  if (keep) {
    result.statistics = {impl.empty({x.size(0)}, at::kFloat), impl.empty({x.size(0)}, at::kFloat)};
    call.mean = result.statistics.mean.data_ptr<float>();
    call.rstd = result.statistics.rstd.data_ptr<float>();
  }
  cuda::residual_norm_forward(call);
  result.h = impl.finished(std::move(h), consumer.number, Fp8::kInput);
  return result;
}

Operand BlockKernels::modulated_norm(const at::Tensor& x, const SeamVectors& vectors,
                                     Consumer consumer) {
  SeamVectors of_norm = vectors;
  of_norm.gate = at::Tensor();
  return seam(x, {}, of_norm, x.scalar_type(), true, consumer).h;
}

SeamBackward BlockKernels::seam_backward(const at::Tensor& dh, const at::Tensor& dx_out,
                                         const at::Tensor& x, const NormStatistics& statistics,
                                         const at::Tensor& branch, const SeamVectors& vectors,
                                         const SeamVectors& grads, const LinearWeights* producer) {
  Impl& impl = *impl_;
  const int64_t number = producer != nullptr ? producer->number : -1;
  if (!impl.own_norm) {
    SeamBackward result =
        composed::seam_backward(dh, dx_out, x, statistics, branch, vectors, grads,
                                producer != nullptr ? producer->bias_grad : at::Tensor());
    if (vectors.gate.defined()) {
      result.dbranch = operand(result.dbranch.value, number, true);
    }
    return result;
  }
  check_rows(dh, "dh", x);
  SeamBackward result{dx_out.defined() ? dx_out : at::empty_like(x), {}};
  kernels::ResidualNormBackward call{
      .rows = x.size(0),
      .width = x.size(1),
      .rows_of_vectors = rows_of_vectors(x, vectors.scale, vectors.first_rows),
      .type = device::dtype_of(x.scalar_type()),
      .dh_type = device::dtype_of(dh.scalar_type()),
      .centres = vectors.centres,
      .dh = dh.data_ptr(),
      .dx_out = dx_out.defined() ? dx_out.data_ptr() : nullptr,
      .x_out = x.data_ptr(),
      .mean = statistics.mean.const_data_ptr<float>(),
      .rstd = statistics.rstd.const_data_ptr<float>(),
      .gate = view(vectors.gate),
      .scale = view(vectors.scale),
      .dx = result.dx.data_ptr(),
      .dshift = floats(grads.shift),
      .dscale = floats(grads.scale),
      .dvector_stride = vector_stride(grads.shift)};
  if (!vectors.gate.defined()) {
    cuda::residual_norm_backward(call);
    return result;
  }
  if (grads.gate.defined()) {
    check_rows(branch, "branch", x);
    call.branch = branch.data_ptr();
    call.dgate = floats(grads.gate);
  }
  at::Tensor branch_sum;
  if (producer != nullptr && producer->bias_grad.defined()) {
    branch_sum = impl.empty(vectors.scale.sizes(), at::kFloat);
    call.dbranch_sum = branch_sum.data_ptr<float>();
  }
  Impl::Target dbranch = impl.target(number, Fp8::kGradient, x.sizes(), x.scalar_type(),
                                     producer != nullptr ? room(*producer) : 0);
  call.dbranch_fp8 = dbranch.fp8;
  if (const at::Tensor& values = dbranch.operand.value; values.defined()) {
    call.dbranch = values.data_ptr();
    call.dbranch_stride = values.stride(0);
  }
  cuda::residual_norm_backward(call);
  if (branch_sum.defined()) {
    add_column_sums(branch_sum, producer->bias_grad);
  }
  result.dbranch = impl.finished(std::move(dbranch), number, Fp8::kGradient);
  return result;
}

SeamForward BlockKernels::gated_add(const at::Tensor& x, const at::Tensor& branch,
                                    const SeamVectors& vectors, Consumer consumer) {
  Impl& impl = *impl_;
  const at::Tensor& gate = vectors.gate;
  if (!impl.own_norm) {
    const at::Tensor out = composed::gated_add(x, branch, vectors);
    return {out, operand(out, consumer.number, false), {}};
  }
  check_rows(branch, "branch", x);
  const at::Tensor out = at::empty_like(x);
  kernels::ResidualNormForward call{.rows = x.size(0),
                                    .width = x.size(1),
                                    .rows_of_vectors = rows_of_vectors(x, gate, vectors.first_rows),
                                    .has_norm = false,
                                    .type = device::dtype_of(x.scalar_type()),
                                    .h_type = device::dtype_of(x.scalar_type()),
                                    .x = x.data_ptr(),
                                    .branch = branch.data_ptr(),
                                    .gate = view(gate),
                                    .scale = {},
                                    .shift = {},
                                    .x_out = out.data_ptr()};
  if (!impl.fuses(consumer.number, x.size(0))) {
    cuda::residual_norm_forward(call);
    return {out, operand(out, consumer.number, false), {}};
  }
  Operand h = fp8()->unfilled(x.sizes(), consumer.number, Fp8::kInput);
  call.h_fp8 = fp8()->output(h, Fp8::kInput);
  cuda::residual_norm_forward(call);
  h.value = fp8()->update_rank(consumer.number) > 0 ? out : at::Tensor();
  return {out, std::move(h), {}};
}

ResultGrad BlockKernels::gated_add_backward(const at::Tensor& dout, const at::Tensor& branch,
                                            const SeamVectors& vectors, const at::Tensor& gate_grad,
                                            int64_t number, const at::Tensor& bias_grad) {
  Impl& impl = *impl_;
  const at::Tensor& gate = vectors.gate;
  if (!impl.own_norm) {
    return result_grad(composed::gated_add_backward(dout, branch, vectors, gate_grad), number,
                       bias_grad);
  }
  if (gate_grad.defined()) {
    check_rows(branch, "branch", dout);
  }
  kernels::ResidualNormBackward call{
      .rows = dout.size(0),
      .width = dout.size(1),
      .rows_of_vectors = rows_of_vectors(dout, gate, vectors.first_rows),
      .type = device::dtype_of(dout.scalar_type()),
      .dh_type = device::dtype_of(dout.scalar_type()),
      .dx_out = dout.data_ptr(),
      .branch = gate_grad.defined() ? branch.data_ptr() : nullptr,
      .gate = view(gate),
      .scale = {},
      .dgate = floats(gate_grad),
      .dvector_stride = vector_stride(gate_grad)};
  at::Tensor sum;
  if (bias_grad.defined()) {
    sum = impl.empty(gate.sizes(), at::kFloat);
    call.dbranch_sum = sum.data_ptr<float>();
  }
  Impl::Target dbranch = impl.target(number, Fp8::kGradient, dout.sizes(), dout.scalar_type());
  call.dbranch_fp8 = dbranch.fp8;
  if (const at::Tensor& values = dbranch.operand.value; values.defined()) {
    call.dbranch = values.data_ptr();
  }
  cuda::residual_norm_backward(call);
  if (sum.defined()) {
    add_column_sums(sum, bias_grad);
  }
  return {impl.finished(std::move(dbranch), number, Fp8::kGradient), {}};
}

bool BlockKernels::can_be_recorded() const {
  return device::is_gpu(impl_->device);
}

std::string BlockKernels::describe() const {
  std::ostringstream text;
  text << "norms " << (impl_->own_norm ? "own" : "composed") << ", products "
       << (!impl_->products ? "libtorch's"
           : impl_->deterministic
               ? "cuBLASLt, its first choices"
               : "cuBLASLt, searched (a second or two for each that is new here)");
  if (impl_->fp8 != nullptr) {
    text << " (" << impl_->fp8->describe() << ')';
  }
  text << ", attention "
       << (impl_->attention         ? impl_->attention->describe()
           : impl_->attention_fused ? std::string("libtorch's")
                                    : std::string("unfused"));
  if (!impl_->attention_refusal.empty()) {
    text << "; libtorch's, slower, where neither can: " << impl_->attention_refusal;
  }
  return text.str();
}

std::vector<std::string> BlockKernels::report() const {
  if (!impl_->products) {
    return {};
  }
  std::vector<std::string> lines = impl_->products->report();
  const std::vector<std::string> ways = impl_->ways.report();
  lines.insert(lines.end(), ways.begin(), ways.end());
  return lines;
}

std::string BlockKernels::product_choices() const {
  return impl_->products ? impl_->products->choices() : std::string();
}

size_t BlockKernels::pin_products(const std::string& choices) {
  return impl_->products ? impl_->products->pin(choices) : 0;
}

std::map<std::string, std::string> BlockKernels::library_versions() const {
  return impl_->device.is_cuda() ? cuda::library_versions() : std::map<std::string, std::string>();
}

}  // namespace kinora::ops
