// A CPU-only build: nothing of block_launch.h can run, and callers ask has_block_kernels() first.
#include "kinora/core/error.h"
#include "kinora/ops/block_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void refuse() {
  KINORA_UNREACHABLE("[ops] a GPU kernel was called in a build without GPU support");
}

}  // namespace

struct Products::Impl {};
struct FusedAttention::Impl {};

bool is_capturing() {
  return false;
}
double milliseconds(const std::function<void()>& /*launch*/) {
  refuse();
}
bool has_block_kernels(at::Device /*device*/, at::ScalarType /*type*/) {
  return false;
}
void residual_norm_forward(const kernels::ResidualNormForward& /*call*/) {
  refuse();
}
void residual_norm_backward(const kernels::ResidualNormBackward& /*call*/) {
  refuse();
}
void qk_norm_rotary_forward(const kernels::QkNormRotaryForward& /*call*/) {
  refuse();
}
void qk_norm_rotary_backward(const kernels::QkNormRotaryBackward& /*call*/) {
  refuse();
}
void add_column_sums(const at::Tensor& /*in*/, const at::Tensor& /*out*/) {
  refuse();
}
void gelu(const at::Tensor& /*pre*/, const at::Tensor& /*out*/,
          const kernels::Fp8Output& /*out_fp8*/) {
  refuse();
}
void gelu_backward(const at::Tensor& /*pre*/, const at::Tensor& /*grad*/,
                   const at::Tensor& /*dpre*/, const kernels::Fp8Output& /*dpre_fp8*/,
                   const at::Tensor& /*bias_grad*/) {
  refuse();
}
void quantise(const at::Tensor& /*in*/, const kernels::Fp8Output& /*out*/) {
  refuse();
}
void block_quantise(const at::Tensor& /*in*/, kernels::BlockQuantise /*call*/) {
  refuse();
}
void largest_magnitude(const at::Tensor& /*in*/, float* /*amax*/) {
  refuse();
}
void update_scales(const kernels::ScaleUpdate& /*update*/) {
  refuse();
}

Products::Products(bool /*deterministic*/) {
  refuse();
}
Products::~Products() = default;
bool Products::supports(const kernels::MatmulProblem& /*problem*/) {
  refuse();
}
void Products::run(const kernels::MatmulProblem& /*problem*/,
                   const kernels::MatmulArguments& /*arguments*/) {
  refuse();
}
std::vector<std::string> Products::report() const {
  refuse();
}
std::string Products::choices() const {
  refuse();
}
size_t Products::pin(const std::string& /*choices*/) {
  refuse();
}

std::map<std::string, std::string> library_versions() {
  return {};
}

FusedAttention::FusedAttention(bool /*deterministic*/) {
  refuse();
}
FusedAttention::~FusedAttention() = default;
std::string FusedAttention::unsupported_reason(const kernels::AttentionForward& /*call*/) {
  refuse();
}
void FusedAttention::forward(const kernels::AttentionForward& /*call*/) {
  refuse();
}
void FusedAttention::backward(const kernels::AttentionBackward& /*call*/) {
  refuse();
}
std::string FusedAttention::describe() const {
  refuse();
}

}  // namespace kinora::ops::cuda
