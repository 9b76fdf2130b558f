#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinora/kernels/modulated_norm.h"
#include "kinora/ops/kernel_options.h"

/// What the written-out forward and backward of a transformer block is made of: products, norms and
/// attention without autograd, on one device. Each part runs by our own kernel or by the library
/// that was measured to be fastest where it can and may, else composed of ATen calls, which are its
/// specification.
///
/// Shapes: R rows (batch x tokens), C width, V vectors (samples, each R / V rows).
namespace kinora::ops {

/// Weights of y = x W^T + b in the compute type, and where backward adds their gradients (fp32; may
/// be undefined outside of training).
struct LinearWeights {
  at::Tensor weight;  ///< [out, in]
  at::Tensor bias;    ///< [out]
  at::Tensor weight_grad;
  at::Tensor bias_grad;
  /// The linear's number in its model, by which it is known to Fp8; negative: never in fp8.
  int64_t number = -1;
};

/// A matrix as products read it: in the block's type, or as 8-bit copies where its linear computes
/// in fp8.
struct Operand {
  at::Tensor value{};           ///< [R, C]
  at::Tensor fp8{};             ///< uint8 [R, C]
  at::Tensor fp8_transposed{};  ///< uint8 [C, R]
  /// What the 8-bit values have to be multiplied by: fp32 [1], or a factor for each block as
  /// kernels::BlockQuantise has them.
  at::Tensor factors{};
  at::Tensor transposed_factors{};
  /// Of the linear whose input or gradient it is; negative in passes that do not train.
  int64_t number = -1;

  [[nodiscard]] int64_t rows() const {
    return value.defined() ? value.size(0) : fp8_transposed.size(1);
  }
};

/// Shift, scale and gate of a seam: views [V, C] of one fp32 matrix, last dim adjacent. `gate` may
/// be undefined.
struct SeamVectors {
  at::Tensor gate;
  at::Tensor scale;
  at::Tensor shift;
};

/// What residual_norm leaves for its backward.
struct NormStatistics {
  at::Tensor mean;  ///< fp32 [R]
  at::Tensor rstd;  ///< fp32 [R]
};

struct SeamForward {
  at::Tensor x;  ///< [R, C] in x's type: x + gate * branch
  Operand h;     ///< [R, C]
  NormStatistics statistics;
};

struct SeamBackward {
  at::Tensor dx;    ///< [R, C]
  Operand dbranch;  ///< [R, C]
};

struct AttentionResult {
  at::Tensor out;  ///< [B, N, C]
  at::Tensor lse;  ///< fp32 [B, H, N]; undefined where the composed path ran
};

class Fp8;

class BlockKernels {
 public:
  /// `type` is what blocks compute in. Throws kConfig where an option is kOn and cannot be.
  BlockKernels(const KernelOptions& options, at::Device device, at::ScalarType type,
               bool deterministic);
  ~BlockKernels();
  BlockKernels(const BlockKernels&) = delete;
  BlockKernels& operator=(const BlockKernels&) = delete;

  /// Whether the fast path is expected to be faster than the plain one: our own kernels run on this
  /// device and type.
  [[nodiscard]] static bool worthwhile(at::Device device, at::ScalarType type);

  /// Computes linears with a number in fp8 from now on, in passes that keep what backward needs.
  void use_fp8(std::unique_ptr<Fp8> fp8);
  /// Null: not in fp8.
  [[nodiscard]] Fp8* fp8() const;

  /// A matrix as the input (or, where is_gradient, the gradient of the output) of linear `number`.
  [[nodiscard]] Operand operand(const at::Tensor& value, int64_t number, bool is_gradient);

  /// x W^T + bias: [R, out].
  [[nodiscard]] at::Tensor linear(const Operand& x, const LinearWeights& linear);
  /// The same into `out`: [R, out], rows at any distance, of the block's type or fp32. Never fp8.
  void linear_into(const at::Tensor& x, const LinearWeights& linear, const at::Tensor& out);

  struct Gelu {
    at::Tensor pre;  ///< x W^T + bias
    Operand out;     ///< GELU_tanh(pre), the input of linear `consumer`
  };
  /// keep: whether `pre` is wanted.
  [[nodiscard]] Gelu linear_gelu(const Operand& x, const LinearWeights& linear, int64_t consumer,
                                 bool keep);
  [[nodiscard]] Operand gelu(const at::Tensor& pre, int64_t consumer);

