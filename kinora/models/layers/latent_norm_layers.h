#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/models/layers/causal_layers.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"

/// Layers of CogVideoX' autoencoder: causal, with norms whose statistics are those of a piece of a
/// clip, so that pieces are a part of what is computed. Of a piece of an odd number of frames the
/// first one is by itself where frames are halved or doubled; of an even number none is. B = batch,
/// C = channels, T = frames, H, W = rows, columns.
namespace kinora::models {

struct LatentNormOptions {
  int64_t groups = 32;
  double epsilon = 1e-6;
  /// Of the latents that its scale and shift are made of (Zheng et al. 2022, "MoVQ"); 0: it is a
  /// group norm with weights.
  int64_t latent_channels = 0;
};

/// Group norm over a piece; with latents, times and plus a convolution of these at each place: keys
/// norm_layer, conv_y.conv, conv_b.conv; without, weight and bias.
class LatentNorm : public nn::Module {
 public:
  LatentNorm(int64_t channels, const LatentNormOptions& options);
  /// silu of it. memory: of the piece.
  [[nodiscard]] nn::Bands forward_silu(nn::Bands x, const ClipMemory* memory) const;
  /// What forward_silu() takes of such a piece, while `beside` bytes lie by.
  [[nodiscard]] nn::BandNeed need(const ClipSize& in, int64_t beside = 0) const;

 private:
  /// scale and shift at rows from `begin` of T frames of `rows` rows and `columns` columns, like x.
  [[nodiscard]] at::Tensor at_places(const nn::Conv& conv, const at::Tensor& latents,
                                     const std::vector<at::Tensor>& places) const;

  nn::GroupNorm norm_;
  std::unique_ptr<nn::Conv> scale_;  // null without latents
  std::unique_ptr<nn::Conv> shift_;
};

/// Norm, SiLU, convolution: norm_out, conv_out.conv.
class LatentNormConvLayer : public CausalLayer {
 public:
  LatentNormConvLayer(int64_t in_channels, int64_t out_channels, const LatentNormOptions& options);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  LatentNorm norm_;
  CausalConv conv_;
};

/// x + two times (norm, SiLU, convolution): norm1, conv1.conv, norm2, conv2.conv, and conv_shortcut
/// where widths differ.
class LatentNormResidualLayer : public CausalLayer {
 public:
  LatentNormResidualLayer(int64_t in_channels, int64_t out_channels,
                          const LatentNormOptions& options);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  LatentNorm norm1_;
  CausalConv conv1_;
  LatentNorm norm2_;
  CausalConv conv2_;
  std::unique_ptr<nn::Conv> shortcut_;  // null where widths are the same
};

/// Half as many frames, the means of two.
class FrameMeansLayer : public BandLayer {
 public:
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
};

/// Twice as many frames, each two times.
class FrameRepeatsLayer : public BandLayer {
 public:
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
};

}  // namespace kinora::models
