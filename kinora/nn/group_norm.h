#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/ops/channel_norm.h"

namespace kinora::nn {

/// Group normalisation (Wu and He 2018) of [B, C, spatial...]: each group of neighbouring channels
/// to mean 0 and variance 1 over all places, then times `weight` [C] plus `bias` [C]. Statistics
/// and arithmetic are fp32 at least, whatever the input's type.
class GroupNorm : public Module {
 public:
  /// kConfig where `groups` does not divide `channels`.
  GroupNorm(int64_t groups, int64_t channels, double epsilon = 1e-6);

  /// x: [B, C, spatial...]. Returns x's shape, type and memory layout. kShape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  /// silu(forward(x + channel_bias + offset)): [C] and [B, C], which a layer before it left out;
  /// undefined: nothing.
  [[nodiscard]] at::Tensor forward_silu(const at::Tensor& x, const at::Tensor& channel_bias = {},
                                        const at::Tensor& offset = {}) const;

  /// The two halves of forward(), for who has x in pieces. Sums of x and of its squares, fp64
  /// [2, B, groups]: those of the whole are the sums of the pieces'.
  [[nodiscard]] at::Tensor sums(const at::Tensor& x) const;
  /// x as forward() returns it, given the whole's sums and how many elements each of its groups
  /// has.
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const at::Tensor& sums,
                                 int64_t group_elements) const;
  /// silu(apply(...)); overwrite: in x's memory, without gradients.
  [[nodiscard]] at::Tensor apply_silu(const at::Tensor& x, const at::Tensor& sums,
                                      int64_t group_elements, bool overwrite = false) const;
  /// ops::repeat_edges(apply_silu(...), counts) of a clip [B, C, T, H, W], behind the frames of
  /// `before` where that is defined.
  [[nodiscard]] at::Tensor apply_silu_with_edges(const at::Tensor& x, const at::Tensor& sums,
                                                 int64_t group_elements,
                                                 const std::vector<std::array<int64_t, 2>>& counts,
                                                 const at::Tensor& before = {}) const;

  [[nodiscard]] int64_t groups() const { return groups_; }

  Parameter weight;
  Parameter bias;

 private:
  void check(const at::Tensor& x) const;

  [[nodiscard]] ops::GroupAffine affine(const at::Tensor& x, const at::Tensor& sums,
                                        int64_t group_elements) const;

  int64_t groups_;
  double epsilon_;
};

}  // namespace kinora::nn
