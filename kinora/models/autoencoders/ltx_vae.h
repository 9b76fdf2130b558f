#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/layers/band_net.h"
#include "kinora/models/layers/ltx_layers.h"

namespace kinora::models {

/// How a level of the encoder halves clips.
enum class LtxHalving : uint8_t {
  kConv,            ///< all sides, by a convolution that strides
  kSpatial,         ///< rows and columns, which become channels
  kTemporal,        ///< frames, likewise
  kSpatiotemporal,  ///< all of them
};

/// Fields of diffusers' config.json of AutoencoderKLLTXVideo, as LTX-Video 0.9 was published.
struct LtxVaeConfig {
  int64_t latent_channels = 128;
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};
  /// Of 0.9.5: levels widen where they halve, and the last of block_out_channels has none.
  bool widens_by_halving = false;
  std::vector<int64_t> decoder_block_out_channels = {128, 256, 512, 512};
  std::vector<int64_t> layers_per_block = {4, 3, 3, 3, 4};  ///< at last of the middle
  std::vector<int64_t> decoder_layers_per_block = {4, 3, 3, 3, 4};
  std::vector<bool> spatio_temporal_scaling = {true, true, true, false};
  std::vector<bool> decoder_spatio_temporal_scaling = {true, true, true, false};
  std::vector<bool> decoder_inject_noise = {false, false, false, false, false};
  std::vector<LtxHalving> downsample_type = std::vector<LtxHalving>(4, LtxHalving::kConv);
  std::vector<bool> upsample_residual = {false, false, false, false};
  std::vector<int64_t> upsample_factor = {1, 1, 1, 1};
  bool timestep_conditioning = false;  ///< the decoder is told how noisy latents are
  int64_t patch_size = 4;
  double resnet_norm_eps = 1e-6;
  double scaling_factor = 1.0;
  bool encoder_causal = true;
  bool decoder_causal = false;
  /// A model sees (z - mean) / std * scaling_factor; one value a channel, []: 0 and 1.
  std::vector<double> latents_mean = {};
  std::vector<double> latents_std = {};
};

/// The 3-D autoencoder of LTX-Video (HaCohen et al. 2024), 8 x 32 x 32: the first frame becomes a
/// latent frame alone. Its encoder sees no later frame, its decoder does. Parameter names are those
/// of diffusers.
class LtxVae : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit LtxVae(const LtxVaeConfig& config);

  void set_decode_noise(const DecodeNoise& noise) override;
  /// How decode() cuts such latents.
  [[nodiscard]] nn::BandPlan decode_plan(const ClipSize& latents, bool with_gradients) const;

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  void add_encoder(const LtxVaeConfig& config);
  void add_decoder(const LtxVaeConfig& config);
  /// For so many vectors of a block; null where the decoder is told nothing.
  [[nodiscard]] const LtxLevelEmbedder* embedder(const std::string& block, int64_t channels,
                                                 int64_t vectors);

  int64_t latent_channels_;
  int64_t patch_;
  double mixed_ = 0.0;                    // of latents, noise
  std::unique_ptr<LtxNoiseLevel> level_;  // null: the decoder is told nothing
  std::vector<std::unique_ptr<LtxLevelEmbedder>> embedders_;
  BandNet encoder_;
  BandNet decoder_;
};

}  // namespace kinora::models
