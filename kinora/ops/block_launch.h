#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinora/kernels/attention.h"
#include "kinora/kernels/fp8.h"
#include "kinora/kernels/fp8_blocks.h"
#include "kinora/kernels/low_rank.h"
#include "kinora/kernels/matmul.h"
#include "kinora/kernels/modulated_norm.h"
#include "kinora/kernels/qk_norm_rotary.h"
#include "kinora/kernels/rms_norm.h"

/// The launchers of a block's kernels and libraries on torch's current stream, for the files of
/// this room only. block_launch.cc in builds with GPU support, no_block_launch.cc in CPU-only ones.
namespace kinora::ops::cuda {

/// kernels::cuda::kernel_capability() of `device`; 0 where our own kernels do not run.
[[nodiscard]] int kernel_capability(at::Device device);

/// Whether our own kernels run on `device`: built with nvcc, a GPU of compute capability 7.5 or
/// more (8.0 for bf16).
[[nodiscard]] bool has_block_kernels(at::Device device, at::ScalarType type);

void residual_norm_forward(const kernels::ResidualNormForward& call);
void residual_norm_backward(const kernels::ResidualNormBackward& call);

void qk_norm_rotary_forward(const kernels::QkNormRotaryForward& call);
void qk_norm_rotary_backward(const kernels::QkNormRotaryBackward& call);

void rms_norm_forward(const kernels::RmsNormForward& call);
void rms_norm_backward(const kernels::RmsNormBackward& call);

/// Whether kernels/low_rank.h's run for a linear of these sizes.
[[nodiscard]] bool low_rank_supported(DType type, int64_t in, int64_t out, int64_t rank);
void low_rank_forward(const kernels::LowRankForward& call);
/// @return  the parts of the factors' gradients, for low_rank_add_gradients.
[[nodiscard]] at::Tensor low_rank_backward(const kernels::LowRankBackward& call);
struct LowRankParts {
  kernels::LowRankBackward call;
  at::Tensor parts;
};
void low_rank_add_gradients(const std::vector<LowRankParts>& parts);

/// out fp32 [C] += column sums of in [R, C], rows at any distance.
void add_column_sums(const at::Tensor& in, const at::Tensor& out);

/// GELU_tanh of a contiguous tensor; `out` may be undefined.
void gelu(const at::Tensor& pre, const at::Tensor& out, const kernels::Fp8Output& out_fp8);
/// dpre = grad * GELU_tanh'(pre), and bias_grad (fp32 [C]) += its column sums. `dpre` may be grad
/// or undefined.
void gelu_backward(const at::Tensor& pre, const at::Tensor& grad, const at::Tensor& dpre,
                   const kernels::Fp8Output& dpre_fp8, const at::Tensor& bias_grad);

/// Of kernels/fp8.h. Of `in` columns are adjacent; all else is contiguous.
/// column_sums: fp32 [C], added to; undefined: not wanted.
void quantise(const at::Tensor& in, const kernels::Fp8Output& out,
              const at::Tensor& column_sums = {});
/// `call` without rows, width, type and in, which are those of `in`.
void block_quantise(const at::Tensor& in, kernels::BlockQuantise call);
void block_sums(const kernels::BlockSums& call);
void update_scales(const kernels::ScaleUpdate& update);

/// Whether nothing can be timed: work is being recorded on the current stream, or is a dry run.
[[nodiscard]] bool is_capturing();
/// Milliseconds of `launch` on the current stream: the median of a few, after a first. Waits.
[[nodiscard]] double milliseconds(const std::function<void()>& launch);

/// cuBLASLt with searched algorithms.
class Products {
 public:
  explicit Products(bool deterministic);
  ~Products();
  [[nodiscard]] bool supports(const kernels::MatmulProblem& problem);
  void run(const kernels::MatmulProblem& problem, const kernels::MatmulArguments& arguments);
  [[nodiscard]] std::vector<std::string> report() const;
  /// As kernels::cuda::Matmul's.
  [[nodiscard]] std::string choices() const;
  size_t pin(const std::string& choices);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The versions by name of the libraries that blocks are computed with: cuBLASLt and cuDNN.
[[nodiscard]] std::map<std::string, std::string> library_versions();

/// Our own attention and cuDNN's: the faster of the two a shape and direction, timed at its first
/// call (outside of a graph's capture). If deterministic nothing is timed: our own where it can,
/// else cuDNN's.
class FusedAttention {
 public:
  explicit FusedAttention(bool deterministic);
  ~FusedAttention();
  /// Empty, or why neither of them can.
  [[nodiscard]] std::string unsupported_reason(const kernels::AttentionForward& call);
  void forward(const kernels::AttentionForward& call);
  void backward(const kernels::AttentionBackward& call);
  /// "forward cudnn 0.301 ms, backward own 0.72 ms (cudnn 1.58)", of the shapes seen.
  [[nodiscard]] std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::ops::cuda
