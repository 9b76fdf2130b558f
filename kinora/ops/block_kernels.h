#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinora/kernels/modulated_norm.h"
#include "kinora/ops/block_mask.h"
#include "kinora/ops/kernel_options.h"
#include "kinora/ops/linear_weights.h"

/// What the written-out forward and backward of a transformer block is made of: products, norms and
/// attention without autograd, on one device. Each part runs by our own kernel or by the library
/// that was measured to be fastest where it can and may, else composed of ATen calls, which are its
/// specification.
///
/// Shapes: R rows (batch x tokens), C width, V vectors (samples, each R / V rows).
namespace kinora::ops {

/// A matrix as products read it: in the block's type, or as 8-bit copies where its linear computes
/// in fp8.
struct Operand {
  at::Tensor value{};           ///< [R, C]
  at::Tensor fp8{};             ///< uint8 [R, C]
  at::Tensor fp8_transposed{};  ///< uint8 [C, kernels::transposed_pitch(R)]
  /// What the 8-bit values have to be multiplied by: fp32 [1], or a factor for each block as
  /// kernels::BlockQuantise has them.
  at::Tensor factors{};
  at::Tensor transposed_factors{};
  /// Of the linear whose input or gradient it is; negative in passes that do not train.
  int64_t number = -1;
  int64_t room = 0;  ///< columns behind each row of `value` that are free: for the linear's updates
  /// x A^T of an input, where the linear's updates have been computed: [R, rank], of all updates.
  at::Tensor low{};

  /// Of what is not there but transposed: with those of zeros behind it.
  [[nodiscard]] int64_t rows() const {
    return value.defined() ? value.size(0) : (fp8.defined() ? fp8.size(0) : fp8_transposed.size(1));
  }
  /// Whether some_rows() has them: 8-bit values have one factor.
  [[nodiscard]] bool has_parts() const { return !fp8.defined() || factors.numel() == 1; }
  /// Some of its rows as the input of a product: views.
  [[nodiscard]] Operand some_rows(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& rows) {
      return rows.defined() ? rows.narrow(0, first, count) : rows;
    };
    return {.value = part(value), .fp8 = part(fp8), .factors = factors, .number = number};
  }
};

/// The linear that reads a matrix, as the part that writes it must know it.
struct Consumer {
  int64_t number = -1;  ///< LinearWeights::number; negative: it does not compute in fp8
  int64_t room = 0;     ///< BlockKernels::room()
  at::Tensor out{};     ///< where it may lie (BlockKernels::places_gelu()); undefined: anywhere
};

struct JoinedProduct;
class UpdateGradients;

/// Shift, scale and gate of a seam: views [V, C] of one fp32 matrix, last dim adjacent. `gate` may
/// be undefined.
struct SeamVectors {
  at::Tensor gate;
  at::Tensor scale;
  at::Tensor shift;
  double epsilon = 1e-6;  ///< of the norm
  bool centres = true;    ///< it is a LayerNorm; else an RMSNorm
  /// Of each sample's rows so many have the first of two vectors, and the rest the second. 0: all
  /// vectors have as many rows.
  int64_t first_rows = 0;
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

/// The gradient of a linear's result.
struct ResultGrad {
  Operand operand;
  /// As it was before it became an operand; undefined where the gradient of the linear's bias has
  /// been added.
  at::Tensor values{};
};

/// Queries [B, N, H, D], keys and values [B, L, H, D], their gradients, or whatever else is laid
/// out so: any strides, last dim adjacent.
struct HeadTensors {
  at::Tensor q, k, v;
  AttendedKeys keys{};
};

/// The ranks that share the columns of matrices, as many each.
struct ColumnRanks {
  int64_t rank = 0;
  int64_t size = 1;
  /// Adds numbers up over them, in place. Empty: there is one.
  std::function<void(const at::Tensor&)> sum{};
};

/// What happens to queries and keys between their projection and attention: a norm of each head,
/// or RMSNorm of all heads of a row together, and rotation of each head's interleaved pairs, as
/// kernels/qk_norm_rotary.h and rms_norm.h have them.
struct HeadRule {
  /// [D], or [H D]: the norm is of all heads together. Any floating type; undefined: no norm.
  at::Tensor q_weight{};
  at::Tensor k_weight{};
  at::Tensor q_weight_grad{};  ///< fp32, added to by backward; undefined: not wanted
  at::Tensor k_weight_grad{};
  at::Tensor q_bias{};  ///< [D] behind weights [D]: the norm is LayerNorm; undefined: RMSNorm
  at::Tensor k_bias{};
  at::Tensor q_bias_grad{};  ///< as q_weight_grad; only with that
  at::Tensor k_bias_grad{};
  double epsilon = 1e-6;
  /// fp32 [P, D / 2]: row r is turned by the angles of r % P; undefined: nothing is turned. Beside
  /// a norm of all heads also [P, H D / 2]: each head turns in its own way.
  at::Tensor cosines{};
  at::Tensor sines{};
  bool norm_after_rotary = false;  ///< of a norm of each head
  ColumnRanks ranks{};             ///< of a norm of all heads: those that share them

