// The launchers of a block's kernels by their CPU specifications (ops/block_launch.h), in place of
// those of a GPU: a test that is linked with this file goes a GPU's way on a CPU, in fp8, too.
// Products are sums in fp32 of what the operands stand for.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <functional>
#include <tuple>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/activation.h"
#include "kinora/kernels/column_sums.h"
#include "kinora/kernels/elements.h"
#include "kinora/ops/block_launch.h"

namespace kinora::ops::cuda {
namespace {

constexpr int kHopper = 90;

/// Runs it, unless nothing is computed.
void run(const std::function<void()>& kernel) {
  if (!device::in_dry_run()) {
    kernel();
  }
}

/// A matrix of an operand [rows, width], rows `stride` elements apart, 0: adjacent.
struct Matrix {
  const void* data;
  DType type;
  int64_t rows;
  int64_t width;
  int64_t stride;
};

/// What a row's element in block `block` of 128 is multiplied by: fp8.h, BlockQuantise.
float factor_at(const float* factors, kernels::Scaling scaling, const Matrix& matrix, int64_t row,
                int64_t block) {
  switch (scaling) {
    case kernels::Scaling::kTensor:
      return factors != nullptr ? *factors : 1.0F;
    case kernels::Scaling::kRow128:
      return factors[block * matrix.rows + row];
    case kernels::Scaling::kBlock128: {
      const int64_t blocks = ceil_div(matrix.width, kernels::kScaleBlock);
      return factors[row / kernels::kScaleBlock * round_up(blocks, 4) + block];
    }
  }
  KINORA_UNREACHABLE("[test] scaling ", static_cast<int>(scaling));
}

/// What it stands for: fp32 [rows, width].
at::Tensor values_of(const Matrix& matrix, const float* factors = nullptr,
                     kernels::Scaling scaling = kernels::Scaling::kTensor) {
  const at::Tensor values = at::empty({matrix.rows, matrix.width}, at::kFloat);
  auto* out = values.data_ptr<float>();
  const int64_t stride = matrix.stride > 0 ? matrix.stride : matrix.width;
  const bool is_fp8 = kernels::is_fp8(matrix.type);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.width; ++column) {
      const int64_t i = row * stride + column;
      const float value =
          is_fp8 ? kernels::fp8_to_float(static_cast<const uint8_t*>(matrix.data)[i], matrix.type)
                 : kernels::load_element(matrix.data, i, matrix.type);
      *out++ = value * factor_at(factors, scaling, matrix, row, column / kernels::kScaleBlock);
    }
  }
  return values;
}

}  // namespace

int kernel_capability(at::Device /*device*/) {
  return kHopper;
}

bool has_block_kernels(at::Device /*device*/, at::ScalarType /*type*/) {
  return true;
}

void residual_norm_forward(const kernels::ResidualNormForward& call) {
  run([&] { kernels::residual_norm_forward(call); });
}
void residual_norm_backward(const kernels::ResidualNormBackward& call) {
  run([&] { kernels::residual_norm_backward(call); });
}
void qk_norm_rotary_forward(const kernels::QkNormRotaryForward& call) {
  run([&] { kernels::qk_norm_rotary_forward(call); });
}
void qk_norm_rotary_backward(const kernels::QkNormRotaryBackward& call) {
  run([&] { kernels::qk_norm_rotary_backward(call); });
}
void rms_norm_forward(const kernels::RmsNormForward& call) {
  run([&] { kernels::rms_norm_forward(call); });
}
void rms_norm_backward(const kernels::RmsNormBackward& call) {
  run([&] { kernels::rms_norm_backward(call); });
}

bool low_rank_supported(DType /*type*/, int64_t /*in*/, int64_t /*out*/, int64_t /*rank*/) {
  return false;  // updates are products of libtorch
}
void low_rank_forward(const kernels::LowRankForward& /*call*/) {
  KINORA_UNREACHABLE("[test] low_rank_supported() is false");
}
at::Tensor low_rank_backward(const kernels::LowRankBackward& /*call*/) {
  KINORA_UNREACHABLE("[test] low_rank_supported() is false");
}
void low_rank_add_gradients(const std::vector<LowRankParts>& parts) {
  KINORA_CHECK(parts.empty(), kInternal, "[test] low_rank_supported() is false");
}

void add_column_sums(const at::Tensor& in, const at::Tensor& out) {
  run([&] {
    kernels::column_sums({.rows = in.size(0),
                          .width = in.size(1),
                          .row_stride = in.stride(0),
                          .type = device::dtype_of(in.scalar_type()),
                          .in = in.const_data_ptr(),
                          .out = out.data_ptr<float>()});
  });
}

void gelu(const at::Tensor& pre, const at::Tensor& out, const kernels::Fp8Output& out_fp8) {
  kernels::ActivationForward call;
  call.rows = pre.size(0);
  call.width = pre.size(1);
  call.type = device::dtype_of(pre.scalar_type());
  call.u = pre.const_data_ptr();
  call.g = out.defined() ? out.data_ptr() : nullptr;
  call.g_fp8 = out_fp8;
  run([&] { kernels::activation_forward(call); });
}

