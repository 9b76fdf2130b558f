#pragma once

#include <optional>

#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"
#include "kinora/nn/rms_norm.h"
#include "kinora/ops/block_stack.h"

namespace kinora::nn {

// Members that hold parameters are named as the published checkpoints' keys.

/// What norms of heads (none: undefined), and angles (undefined: no rotation; fp32 [.., D], row r
/// turned by those of row r % P, of all P) are for ops.
[[nodiscard]] ops::HeadRule head_rule(const std::optional<RmsNorm>& q_norm,
                                      const std::optional<RmsNorm>& k_norm,
                                      const at::Tensor& rotary);

/// Multi-head self-attention with packed projections: keys qkv, proj and, with qk_norm, q_norm and
/// k_norm. How its parts meet where tokens lie on several ranks is Sequence's business.
///
/// Shapes: B batch of independent sequences, N tokens, C hidden, H heads, D = C / H.
class SelfAttention : public Module {
 public:
  struct Options {
    int64_t hidden = 0;
    int64_t heads = 1;
    bool qk_norm = false;  ///< RMSNorm of each head's queries and keys (Henry et al. 2020)
    /// The norm behind the rotation, as Open-Sora 1.1's checkpoints were trained.
    bool norm_after_rotary = false;
    bool zero_output = false;  ///< proj starts at zero, else Xavier
  };
  explicit SelfAttention(const Options& options);

  /// x: [B, N, C]; rotary: undefined or fp32 [N, D] or [B, N, D], angles of the interleaved pairs
  /// of a head's dims, each angle twice (Su et al. 2021). valid: undefined or bool [B, N], which
  /// tokens can be attended to, in each row one or more. Returns [B, N, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& rotary = {},
                                   const at::Tensor& valid = {}) const;

  /// For the fast path: sequences of `length` tokens that lie `stride` rows apart. rotary:
  /// undefined or fp32 [.., D], row r turned by the angles of row r % P, of all P.
  [[nodiscard]] ops::SelfAttentionBody body(int64_t length, int64_t stride,
                                            const at::Tensor& rotary) const;
  /// What the rotation and the norms of body() need: queries and keys have one.
  [[nodiscard]] bool has_rule(const at::Tensor& rotary) const {
    return q_norm.has_value() || rotary.defined();
  }

  /// By kernels, which must be set, and without moving tokens: attention along the second dim of x
  /// [G, N, M, C], as ops::self_attention has it. rotary: as body()'s.
  [[nodiscard]] at::Tensor attend_along(const at::Tensor& x, const at::Tensor& rotary) const;

  /// The packed projections with norm and rotation: [B, N, 3, H, D].
  [[nodiscard]] at::Tensor project(const at::Tensor& x, const at::Tensor& rotary = {}) const;

  /// The same of given packed projections [B, N, 3, H', D], of some of the heads.
  [[nodiscard]] at::Tensor norm_and_rotate(const at::Tensor& packed,
                                           const at::Tensor& rotary) const;

  /// Those that are here.
  [[nodiscard]] int64_t num_heads() const { return qkv.weight.shape.front() / (3 * head_size); }

  int64_t head_size;  // D
  Linear qkv;         // [3 C, C], rows (3, H, D) major
  Linear proj;        // [C, C]
  std::optional<RmsNorm> q_norm;
  std::optional<RmsNorm> k_norm;

 private:
  [[nodiscard]] ops::HeadRule rule(const at::Tensor& rotary) const;

  bool norm_after_rotary_;
};

}  // namespace kinora::nn