  [[nodiscard]] bool has_norm() const { return q_weight.defined(); }
  [[nodiscard]] bool is_empty() const { return !has_norm() && !cosines.defined(); }
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

  /// Frozen weights lie at the same addresses by turns (optim::HeldWeights): no copy of one is
  /// kept. After use_fp8().
  void weights_take_turns();

  /// Columns that a matrix must leave free behind its rows for the updates of the linear that reads
  /// it, or whose gradient it is, so that these take no pass of their own; 0: none.
  [[nodiscard]] int64_t room(const LinearWeights& linear) const;
  /// The same for a weight [out, in] with one update of `rank`: what its memory must leave free
  /// (nn::Parameter::room), so that products need no copy of it.
  [[nodiscard]] int64_t room_beside(int64_t out, int64_t in, int64_t rank) const;
  /// [rows, columns] in the block's type with that room.
  [[nodiscard]] at::Tensor empty_with_room(int64_t rows, int64_t columns, int64_t room) const;
  /// The products linear() and input_grad() of a linear with its updates, as LowRankLinears has
  /// them, for operands with room. The gradients of the updates wait in `gradients`.
  [[nodiscard]] JoinedProduct joined(Operand& x, const LinearWeights& linear);
  [[nodiscard]] JoinedProduct joined_grad(const Operand& dy, Operand& x,
                                          const LinearWeights& linear, UpdateGradients& gradients);
  /// The same of operands without room: what the linear's updates add to y, and to dx. x.low is
  /// made unless it is there. The gradients of the updates are added, or wait in `gradients`.
  [[nodiscard]] at::Tensor update(Operand& x, const LinearWeights& linear) const;
  [[nodiscard]] at::Tensor update_grad(const Operand& dy, Operand& x, const LinearWeights& linear,
                                       UpdateGradients& gradients) const;

  /// A matrix as the input (or, where is_gradient, the gradient of the output) of linear `number`.
  [[nodiscard]] Operand operand(const at::Tensor& value, int64_t number, bool is_gradient);
  /// dy as the gradient of the output of linear `number`. Where a kernel makes an operand of it,
  /// the same one adds the column sums to bias_grad (undefined: not wanted).
  [[nodiscard]] ResultGrad result_grad(const at::Tensor& dy, int64_t number,
                                       const at::Tensor& bias_grad);

  /// x W^T + bias: [R, out]. addend: [R, out], added and overwritten; undefined: none. out: where
  /// the result lies without an addend, contiguous, of the block's type; undefined: anywhere.
  [[nodiscard]] at::Tensor linear(const Operand& x, const LinearWeights& linear,
                                  const at::Tensor& addend = {}, const at::Tensor& out = {});
  /// The same into `out`: [R, out], rows at any distance, of the block's type or fp32. Never fp8.
  void linear_into(const at::Tensor& x, const LinearWeights& linear, const at::Tensor& out);

  struct Gelu {
    at::Tensor pre;  ///< x W^T + bias
    Operand out;     ///< GELU_tanh(pre), the input of linear `consumer`
  };
  /// keep: whether `pre` is wanted. addend: as linear()'s.
  [[nodiscard]] Gelu linear_gelu(const Operand& x, const LinearWeights& linear, Consumer consumer,
                                 bool keep, const at::Tensor& addend = {});
  [[nodiscard]] Operand gelu(const at::Tensor& pre, Consumer consumer);

  /// Whether linear_gelu(), where nothing is kept, writes to Consumer::out for this consumer,
  /// unless the library has no such product.
  [[nodiscard]] bool places_gelu(int64_t consumer, int64_t rows) const;
  /// dy W: dy [R, out] -> [R, in]. addend: as linear()'s.
  [[nodiscard]] at::Tensor input_grad(const Operand& dy, const LinearWeights& linear,
                                      const at::Tensor& addend = {});
  /// (dy W + addend) * GELU_tanh'(pre), the gradient of the output of `producer`, whose bias
  /// gradient is added where it has one: a sum in fp32 or, where the library gives it beside the
  /// product, fastest and of bf16 inputs, in fp32 with one rounding to bf16.
  [[nodiscard]] Operand gelu_input_grad(const Operand& dy, const LinearWeights& linear,
                                        const at::Tensor& pre, const LinearWeights& producer,
                                        const at::Tensor& addend = {});
  /// Products that make gradients of weights, with those of biases, are put into `late` from now
  /// on, and wait there until somebody calls them, in order; null: they are computed. Borrowed.
  void put_off_weight_grads(std::vector<std::function<void()>>* late);
  [[nodiscard]] bool puts_off_weight_grads() const;
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
  /// `consumer`. h_type: the block's type or fp32. keep: whether statistics are wanted.
  [[nodiscard]] SeamForward seam(const at::Tensor& x, const at::Tensor& branch,
                                 const SeamVectors& vectors, at::ScalarType h_type, bool keep,
                                 Consumer consumer);
  /// The modulated norm of x: h again, in the block's type.
  [[nodiscard]] Operand modulated_norm(const at::Tensor& x, const SeamVectors& vectors,
                                       Consumer consumer);
  /// Backward of seam(). dh: gradient of h; dx_out: of x (undefined: zero; it is overwritten).
  /// x, statistics, branch: what seam() returned and got. Where vectors.gate is undefined there was
  /// no branch. Writes the gradients of the vectors into `grads` (fp32, as laid out as the vectors;
  /// undefined where they are not wanted; `branch` is read for that of the gate alone) and adds the
  /// column sums of dbranch to the bias gradient of `producer`, the linear that made it (null, or
  /// without one: to none).
  [[nodiscard]] SeamBackward seam_backward(const at::Tensor& dh, const at::Tensor& dx_out,
                                           const at::Tensor& x, const NormStatistics& statistics,
                                           const at::Tensor& branch, const SeamVectors& vectors,
                                           const SeamVectors& grads, const LinearWeights* producer);

