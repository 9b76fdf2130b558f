#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <string>

#include "kinora/checkpoint/weights_file.h"

/// What the feature networks of this folder share. Not for use outside eval/.
namespace kinora::eval {

/// A convolution without bias, as the network's authors describe it.
struct ConvSpec {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  std::array<int64_t, 2> kernel = {1, 1};
  int64_t stride = 1;
  std::array<int64_t, 2> padding = {0, 0};
};

/// A convolution and the batch norm behind it, folded into one convolution with bias: statistics
/// are constants where a network is only used.
class FoldedConv {
 public:
  /// Reads `conv`.weight and the weight, bias, running_mean and running_var of `norm`. kIo where
  /// one is missing or of another shape.
  FoldedConv(const checkpoint::WeightsFile& file, const std::string& conv, const std::string& norm,
             const ConvSpec& spec, double epsilon, at::Device device);

  /// x: [B, in, H, W] float32.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;

 private:
  ConvSpec spec_;
  at::Tensor weight_;
  at::Tensor bias_;
};

/// Tensor `name` as float32 on `device`. kIo unless it is there and of this shape.
[[nodiscard]] at::Tensor read_weight(const checkpoint::WeightsFile& file, const std::string& name,
                                     at::IntArrayRef shape, at::Device device);

}  // namespace kinora::eval