  /// dy W: dy [R, out] -> [R, in].
  [[nodiscard]] at::Tensor input_grad(const Operand& dy, const LinearWeights& linear);
  /// (dy W) * GELU_tanh'(pre), the gradient of the output of `producer`, whose bias gradient is
  /// added: a sum in fp32 or, where the library gives it beside the product, fastest and of bf16
  /// inputs, in fp32 with one rounding to bf16.
  [[nodiscard]] Operand gelu_input_grad(const Operand& dy, const LinearWeights& linear,
                                        const at::Tensor& pre, const LinearWeights& producer);
  /// weight_grad += dy^T x; where `overwrite`, it is set.
  void weight_grad(const Operand& dy, const Operand& x, const LinearWeights& linear,
                   bool overwrite);
  /// The same, and bias_grad += column sums of dy_values: dy as it was before it became an operand.
  /// Rounded as in gelu_input_grad().
  void weight_and_bias_grad(const Operand& dy, const at::Tensor& dy_values, const Operand& x,
                            const LinearWeights& linear, bool overwrite);
  /// out += dy W: fp32 [R, in]. Never fp8.
  void add_input_grad(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& out);
  /// out (fp32 [C]) += column sums of in ([R, C], any floating type).
  void add_column_sums(const at::Tensor& in, const at::Tensor& out);

  /// x + gate * branch (branch may be undefined: x), its LayerNorm and modulation, the input of
  /// linear `consumer`. h_type: the block's type or fp32. keep: whether statistics are wanted.
  [[nodiscard]] SeamForward seam(const at::Tensor& x, const at::Tensor& branch,
                                 const SeamVectors& vectors, at::ScalarType h_type, bool keep,
                                 int64_t consumer);
  /// The modulated norm of x: h again, in the block's type.
  [[nodiscard]] Operand modulated_norm(const at::Tensor& x, const SeamVectors& vectors,
                                       int64_t consumer);
  /// Backward of seam(). dh: gradient of h; dx_out: of x (undefined: zero; it may be overwritten).
  /// x, statistics, branch: what seam() returned and got. Writes the gradients of the vectors into
  /// `grads` (fp32, as laid out as the vectors; gate undefined where there is no branch) and adds
  /// the column sums of dbranch to the bias gradient of `producer`, the linear that made it (null
  /// without a branch).
  [[nodiscard]] SeamBackward seam_backward(const at::Tensor& dh, const at::Tensor& dx_out,
                                           const at::Tensor& x, const NormStatistics& statistics,
                                           const at::Tensor& branch, const SeamVectors& vectors,
                                           const SeamVectors& grads, const LinearWeights* producer);

  /// Self-attention of packed projections [B, N, 3 C] with `heads` heads; scale 1 / sqrt(D).
  [[nodiscard]] AttentionResult attention(const at::Tensor& qkv, int64_t heads, bool keep);
  /// The packed gradient [B, N, 3 C].
  [[nodiscard]] at::Tensor attention_backward(const at::Tensor& dout, const at::Tensor& qkv,
                                              const AttentionResult& forward, int64_t heads);

  /// Whether no part waits for the device, so that a CUDA graph can hold it.
  [[nodiscard]] bool can_be_recorded() const;

  /// What runs each part: "norms own, products cuBLASLt ..., attention ...", for the start-up line
  /// and the run record. Attention is chosen at its first call.
  [[nodiscard]] std::string describe() const;
  /// A line for every product seen: shape, algorithm, speed where it was timed; and for every part
  /// that was timed in several ways: what each took.
  [[nodiscard]] std::vector<std::string> report() const;

  /// The algorithms of the products seen, a line each as kernels/matmul_cache.h writes them; empty
  /// where libtorch runs them.
  [[nodiscard]] std::string product_choices() const;
  /// Uses these algorithms from now on, before anything is run or recorded: the same bits again.
  /// @return  the lines that are of this GPU and library.
  size_t pin_products(const std::string& choices);
  /// The versions by name of the libraries that blocks are computed with, besides libtorch.
  [[nodiscard]] std::map<std::string, std::string> library_versions() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::ops
