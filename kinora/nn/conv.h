#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kinora/nn/weight_layer.h"

namespace kinora::nn {

/// Zeros before and after a dim.
using Padding = std::array<int64_t, 2>;

/// A convolution over one, two or three spatial dims: as many as `kernel` has.
struct ConvShape {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  std::vector<int64_t> kernel = {};
  std::vector<int64_t> stride = {};   ///< one a spatial dim; none: 1
  std::vector<Padding> padding = {};  ///< one a spatial dim; none: 0
  int64_t groups = 1;
  bool has_bias = true;
  bool channels_last = false;  ///< Parameter::channels_last of the weight

  /// kernel x kernel (x kernel) that keeps the size: odd kernels.
  [[nodiscard]] static ConvShape same(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                      size_t spatial_dims = 2);
};

/// Cross-correlation with `weight` [out, in / groups, kernel...] and `bias` [out], names and start
/// (uniform, bound 1 / sqrt(fan in)) as PyTorch has them, computed in the weight's dtype.
class Conv : public WeightLayer {
 public:
  /// kConfig where groups do not divide the channels, or stride and padding are of other dims.
  explicit Conv(ConvShape shape);

  /// x: [B, in, spatial...], any floating dtype. Returns [B, out, spatial...] in the weight's
  /// dtype. Tensors beyond the 2^31 elements of a library's call are computed in pieces. kShape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  /// forward() but for its bias, for who adds added_bias() later.
  [[nodiscard]] at::Tensor forward_without_bias(const at::Tensor& x) const;
  /// [C], with its gradient.
  [[nodiscard]] at::Tensor added_bias() const;
  /// The same with other zeros around x than the shape's: for a piece of a whole.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const std::vector<Padding>& padding) const;
  /// That plus `plus`, [B, out, spatial...].
  [[nodiscard]] at::Tensor forward_plus(const at::Tensor& x, const std::vector<Padding>& padding,
                                        const at::Tensor& plus) const;
  /// forward() of x with every row and column twice (ops::convolve_doubled), for 3 x 3 kernels;
  /// rows: zeros above and below x; phases: doubled_phases(), where they were made before.
  [[nodiscard]] at::Tensor forward_doubled(const at::Tensor& x, Padding rows = {1, 1},
                                           const at::Tensor& phases = {}) const;
  /// Whether forward_doubled_clip() is for this convolution: it has a 3 x 3 x 3 kernel that moves
  /// by one, no update, and nobody looks at its outputs.
  [[nodiscard]] bool doubles_clips() const;
  /// ops::convolve_doubled_clip of x, without gradients.
  [[nodiscard]] at::Tensor forward_doubled_clip(const at::Tensor& x, int64_t times,
                                                int64_t left_out) const;
  /// ops::doubled_phases of the weight.
  [[nodiscard]] at::Tensor doubled_phases() const;

  [[nodiscard]] const ConvShape& shape() const { return shape_; }

 private:
  /// With bias, or without where that is undefined; `plus` is for who has no update.
  [[nodiscard]] at::Tensor convolved(const at::Tensor& x, const std::vector<Padding>& padding,
                                     const at::Tensor& bias, const at::Tensor& plus = {}) const;

  ConvShape shape_;
};

}  // namespace kinora::nn
