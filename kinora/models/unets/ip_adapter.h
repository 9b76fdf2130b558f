#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"

/// Shapes: B batch, P channels of what an image encoder says, T tokens that become of it, D their
/// width, that of texts, W width of a resampler, C channels of an attention.
namespace kinora::models {

/// The tokens of a vector: norm(proj(image)), keys proj, norm.
class ImageProjection : public nn::Module {
 public:
  explicit ImageProjection(const ModelConfig& config);
  /// image: fp32 [B, P]. Returns [B, T, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& image) const;

 private:
  int64_t tokens_;
  nn::Linear proj_;
  nn::LayerNorm norm_;
};

/// The tokens of a picture's places, which learned queries ask for (Alayrac et al. 2022,
/// "Flamingo", the perceiver resampler): keys latents, proj_in, layers.I, proj_out, norm_out.
class Resampler : public nn::Module {
 public:
  explicit Resampler(const ModelConfig& config);
  /// image: fp32 [B, N, P] of N places. Returns [B, T, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& image) const;

 private:
  /// latents + attention(norm2(latents) to norm1(x) and norm2(latents)), then + the MLP of its
  /// norm: keys 0.norm1, 0.norm2, 0.to_q, 0.to_kv, 0.to_out, 1.0, 1.1, 1.3.
  class Block : public nn::Module {
   public:
    explicit Block(const IpAdapterConfig& config);
    /// x: [B, N, W]; latents: [B, T, W]. Returns the latter's shape.
    [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& latents) const;

   private:
    int64_t heads_;
    nn::LayerNorm norm1_;
    nn::LayerNorm norm2_;
    nn::Linear to_q_;
    nn::Linear to_kv_;
    nn::Linear to_out_;
    nn::LayerNorm norm_;
    nn::Linear fc1_;
    nn::Linear fc2_;
  };

  nn::Parameter latents_;  // [1, T, W]
  nn::Linear proj_in_;
  std::vector<std::unique_ptr<Block>> layers_;
  nn::Linear proj_out_;
  nn::LayerNorm norm_out_;
};

/// IP-Adapter (Ye et al. 2023, "IP-Adapter: text compatible image prompt adapter for text-to-image
/// diffusion models", section 3.2): makes tokens of what an image encoder says of a picture, and of
/// these keys and values for each attention to the text, which has no weights of its own for it.
///
/// Keys are those of the published files: image_proj.*, and N.to_k_ip.weight, N.to_v_ip.weight,
/// which stand below ip_adapter. as the child does. N counts all attentions of the U-Net, every
/// second of which is to the text, of the way down, the way up and the middle, in this order.
class IpAdapter : public nn::Module {
 public:
  /// Of a U-Net with UnetConfig::ip_adapter.
  explicit IpAdapter(const ModelConfig& config);

  /// image: fp32 [B, P] of P = IpAdapterConfig::channels or, of a "plus" adapter, [B, N, P] of N
  /// places. Returns keys and values for each attention to the text, in the order in which the
  /// U-Net computes them: [B, T, 2 C].
  [[nodiscard]] std::vector<at::Tensor> forward(const at::Tensor& image) const;

 private:
  /// Of one attention.
  struct Reader {
    Reader(int64_t text_channels, int64_t channels);

    nn::Linear to_k_ip;
    nn::Linear to_v_ip;
  };

  // NOLINTBEGIN(readability-identifier-naming): named as the published files' keys
  std::optional<ImageProjection> image_proj;  // of one vector
  std::optional<Resampler> resampler;         // image_proj, too
  // NOLINTEND(readability-identifier-naming)
  std::vector<std::unique_ptr<Reader>> readers_;
};

/// Channels of a head of a Resampler, in all published files.
inline constexpr int64_t kResamplerHeadChannels = 64;

/// What IpAdapter's parameters are below in a U-Net's.
inline constexpr const char* kIpAdapterPrefix = "ip_adapter.";

}  // namespace kinora::models
