#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinora/models/layers/band_layers.h"
#include "kinora/models/layers/band_net.h"
#include "kinora/models/layers/clip_layers.h"
#include "kinora/nn/conv.h"

/// Layers of the autoencoders of clips that see no later frame, for clips that pass whole or in
/// pieces (BandNet::forward_pieces), with the same result. B = batch, C = channels, T = frames,
/// H, W = rows, columns.
namespace kinora::models {

/// x / rms(x) over the channels of a place, times "gamma" [C, 1...], in fp32
/// (ops::channel_rms).
class ChannelRmsNorm : public nn::Module {
 public:
  /// dims: of gamma, behind C.
  ChannelRmsNorm(int64_t channels, size_t dims);
  /// x: [B, C, spatial...]. Returns x's type.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  /// silu(forward()) of clips one behind the other, behind so many frames of zeros.
  [[nodiscard]] at::Tensor forward_silu(const std::vector<at::Tensor>& clips, int64_t zeros) const;

  nn::Parameter gamma;
};

/// A convolution of odd sizes that keeps the size and sees zeros around a frame. edges: what it
/// sees before the first frame, zeros or that frame again.
class CausalConv {
 public:
  CausalConv(int64_t in_channels, int64_t out_channels, const std::array<int64_t, 3>& size,
             Edges edges = Edges::kZero);

  /// What has its parameters.
  [[nodiscard]] nn::Conv& parameters() { return conv_; }

  /// conv(x), or where `norm` is not null conv(silu(norm(x))), plus `beside` where it is not null;
  /// x and beside are freed on the way if nobody else holds them. memory: of a clip that passes in
  /// pieces, else null.
  [[nodiscard]] nn::Bands forward(nn::Bands x, const ChannelRmsNorm* norm, nn::Bands* beside,
                                  ClipMemory* memory) const;
  [[nodiscard]] std::array<int64_t, 2> halo() const;
  [[nodiscard]] ClipSize out_size(const ClipSize& in) const;
  /// BandLayer::remembered_bytes().
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const;
  /// What it takes, as clip_need() says, where it reads `in` as it is.
  [[nodiscard]] nn::BandNeed need(const ClipSize& in, int64_t beside = 0) const;

 private:
  Edges edges_;
  nn::Conv conv_;
};

/// A layer that forward() computes as forward_next() does with no memory.
class CausalLayer : public BandLayer {
 public:
  [[nodiscard]] nn::Bands forward(nn::Bands x) const final { return run(std::move(x), nullptr); }
  [[nodiscard]] nn::Bands forward_next(nn::Bands x, ClipMemory& memory) const final {
    return run(std::move(x), &memory);
  }

 protected:
  /// memory: null where x is the whole.
  [[nodiscard]] virtual nn::Bands run(nn::Bands x, ClipMemory* memory) const = 0;
};

/// A CausalConv alone.
class CausalConvLayer : public CausalLayer {
 public:
  CausalConvLayer(int64_t in_channels, int64_t out_channels, Edges edges = Edges::kZero);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  CausalConv conv_;
};

/// Norm, SiLU, convolution: norm_out, conv_out.
class CausalNormConvLayer : public CausalLayer {
 public:
  CausalNormConvLayer(int64_t in_channels, int64_t out_channels);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  ChannelRmsNorm norm_;
  CausalConv conv_;
};

/// x + two times (norm, SiLU, convolution): norm1, conv1, norm2, conv2, and conv_shortcut where
/// widths differ.
class CausalResidualLayer : public CausalLayer {
 public:
  CausalResidualLayer(int64_t in_channels, int64_t out_channels);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  ChannelRmsNorm norm1_;
  CausalConv conv1_;
  ChannelRmsNorm norm2_;
  CausalConv conv2_;
  std::unique_ptr<nn::Conv> shortcut_;  // null where widths are the same
};

/// Half as many frames: the first stays as it is; behind it every other one is a convolution of
/// itself and the two before it.
class FrameHalvingLayer : public CausalLayer {
 public:
  explicit FrameHalvingLayer(int64_t channels);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  nn::Conv conv_;
};

/// Twice as many frames: the first stays one and as it is; the others, of which convolutions in
/// time see no first, become two, channel s C + c of a frame being channel c of its frame s.
class LaterFramesDoublingLayer : public CausalLayer {
 public:
  explicit LaterFramesDoublingLayer(int64_t channels);
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  nn::Conv conv_;
};

/// Layers one after the other, to whose result is added what their input becomes without parameters
/// in the same size: on the way down means of groups of values, on the way up each value again.
class ResampledSumLayer : public CausalLayer {
 public:
  enum class Way : uint8_t { kDown, kUp };
  struct Resampling {
    Way way = Way::kDown;
    int64_t in_channels = 1;
    int64_t out_channels = 1;
    int64_t frames = 1;  ///< what so many frames become one, or one becomes; the first stays one
    int64_t sides = 1;   ///< likewise rows and columns
  };
  explicit ResampledSumLayer(const Resampling& resampling) : resampling_(resampling) {}

  /// Appends a layer under a name.
  template <typename Layer, typename... Arguments>
  void add(const std::string& name, Arguments&&... arguments) {
    layers_.push_back(std::make_unique<Layer>(std::forward<Arguments>(arguments)...));
    add_child(name, *layers_.back());
  }
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  [[nodiscard]] nn::Bands run(nn::Bands x, ClipMemory* memory) const override;

  Resampling resampling_;
  std::vector<std::unique_ptr<BandLayer>> layers_;
};

/// x [B, C, T, H, W] with means of neighbouring values of groups of channels, frames, rows and
/// columns; zeros stand before a first frame that is alone.
[[nodiscard]] at::Tensor mean_resampled(const at::Tensor& x,
                                        const ResampledSumLayer::Resampling& its);

/// x + attention with one head among the places of a frame, of the normed x: norm, to_qkv, proj.
class OneFrameAttention : public BandLayer {
 public:
  explicit OneFrameAttention(int64_t channels);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  [[nodiscard]] at::Tensor whole(const at::Tensor& x) const;

  ChannelRmsNorm norm_;
  nn::Conv to_qkv_;
  nn::Conv proj_;
};

}  // namespace kinora::models
