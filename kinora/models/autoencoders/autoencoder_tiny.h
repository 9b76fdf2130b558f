#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kinora/models/autoencoders/image_autoencoder.h"
#include "kinora/models/layers/band_layers.h"

namespace kinora::models {

/// As diffusers' config.json names and starts them.
struct AutoencoderTinyConfig {
  int64_t channels = 64;  ///< of all levels
  int64_t latent_channels = 4;
  std::vector<int64_t> num_encoder_blocks = {1, 3, 3, 3};  ///< from pixels to latents
  std::vector<int64_t> num_decoder_blocks = {3, 3, 3, 1};  ///< from latents to pixels
  /// Whether the blocks next to the latents normalise over all places, as those for FLUX.2 do.
  bool pools = false;
  double scaling_factor = 1.0;
};

/// relu(x + three convolutions of x), where x may first get what it is over all places.
class TinyBlock : public nn::Module {
 public:
  TinyBlock(int64_t channels, bool pools);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const;
  void add_needs(const BandPlace& place, std::vector<nn::BandNeed>& needs) const;

  nn::Conv conv0;
  nn::Conv conv2;
  nn::Conv conv4;
  /// Four times as wide, normalised in four groups, and back.
  struct Pool {
    explicit Pool(int64_t channels);
    nn::Conv widen;
    nn::GroupNorm norm;
    nn::Conv narrow;
  };
  std::optional<Pool> pool;
};

/// Convolutions and blocks one after the other, with the keys layers.0, layers.1, ...
class TinyHalf : public nn::Module {
 public:
  enum class Kind { kEncoder, kDecoder };
  TinyHalf(const AutoencoderTinyConfig& config, Kind kind);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const;
  [[nodiscard]] std::vector<nn::BandNeed> needs(BandPlace place) const;

 private:
  struct Layer {
    enum class Kind { kConv, kConvRelu, kDouble, kBlock };
    Kind kind;
    std::unique_ptr<nn::Conv> conv;
    std::unique_ptr<TinyBlock> block;
  };
  void add(size_t number, Layer::Kind kind, const nn::ConvShape& shape);
  /// Returns the number after the last.
  size_t add_blocks(size_t number, int64_t count, int64_t channels, bool pools);
  void add_encoder(const AutoencoderTinyConfig& config);
  void add_decoder(const AutoencoderTinyConfig& config);

  std::vector<Layer> layers_;
};

/// The small autoencoder of O. Boer Bohan's TAESD for the latent spaces of larger ones, with the
/// keys of diffusers' AutoencoderTiny. Latents have no deviation.
class AutoencoderTiny : public ImageAutoencoder {
 public:
  explicit AutoencoderTiny(const AutoencoderTinyConfig& config);

  TinyHalf encoder;
  TinyHalf decoder;

 protected:
  [[nodiscard]] LatentMoments encode_images(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_images(const at::Tensor& raw) override;

 private:
  [[nodiscard]] at::Tensor run(const TinyHalf& half, const at::Tensor& x, int64_t unit) const;
};

}  // namespace kinora::models
