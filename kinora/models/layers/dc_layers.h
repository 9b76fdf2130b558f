#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/models/layers/band_net.h"
#include "kinora/models/layers/clip_layers.h"

/// Layers of the deep-compression autoencoders (Chen et al. 2024), of clips and of images.
/// Convolutions see zeros around, as many frames before as after.
namespace kinora::models {

/// Whose layers they are. The keys below are Open-Sora 2's, and diffusers' after a "/".
enum class DcForm {
  kClips,   ///< Open-Sora 2's: kernels see frames, too
  kImages,  ///< diffusers' AutoencoderDC: clips have one frame, weights no dim of time
};

enum class DcNorm {
  kRms,    ///< by the root mean square over the channels of each place (Zhang and Sennrich 2019)
  kBatch,  ///< by mean and variance that each channel had in training (Ioffe and Szegedy 2015)
};

enum class DcActivation { kSilu, kRelu };

/// Normalised x of [B, C, T, H, W] times "weight" plus "bias", in fp32. kBatch has the buffers
/// "running_mean" and "running_var" [C], fp32, which are 0 and 1 until they are set.
class PlaceNorm : public nn::Module {
 public:
  explicit PlaceNorm(int64_t channels, DcNorm kind = DcNorm::kRms);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  nn::Parameter weight;
  nn::Parameter bias;
  at::Tensor running_mean;
  at::Tensor running_var;

 private:
  DcNorm kind_;
};

/// How a layer changes the size of clips.
struct DcResize {
  bool frames = false;  ///< frames too, where a clip has more than one
  bool sides = false;
  /// Whether the convolution keeps the size and its channels are places of the larger clip (pixel
  /// shuffle); else it strides, or sees every place repeated.
  bool shuffles = false;
  bool has_shortcut = true;

  [[nodiscard]] int64_t frame_factor(int64_t clip_frames) const {
    return frames && clip_frames > 1 ? 2 : 1;
  }
  [[nodiscard]] int64_t side_factor() const { return sides ? 2 : 1; }
};

/// A convolution to smaller clips plus x whose neighbouring places became channels, averaged to as
/// many as there are: "conv" / the same, or without a name where it keeps the size.
class AveragingLayer : public BandLayer {
 public:
  /// kConfig: the shortcut's channels are no multiple.
  AveragingLayer(int64_t in_channels, int64_t out_channels, DcResize resize, DcForm form);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  int64_t out_channels_;
  DcResize resize_;
  ClipConv conv_;
};

/// A convolution to larger clips plus x whose channels, repeated, became neighbouring places: keys
/// as AveragingLayer has them.
class DuplicatingLayer : public BandLayer {
 public:
  /// kConfig: the shortcut's channels are no multiple.
  DuplicatingLayer(int64_t in_channels, int64_t out_channels, DcResize resize, DcForm form);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

  /// Of rows with kHalo around.
  [[nodiscard]] at::Tensor forward_rows(const nn::Rows& rows) const;
  static constexpr std::array<int64_t, 2> kHalo = {1, 1};

 private:
  int64_t out_channels_;
  DcResize resize_;
  ClipConv conv_;
};

/// x + norm(conv2(activation(conv1(x)))): conv1.conv, conv2.conv, conv2.norm / conv1, conv2, norm.
class DcResidualLayer : public BandLayer {
 public:
  DcResidualLayer(int64_t channels, DcForm form, DcNorm norm = DcNorm::kRms,
                  DcActivation activation = DcActivation::kSilu);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  ClipConv conv1_;
  ClipConv conv2_;
  PlaceNorm norm_;
  DcActivation activation_;
};

struct LinearAttentionOptions {
  int64_t head_channels = 32;
  std::vector<int64_t> scales = {5};  ///< places that each further set of heads sees; odd
  DcNorm norm = DcNorm::kRms;
};

/// x + norm(proj(attention)), linear attention with ReLU over all places (Katharopoulos et al.
/// 2020), of projections and, in as many heads more for each scale, of those seen some places
/// around: qkv.conv, aggreg.N.0, aggreg.N.1, proj.conv, proj.norm / to_q, to_k, to_v,
/// to_qkv_multiscale.N.proj_in, to_qkv_multiscale.N.proj_out, to_out, norm_out. Sums over places
/// are fp32 whatever their number: of few, diffusers computes the same by scores of all pairs.
class LinearAttentionLayer : public BandLayer {
 public:
  /// kConfig: heads do not fit, or a scale is even.
  LinearAttentionLayer(int64_t channels, const LinearAttentionOptions& options, DcForm form);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  /// Each channel of what it sees, then the channels of each head's queries, keys or values.
  struct Scale {
    Scale(int64_t channels, int64_t places, int64_t head_channels, DcForm form);
    ClipConv around;
    ClipConv mixed;
  };

  /// Rows that all scales see.
  [[nodiscard]] std::array<int64_t, 2> halo() const;
  /// [B, (1 + scales) x 3 C, T, H, W]: of each head the queries, keys and values.
  [[nodiscard]] at::Tensor projections(const nn::Rows& rows) const;
  /// Those as [B, heads, 3, head_channels, places], fp32 at least.
  [[nodiscard]] at::Tensor heads(const at::Tensor& projections) const;
  /// Sums over places: of values and of ones times keys, [B, heads, head_channels + 1,
  /// head_channels].
  [[nodiscard]] at::Tensor sums(const at::Tensor& projections) const;
  [[nodiscard]] at::Tensor attended(const at::Tensor& projections, const at::Tensor& sums) const;

  int64_t head_channels_;
  std::vector<std::unique_ptr<ClipConv>> qkv_;  // one, or one for each of q, k and v
  std::vector<std::unique_ptr<Scale>> scales_;
  ClipConv proj_;
  PlaceNorm norm_;
};

/// x + norm(point(a * silu(b))), (a, b) = depth(silu(inverted(x))): inverted_conv.conv,
/// depth_conv.conv, point_conv.conv, point_conv.norm / conv_inverted, conv_depth, conv_point, norm.
class GatedLayer : public BandLayer {
 public:
  GatedLayer(int64_t channels, DcForm form);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  ClipConv inverted_;
  ClipConv depth_;
  ClipConv point_;
  PlaceNorm norm_;
};

/// The DuplicatingLayer, without a shortcut, of relu(norm(x)): 0 (the norm), 2 / norm_out,
/// conv_out.
class NormReluConvLayer : public BandLayer {
 public:
  NormReluConvLayer(int64_t in_channels, int64_t out_channels, DcResize resize, DcForm form);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  PlaceNorm norm_;
  DuplicatingLayer conv_;
};

}  // namespace kinora::models
