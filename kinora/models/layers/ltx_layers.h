#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/layers/band_net.h"
#include "kinora/models/layers/causal_layers.h"
#include "kinora/models/layers/clip_layers.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"

/// Layers of the autoencoder of LTX-Video, named as diffusers names them. Norms divide a place by
/// the root mean square of its channels; convolutions see the first and last frame again beyond a
/// clip, and zeros around a frame. B = batch, C = channels, T = frames, H, W = rows, columns.
namespace kinora::models {

/// Of 3 x 3 x 3 places; causal: it sees no later frame.
[[nodiscard]] ClipKernel ltx_kernel(bool causal);

/// How noisy latents are, as a decoder is told it: key timestep_scale_multiplier.
class LtxNoiseLevel : public nn::Module {
 public:
  LtxNoiseLevel();
  /// 0 to 1.
  void set(double level) { level_ = level; }
  /// The level times the multiplier: [1], fp32 or of the weights' type, if that is wider.
  [[nodiscard]] at::Tensor time() const;

 private:
  double level_ = 0.0;
  nn::Parameter timestep_scale_multiplier_;  // []
};

/// What that is for the layers of a block: key timestep_embedder.
class LtxLevelEmbedder : public nn::Module {
 public:
  /// Borrows the level.
  LtxLevelEmbedder(const LtxNoiseLevel& level, int64_t channels, int64_t vectors);
  /// With the learned table [vectors, C] added, each as [1, C, 1, 1, 1].
  [[nodiscard]] std::vector<at::Tensor> vectors(const nn::Parameter& table) const;

 private:
  const LtxNoiseLevel& level_;
  int64_t vectors_;
  nn::Linear linear_1_;
  nn::Linear linear_2_;
};

/// patched() of pixels.
class LtxPatchingLayer : public BandLayer {
 public:
  explicit LtxPatchingLayer(int64_t patch) : patch_(patch) {}
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  int64_t patch_;
};

/// unpatched(), at the end.
class LtxUnpatchingLayer : public BandLayer {
 public:
  explicit LtxUnpatchingLayer(int64_t patch) : patch_(patch) {}
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  int64_t patch_;
};

struct LtxResidualOptions {
  bool causal = true;
  double shortcut_epsilon = 1e-6;           ///< of the norm before the shortcut
  const LtxLevelEmbedder* level = nullptr;  ///< borrowed; null: the layer is told none
  /// Adds noise behind both convolutions, the same to all frames, times a learned number a channel:
  /// maps that are constants of the autoencoder, of these names. Empty: it adds none.
  std::string noise_name = {};
};

/// x + two times (norm, SiLU, convolution): conv1.conv, conv2.conv; where widths differ norm3 and
/// conv_shortcut.conv, of a noise level scale_shift_table, of noise per_channel_scale1 and 2.
class LtxResidualLayer : public BandLayer {
 public:
  LtxResidualLayer(int64_t in_channels, int64_t out_channels, const LtxResidualOptions& options);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  /// One of both halves, a convolution of what norm and SiLU make.
  struct Half {
    const ClipConv* conv;
    const nn::Parameter* noise_scale;
    at::Tensor shift{};  ///< undefined: the layer is told no noise level
    at::Tensor scale{};
    at::Tensor noise{};  ///< fp32 [1, 1, 1, H, W] of the whole; undefined: none is added
  };
  [[nodiscard]] std::vector<Half> halves(const nn::Bands& x) const;
  /// Of band i; skip is added where it is defined.
  [[nodiscard]] static at::Tensor compute(const Half& half, const nn::Bands& x, size_t i,
                                          const at::Tensor& skip);

  LtxResidualOptions options_;
  ClipConv conv1_;
  ClipConv conv2_;
  std::unique_ptr<nn::LayerNorm> norm3_;  // null where widths are the same
  std::unique_ptr<ClipConv> shortcut_;
  nn::Parameter scale_shift_table_;   // [4, C]
  nn::Parameter per_channel_scale1_;  // [C, 1, 1]
  nn::Parameter per_channel_scale2_;
};

/// By what a layer changes frames and sides: 1 or 2.
struct LtxStep {
  int64_t frames = 1;
  int64_t sides = 1;

  [[nodiscard]] int64_t volume() const { return frames * sides * sides; }
};

/// A convolution whose neighbouring places become channels, plus means of x's: conv.conv. The first
/// frame counts twice where frames are halved, so that it stays alone.
class LtxFoldingLayer : public BandLayer {
 public:
  /// kConfig where channels do not divide.
  LtxFoldingLayer(int64_t in_channels, int64_t out_channels, const LtxStep& step, bool causal);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  int64_t out_channels_;
  LtxStep step_;
  ClipConv conv_;
};

/// A convolution whose channels become neighbouring places, twice as many of all; the first frame
/// stays one. With `residual` plus x's own channels so, again and again: conv.conv.
class LtxUnfoldingLayer : public BandLayer {
 public:
  /// divisor: channels become so many times fewer. kConfig where they do not divide.
  LtxUnfoldingLayer(int64_t channels, int64_t divisor, bool residual, bool causal);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  int64_t divisor_;
  bool residual_;
  ClipConv conv_;
};

/// Norm, SiLU, convolution: conv_out.conv; of a noise level scale_shift_table.
class LtxNormConvLayer : public BandLayer {
 public:
  /// level: borrowed; null: the layer is told none.
  LtxNormConvLayer(int64_t in_channels, int64_t out_channels, bool causal,
                   const LtxLevelEmbedder* level = nullptr);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  const LtxLevelEmbedder* level_;
  ClipConv conv_;
  nn::Parameter scale_shift_table_;  // [2, C]
};

/// Normals that a name stands for, the same always: [shape] in fp32 on that device.
[[nodiscard]] at::Tensor constant_noise(const std::string& name, at::IntArrayRef shape,
                                        at::Device device);

}  // namespace kinora::models
