#pragma once

#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/models/autoencoders/image_autoencoder.h"

namespace kinora::models {

/// As diffusers' config.json names and starts them.
struct AutoencoderVqConfig {
  /// Its encoder and decoder, between which lie quant_conv and post_quant_conv in any case.
  AutoencoderKlConfig halves = {.latent_channels = 3, .scale = {1.0}};
  int64_t num_vq_embeddings = 256;
  int64_t vq_embed_dim = 3;  ///< channels of latents
};

/// Vectors that latents are taken to.
class Codebook : public nn::Module {
 public:
  Codebook(int64_t num_codes, int64_t channels);
  /// Numbers of the codes next to the vectors of z [B, C, h, w], by Euclidean distance in fp32
  /// (fp64 where z is), the first of equals: [B, h, w]. Distances take `bytes` at once; 0: some
  /// MiB.
  [[nodiscard]] at::Tensor nearest(const at::Tensor& z, int64_t bytes) const;
  /// The codes of such numbers: [B, C, h, w].
  [[nodiscard]] at::Tensor codes(const at::Tensor& numbers) const;

  nn::Parameter weight;  // [codes, C]
};

/// The vector-quantised autoencoder of latent diffusion (Esser et al. 2021, Rombach et al. 2022),
/// with the keys of diffusers' VQModel. Latents are what the encoder says, without a deviation:
/// CompVis' VQModelInterface. They are taken to their nearest codes when they are decoded;
/// gradients pass that by as if nothing had changed.
class AutoencoderVq : public ImageAutoencoder {
 public:
  /// kConfig for sizes that do not fit each other.
  explicit AutoencoderVq(const AutoencoderVqConfig& config);

  /// Whether decode() takes latents to codes from now on; diffusers' force_not_quantize says no.
  void set_quantises(bool quantises) { quantises_ = quantises; }

  KlHalf encoder;
  KlHalf decoder;
  Codebook codebook;
  nn::Conv quant_conv;
  nn::Conv post_quant_conv;

 protected:
  [[nodiscard]] LatentMoments encode_images(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_images(const at::Tensor& raw) override;

 private:
  bool quantises_ = true;
};

}  // namespace kinora::models
