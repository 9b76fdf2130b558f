#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/activation.h"
#include "kinora/models/transformers/transformer_config.h"
#include "kinora/models/unets/unet_config.h"

namespace kinora {
class Fields;
}

namespace kinora::models {

/// ModelConfig::name of a size that is not published, and ModelConfig::architecture by that name.
inline constexpr const char* kCustomName = "custom";
inline constexpr const char* kAutoArchitecture = "auto";

/// A text encoder that is trained as a part of the model.
struct TextEncoderSize {
  enum class Kind : uint8_t { kT5, kClip };
  Kind kind = Kind::kT5;
  int64_t layers = 0;  ///< 0: there is none, and captions come embedded
  int64_t width = 128;
  int64_t heads = 4;
  int64_t mlp = 512;                               ///< hidden width of the MLPs
  int64_t vocab = 256;                             ///< tokens that there may be
  int64_t positions = 77;                          ///< of kClip: tokens of the longest caption
  Activation activation = Activation::kQuickGelu;  ///< of kClip
  int64_t new_tokens = 0;  ///< of kClip: tokens behind the vocabulary (textual inversion)

  [[nodiscard]] bool any() const { return layers > 0; }
};

/// A diffusion model: first what every family may have, which the whole house reads; then the part
/// of each kind of network, which its own room in models/ reads. Others ask shape_of()
/// (families.h). What `name` and the family do not give, or have no use for, stays 0 or auto.
struct ModelConfig {
  /// A published size, such as "DiT-XL/2" or "STDiT3-XL/2", gives what is 0 or auto below; "custom"
  /// gives nothing.
  std::string name = kCustomName;
  std::string architecture = kAutoArchitecture;  ///< Family::key
  int64_t in_channels = 3;        ///< 3 for pixels, 4 for the latents of Stable Diffusion
  int64_t frames = 0;             ///< of the input; 0 = the data's, of images 1
  int64_t height = 0;             ///< of the input (latent or pixels); 0 = data's
  int64_t width = 0;              ///< likewise
  int64_t compression = 1;        ///< pixels of a clip along a side of the input's cell
  int64_t frame_compression = 1;  ///< frames of a clip that make one of the input
  int64_t num_classes = 0;  ///< class num_classes is the null class; 0 = as many as the data has
  std::vector<std::string> class_names = {};  ///< by number; []: nobody says
  bool learn_sigma = true;  ///< twice the output channels: prediction and variance
  /// t is multiplied by it before the embedding: 1 for t in 0..999, 1000 for flows; 0 = by
  /// objective.
  double time_scale = 0.0;
  int64_t text_channels = 0;    ///< width of text tokens, or of the pooled vector
  int64_t text_tokens = 0;      ///< longest caption
  int64_t pooled_channels = 0;  ///< of a vector of the whole caption beside its tokens; 0: none
  TextEncoderSize text_encoder = {};  ///< the model's own

  TransformerConfig transformer = {};  ///< of a family of transformers
  UnetConfig unet = {};                ///< of U-Nets

  /// Family::is_video: it makes clips.
  [[nodiscard]] bool is_video() const;
  /// Whether its family is conditioned on captions; else on classes.
  [[nodiscard]] bool takes_text() const;
  /// Width of the vector of a whole caption, beside its tokens or instead of them.
  [[nodiscard]] int64_t pooled_width() const {
    return pooled_channels > 0 ? pooled_channels : text_channels;
  }
  [[nodiscard]] int64_t out_channels() const { return learn_sigma ? 2 * in_channels : in_channels; }
  /// A sample of the input: [C, H, W], of clips [C, T, H, W].
  [[nodiscard]] std::vector<int64_t> sample_shape() const;
};

/// Registers the keys model.*, those of its parts among them.
void describe(Fields& fields, ModelConfig& config);

/// Fills the sizes that `name` gives and checks the whole; kConfig where it does not fit together.
[[nodiscard]] ModelConfig resolved(ModelConfig config);

/// Multiply-accumulates of one forward pass of one sample, captions of full length: linears,
/// attention, modulation, and of a text encoder of its own. The "Gflops" of DiT's paper (119 for
/// DiT-XL/2 at 256 px) are these, in 1e9.
[[nodiscard]] double forward_macs(const ModelConfig& config);
/// The part of these, 0 to 1, that lies in blocks whose linears fp8 can compute.
[[nodiscard]] double fp8_share(const ModelConfig& config);

}  // namespace kinora::models