void gelu_backward(const at::Tensor& pre, const at::Tensor& grad, const at::Tensor& dpre,
                   const kernels::Fp8Output& dpre_fp8, const at::Tensor& bias_grad) {
  kernels::ActivationBackward call;
  call.rows = pre.size(0);
  call.width = pre.size(1);
  call.type = device::dtype_of(pre.scalar_type());
  call.u = pre.const_data_ptr();
  call.dg = grad.const_data_ptr();
  call.du = dpre.defined() ? dpre.data_ptr() : nullptr;
  call.du_fp8 = dpre_fp8;
  call.bias_grad = bias_grad.data_ptr<float>();
  run([&] { kernels::activation_backward(call); });
}

void quantise(const at::Tensor& in, const kernels::Fp8Output& out, const at::Tensor& column_sums) {
  run([&] {
    kernels::quantise(
        {.rows = in.size(0),
         .width = in.size(1),
         .type = device::dtype_of(in.scalar_type()),
         .in = in.const_data_ptr(),
         .out = out,
         .column_sums = column_sums.defined() ? column_sums.data_ptr<float>() : nullptr,
         .row_stride = in.size(0) > 1 ? in.stride(0) : 0});
  });
}

void block_quantise(const at::Tensor& in, kernels::BlockQuantise call) {
  call.rows = in.size(0);
  call.width = in.size(1);
  call.type = device::dtype_of(in.scalar_type());
  call.in = in.const_data_ptr();
  run([&] { kernels::block_quantise(call); });
}

void block_sums(const kernels::BlockSums& call) {
  run([&] { kernels::block_sums(call); });
}

void update_scales(const kernels::ScaleUpdate& update) {
  run([&] { kernels::update_scales(update); });
}

bool is_capturing() {
  return true;  // nothing is timed
}

double milliseconds(const std::function<void()>& /*launch*/) {
  KINORA_UNREACHABLE("[test] nothing is timed");
}

struct Products::Impl {};

Products::Products(bool /*deterministic*/) {}
Products::~Products() = default;

bool Products::supports(const kernels::MatmulProblem& problem) {
  const bool has_sizes =
      !kernels::is_fp8(problem.a_type) ||
      (problem.n % 16 == 0 && problem.k % 16 == 0 && !problem.transpose_a && problem.transpose_b);
  return has_sizes && problem.batch == 1 && !kernels::is_fp8(problem.d_type) &&
         (problem.epilogue == kernels::Epilogue::kNone ||
          problem.epilogue == kernels::Epilogue::kBias);
}

void Products::run(const kernels::MatmulProblem& problem,
                   const kernels::MatmulArguments& arguments) {
  KINORA_CHECK(supports(problem), kInternal, "[test] a product that is not supported");
  if (device::in_dry_run()) {
    return;
  }
  const auto& [m, n, k] = std::tuple(problem.m, problem.n, problem.k);
  const Matrix a = {arguments.a, problem.a_type, problem.transpose_a ? k : m,
                    problem.transpose_a ? m : k, problem.lda};
  const Matrix b = {arguments.b, problem.b_type, problem.transpose_b ? n : k,
                    problem.transpose_b ? k : n, problem.ldb};
  const at::Tensor left = values_of(a, arguments.a_scale, problem.a_scaling);
  const at::Tensor right = values_of(b, arguments.b_scale, problem.b_scaling);
  at::Tensor sum =
      at::mm(problem.transpose_a ? left.t() : left, problem.transpose_b ? right.t() : right);
  if (problem.accumulate) {
    sum.add_(values_of({arguments.d, problem.d_type, m, n, problem.ldd}));
  }
  if (problem.epilogue == kernels::Epilogue::kBias) {
    sum.add_(values_of({arguments.bias, kernels::bias_type(problem), 1, n, 0}));
  }
  const auto* values = sum.const_data_ptr<float>();
  const int64_t stride = problem.ldd > 0 ? problem.ldd : n;
  for (int64_t i = 0; i < m * n; ++i) {
    kernels::store_element(arguments.d, i / n * stride + i % n, problem.d_type, values[i]);
  }
}

std::vector<std::string> Products::report() const {
  return {};
}
std::string Products::choices() const {
  return {};
}
size_t Products::pin(const std::string& /*choices*/) {
  return 0;
}

std::map<std::string, std::string> library_versions() {
  return {};
}

struct FusedAttention::Impl {};

FusedAttention::FusedAttention(bool /*deterministic*/) {}
FusedAttention::~FusedAttention() = default;

std::string FusedAttention::unsupported_reason(const kernels::AttentionForward& /*call*/) {
  return "libtorch's is taken in this test";
}
void FusedAttention::forward(const kernels::AttentionForward& /*call*/) {
  KINORA_UNREACHABLE("[test] no attention is supported");
}
void FusedAttention::backward(const kernels::AttentionBackward& /*call*/) {
  KINORA_UNREACHABLE("[test] no attention is supported");
}
std::string FusedAttention::describe() const {
  return "libtorch's";
}

}  // namespace kinora::ops::cuda