  /// x + gate * branch: [R, C], of the gate alone. h is the same as the input of `consumer`.
  [[nodiscard]] SeamForward gated_add(const at::Tensor& x, const at::Tensor& branch,
                                      const SeamVectors& vectors, Consumer consumer);
  /// Its backward: the gradient of branch, as result_grad() has it of the linear that made it. That
  /// of x is dout; that of gate is written to gate_grad, undefined where it is not wanted, and
  /// `branch` with it.
  [[nodiscard]] ResultGrad gated_add_backward(const at::Tensor& dout, const at::Tensor& branch,
                                              const SeamVectors& vectors,
                                              const at::Tensor& gate_grad, int64_t number,
                                              const at::Tensor& bias_grad);

  /// softmax(Q K^T / sqrt(D)) V into out [B, N, H, D] and, where `lse` is defined, the statistics
  /// for backward into it: fp32 [B, H, N].
  /// @return  whether lse was written; if not, backward goes without.
  bool attend(const HeadTensors& in, const at::Tensor& out, const at::Tensor& lse);
  /// Writes `grads`, but not those of keys and values that are not attended to. lse: undefined
  /// where attend() did not write it.
  void attend_backward(const at::Tensor& dout, const HeadTensors& in, const at::Tensor& out,
                       const at::Tensor& lse, const HeadTensors& grads);

  /// Whether apply() can run here.
  [[nodiscard]] bool has_head_rules() const;
  /// in: [R, 2 C or more], rows of q, k; out: [R, 2 C]. Columns adjacent, rows at any distance.
  void apply(const HeadRule& rule, const at::Tensor& in, int64_t heads, const at::Tensor& out);
  /// Turns `grad`, the gradient of out in the first 2 C columns, into that of in, which is what
  /// apply() got.
  void apply_backward(const HeadRule& rule, const at::Tensor& in, int64_t heads, int64_t head_dim,
                      const at::Tensor& grad);

  /// RMSNorm (Zhang and Sennrich 2019) of rows [R, C] into `out`, turned where `rule` has angles:
  /// columns adjacent, rows at any distance, `out` may be `in`. weight: [C], of the columns of all
  /// ranks. rule: for its epsilon, angles and ranks.
  void norm_rows(const HeadRule& rule, const at::Tensor& in, const at::Tensor& weight,
                 const at::Tensor& out);
  /// Turns `grad`, the gradient of out, into that of in. weight_grad: as weight, fp32,
  /// added to; undefined: not wanted.
  void norm_rows_backward(const HeadRule& rule, const at::Tensor& in, const at::Tensor& weight,
                          const at::Tensor& grad, const at::Tensor& weight_grad);

  /// Rows of packed projections of one stream, behind the rule, to their place among those of all:
  /// in [B n, 3 C], out [B, n, 3 C], a part of [B, T, 3 C]. The rule has no norm_after_rotary, and
  /// its norm is of each head.
  void place_heads(const HeadRule& rule, const at::Tensor& in, int64_t heads,
                   const at::Tensor& out);
  /// din [B n, 3 C] from dout [B, n, 3 C]; adds the gradients of the rule's weights.
  void place_heads_backward(const HeadRule& rule, const at::Tensor& in, int64_t heads,
                            const at::Tensor& dout, const at::Tensor& din);

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
  /// dout * GELU_tanh'(pre), as gelu_input_grad().
  [[nodiscard]] Operand gelu_backward(const at::Tensor& dout, const at::Tensor& pre,
                                      const LinearWeights& producer);
  /// out (+)= x W^T + bias as one product.
  /// @return  whether there is one; if not, nothing was done.
  bool add_linear(const at::Tensor& x, const LinearWeights& linear, const at::Tensor& out,
                  bool accumulate);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::ops
