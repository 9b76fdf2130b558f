#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/bands.h"
#include "kinora/nn/module.h"

namespace kinora::models {

inline constexpr int64_t kPixelChannels = 3;
// Log variances are kept between these (CompVis: DiagonalGaussianDistribution).
inline constexpr double kLeastLogVariance = -30.0;
inline constexpr double kMostLogVariance = 20.0;

/// What a diffusion model knows of an autoencoder: the space that it works in.
struct LatentSpace {
  int64_t channels = 4;
  int64_t compression = 8;        ///< pixels a side of one latent
  int64_t frame_compression = 1;  ///< frames of one latent frame; 1 for autoencoders of images
  /// Whether the first frame makes a latent frame alone (causal autoencoders): T frames become
  /// (T - 1) / frame_compression + 1; else T / frame_compression.
  bool first_frame_alone = false;
  int64_t chunk_frames = 0;  ///< clips are taken apart in so many frames, the last fewer; 0: whole
  bool chunks_share_frame =
      false;  ///< whether a chunk begins with the last frame of the one before
  /// Models that are shown latents beside x_t (ShownInput::kFirstFrame) see these as
  /// (z - shift) / scale (CogVideoX-5B-I2V).
  bool inverts_shown = false;
  /// A model sees (z - shift) * scale; one value, or one a channel.
  std::vector<double> scale = {1.0};
  std::vector<double> shift = {0.0};
};

/// Latent frames that a clip of so many frames becomes. A single frame is an image. kShape, naming
/// the nearest counts that fit: frames would be made up or lost.
[[nodiscard]] int64_t latent_frames(const LatentSpace& space, int64_t frames);

/// Frames that so many latent frames become.
[[nodiscard]] int64_t pixel_frames(const LatentSpace& space, int64_t latents);

/// What pixels become: in the scaled space of LatentSpace, a mean and, of variational
/// autoencoders, a standard deviation (else undefined). A latent is mean + std * noise.
struct LatentMoments {
  at::Tensor mean;
  at::Tensor std;
};

/// For decoders that are told how noisy latents are (LTX-Video from 0.9.1 on).
struct DecodeNoise {
  double level = 0.0;  ///< what it is told, 0 to 1
  double mixed = 0.0;  ///< before that so much of the raw latents becomes noise, the same for each
};

/// Raw latents [B, C, (t,) h, w] as a model sees them, and back.
[[nodiscard]] at::Tensor to_model_space(const LatentSpace& space, const at::Tensor& raw);
[[nodiscard]] at::Tensor from_model_space(const LatentSpace& space, const at::Tensor& latents);
/// Raw moments as a model sees them; std may be undefined.
[[nodiscard]] LatentMoments to_model_space(const LatentSpace& space, const LatentMoments& raw);

/// Latents as a model sees them, for one that is shown them beside x_t
/// (LatentSpace::inverts_shown).
[[nodiscard]] at::Tensor as_shown(const LatentSpace& space, const at::Tensor& latents);

/// kShape, saying that it is about `what`, unless `x` is [B, channels, (T,) H, W] with H and W
/// multiples of `unit`.
void check_picture_shape(const at::Tensor& x, const char* what, int64_t channels, int64_t unit);

/// Pixels to latents and back. Images are [B, 3, H, W], clips [B, 3, T, H, W], in [-1, 1]; latents
/// [B, C, h, w] and [B, C, t, h, w]. An autoencoder of images takes a clip frame by frame, one of
/// clips an image as a clip of one frame; the result has as many dims as what came in.
class Autoencoder : public nn::Module {
 public:
  explicit Autoencoder(LatentSpace space) : space_(std::move(space)) {}
  virtual ~Autoencoder() = default;

  [[nodiscard]] const LatentSpace& space() const { return space_; }

  /// kShape where H or W is not a multiple of the compression, or T does not fit.
  [[nodiscard]] virtual LatentMoments encode(const at::Tensor& pixels) = 0;
  [[nodiscard]] virtual at::Tensor decode(const at::Tensor& latents) = 0;

  /// Bytes that activations may take at once from now on, forward and backward; 0: no limit. Within
  /// it the same numbers are computed piece by piece.
  void set_memory_budget(int64_t bytes) { limits_.bytes = bytes; }
  /// Ranks that encode and decode together from now on: each computes some rows, and all have the
  /// result. All of them make the same calls, and run the same backward, which gives each the whole
  /// gradient of the input.
  void use_ranks(const comm::Group& ranks) { limits_.ranks = ranks; }
  /// Gradients of parameters become what they would be on one rank: their mean over those of
  /// use_ranks(), whichever passes they are of. All of these call it behind backward.
  void average_gradients();
  /// Whether so many ranks divide so many rows of latents: a rank must have what layers of the next
  /// one see of it.
  [[nodiscard]] static bool divides(int64_t latent_rows, int64_t ranks);
  [[nodiscard]] const nn::BandLimits& limits() const { return limits_; }
  /// From now on. kConfig for more than nothing where the decoder is told none.
  virtual void set_decode_noise(const DecodeNoise& noise);
  /// So many decoded frames of a clip, the first ones, are none of what was drawn
  /// (ModelShape::decoded_before): pipelines::decode_latents() leaves them out.
  void set_decoded_before(int64_t frames) { decoded_before_ = frames; }
  [[nodiscard]] int64_t decoded_before() const { return decoded_before_; }

 private:
  LatentSpace space_;
  nn::BandLimits limits_;
  int64_t decoded_before_ = 0;
};

}  // namespace kinora::models
