#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"

namespace kinora::models {

/// As diffusers' config.json names and starts them.
struct LatentUpsamplerConfig {
  int64_t in_channels = 128;
  int64_t mid_channels = 512;
  int64_t num_blocks_per_stage = 4;  ///< before the places are doubled, and behind
  int64_t dims = 3;                  ///< of what is seen and normed together: 2 is each frame alone
};

/// silu(x + two convolutions, each normed, of x).
class UpsamplerBlock : public nn::Module {
 public:
  UpsamplerBlock(int64_t channels, int64_t dims);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

 private:
  nn::Conv conv1_;
  nn::GroupNorm norm1_;
  nn::Conv conv2_;
  nn::GroupNorm norm2_;
};

/// Doubles rows and columns of latents of clips (LTX-Video's spatial upscaler), with the keys of
/// diffusers' LTXLatentUpsamplerModel.
class LatentUpsampler : public nn::Module {
 public:
  /// kConfig for other dims than 2 and 3, and for channels that are no multiple of 32.
  explicit LatentUpsampler(const LatentUpsamplerConfig& config);

  /// Raw latents, as the autoencoder has them: [B, C, T, H, W] -> [B, C, T, 2 H, 2 W]. kShape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& raw) const;

 private:
  using Blocks = std::vector<std::unique_ptr<UpsamplerBlock>>;
  void add_blocks(const std::string& name, Blocks& blocks);

  LatentUpsamplerConfig config_;
  nn::Conv initial_conv_;
  nn::GroupNorm initial_norm_;
  Blocks res_blocks_;
  nn::Conv upsampler_;  // of each frame: four places as channels
  Blocks post_upsample_res_blocks_;
  nn::Conv final_conv_;
};

/// What is done to upsampled latents (diffusers' LTXLatentUpsamplePipeline).
struct UpsampleTuning {
  /// How far each channel of a clip gets the mean and deviation that it had before, 0 to 1.
  double adain = 0.0;
  double tones = 0.0;  ///< how far large values become smaller, 0 to 1
};

/// Latents as a model sees them, doubled: fp32 [B, C, T, H, W] -> [B, C, T, 2 H, 2 W]. space: of
/// their autoencoder. Without gradients.
[[nodiscard]] at::Tensor upsampled(const LatentUpsampler& upsampler, const LatentSpace& space,
                                   const at::Tensor& latents, const UpsampleTuning& tuning);

}  // namespace kinora::models
