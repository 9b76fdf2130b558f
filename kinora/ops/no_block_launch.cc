// A CPU-only build: nothing of block_launch.h can run but for dry runs, and callers ask
// has_block_kernels() first.
#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/ops/block_dry_run.h"
#include "kinora/ops/block_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void refuse() {
  KINORA_UNREACHABLE("[ops] a GPU kernel was called in a build without GPU support");
}

void refuse_unless_dry() {
  if (!device::in_dry_run()) {
    refuse();
  }
}

}  // namespace

struct Products::Impl {};
struct FusedAttention::Impl {};

bool is_capturing() {
  return device::in_dry_run();
}
double milliseconds(const std::function<void()>& /*launch*/) {
  refuse();
}
int kernel_capability(at::Device /*device*/) {
  return 0;
}
bool has_block_kernels(at::Device device, at::ScalarType /*type*/) {
  return device::in_dry_run() && device::is_gpu(device);
}
void residual_norm_forward(const kernels::ResidualNormForward& /*call*/) {
  refuse_unless_dry();
}
void residual_norm_backward(const kernels::ResidualNormBackward& /*call*/) {
  refuse_unless_dry();
}
void qk_norm_rotary_forward(const kernels::QkNormRotaryForward& /*call*/) {
  refuse_unless_dry();
}
void qk_norm_rotary_backward(const kernels::QkNormRotaryBackward& /*call*/) {
  refuse_unless_dry();
}
void rms_norm_forward(const kernels::RmsNormForward& /*call*/) {
  refuse_unless_dry();
}
void rms_norm_backward(const kernels::RmsNormBackward& /*call*/) {
  refuse_unless_dry();
}
bool low_rank_supported(DType /*type*/, int64_t /*in*/, int64_t /*out*/, int64_t /*rank*/) {
  return device::in_dry_run();
}
void low_rank_forward(const kernels::LowRankForward& /*call*/) {
  refuse_unless_dry();
}
at::Tensor low_rank_backward(const kernels::LowRankBackward& /*call*/) {
  refuse_unless_dry();
  return {};
}
void low_rank_add_gradients(const std::vector<LowRankParts>& /*parts*/) {
  refuse_unless_dry();
}
void add_column_sums(const at::Tensor& /*in*/, const at::Tensor& /*out*/) {
  refuse_unless_dry();
}
void gelu(const at::Tensor& /*pre*/, const at::Tensor& /*out*/,
          const kernels::Fp8Output& /*out_fp8*/) {
  refuse_unless_dry();
}
void gelu_backward(const at::Tensor& /*pre*/, const at::Tensor& /*grad*/,
                   const at::Tensor& /*dpre*/, const kernels::Fp8Output& /*dpre_fp8*/,
                   const at::Tensor& /*bias_grad*/) {
  refuse_unless_dry();
}
void quantise(const at::Tensor& /*in*/, const kernels::Fp8Output& /*out*/,
              const at::Tensor& /*column_sums*/) {
  refuse_unless_dry();
}
void block_quantise(const at::Tensor& /*in*/, kernels::BlockQuantise /*call*/) {
  refuse_unless_dry();
}
void block_sums(const kernels::BlockSums& /*call*/) {
  refuse_unless_dry();
}
void update_scales(const kernels::ScaleUpdate& /*update*/) {
  refuse_unless_dry();
}

Products::Products(bool /*deterministic*/) {
  refuse_unless_dry();
}
Products::~Products() = default;
bool Products::supports(const kernels::MatmulProblem& /*problem*/) {
  refuse_unless_dry();
  return true;
}
void Products::run(const kernels::MatmulProblem& /*problem*/,
                   const kernels::MatmulArguments& /*arguments*/) {
  refuse_unless_dry();
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
  refuse_unless_dry();
}
FusedAttention::~FusedAttention() = default;
std::string FusedAttention::unsupported_reason(const kernels::AttentionForward& call) {
  refuse_unless_dry();
  return dry_attention_refusal(call.shape);
}
void FusedAttention::forward(const kernels::AttentionForward& /*call*/) {
  refuse_unless_dry();
}
void FusedAttention::backward(const kernels::AttentionBackward& call) {
  refuse_unless_dry();
  const at::Tensor workspace = dry_attention_workspace(call.shape);
}
std::string FusedAttention::describe() const {
  refuse();
}

}  // namespace kinora::ops::cuda
