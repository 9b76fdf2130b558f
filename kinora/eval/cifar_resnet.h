#pragma once

#include <array>
#include <string>
#include <vector>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/eval/feature_network.h"
#include "kinora/eval/folded_conv.h"

namespace kinora::eval {

/// How a network wants its pixels: (x - mean) / std by channel, x in [0, 1].
struct PixelNorm {
  std::array<double, 3> mean = {0.485, 0.456, 0.406};  ///< ImageNet's, as published ones were
  std::array<double, 3> std = {0.229, 0.224, 0.225};   ///< trained with
};

/// The ResNet-20 for images of 32 x 32 (He et al. 2016, section 4.2, shortcuts of option A) with
/// the names that torchvision's networks have, perhaps behind "module.". Features: the 64 of its
/// average pool.
class CifarResnet : public FeatureNetwork {
 public:
  static constexpr int64_t kSize = 32;  ///< pixels a side

  /// `name`: as FeatureNetwork::name(). kIo for tensors that are missing or of other shapes.
  CifarResnet(const checkpoint::WeightsFile& file, std::string name, const PixelNorm& norm,
              at::Device device);

  [[nodiscard]] std::string name() const override { return name_; }
  /// Images of other sizes are refused: a judge of small images says little of shrunk ones.
  [[nodiscard]] at::Tensor prepare(const at::Tensor& sample) const override;
  [[nodiscard]] NetworkOutput forward(const at::Tensor& inputs) const override;

 private:
  struct Block {
    FoldedConv first;
    FoldedConv second;
    int64_t stride;
    int64_t more_channels;  ///< of its output than of its input
  };

  std::string name_;
  at::Tensor mean_;  ///< [3, 1, 1]
  at::Tensor std_;
  std::vector<FoldedConv> stem_;  ///< one
  std::vector<Block> blocks_;
  at::Tensor weight_;  ///< [K, 64]
  at::Tensor bias_;
};

}  // namespace kinora::eval
