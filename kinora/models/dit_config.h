#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora {
class Fields;
}

namespace kinora::models {

/// A diffusion transformer (Peebles and Xie 2023, "Scalable diffusion models with transformers").
struct DiTConfig {
  /// "DiT-S/2" ... "DiT-XL/8" give depth, hidden, heads and patch where those are 0; "custom" gives
  /// nothing.
  std::string name = "custom";
  int64_t depth = 0;        ///< number of blocks
  int64_t hidden = 0;       ///< C, width of a token; a multiple of 4 (position embedding)
  int64_t heads = 0;        ///< attention heads; divides hidden
  int64_t patch = 0;        ///< side of a square patch
  int64_t in_channels = 3;  ///< 3 for pixels, 4 for the latents of Stable Diffusion
  int64_t height = 0;       ///< of the input (latent or pixels), a multiple of patch; 0 = data's
  int64_t width = 0;        ///< likewise
  int64_t num_classes = 0;  ///< class num_classes is the null class; 0 = as many as the data has
  double mlp_ratio = 4.0;   ///< hidden width of the MLP over C
  bool learn_sigma = true;  ///< twice the output channels: prediction and variance
  /// t is multiplied by it before the embedding: 1 for t in 0..999, 1000 for flows; 0 = by
  /// objective.
  double time_scale = 0.0;

  [[nodiscard]] int64_t out_channels() const { return learn_sigma ? 2 * in_channels : in_channels; }
  [[nodiscard]] int64_t num_tokens() const { return (height / patch) * (width / patch); }
  [[nodiscard]] int64_t mlp_hidden() const {
    return static_cast<int64_t>(static_cast<double>(hidden) * mlp_ratio);
  }
};

/// Registers the keys model.*.
void describe(Fields& fields, DiTConfig& config);

/// Fills the sizes that `name` gives and checks the whole; kConfig where it does not fit together.
[[nodiscard]] DiTConfig resolved(DiTConfig config);

/// "DiT-S/2", ..., "DiT-XL/8".
[[nodiscard]] std::vector<std::string> dit_names();

/// Multiply-accumulates of one forward pass of one image: linears, attention, modulation. The
/// paper's "Gflops" (119 for DiT-XL/2 at 256 px) are these, in 1e9.
[[nodiscard]] double forward_macs(const DiTConfig& config);

}  // namespace kinora::models
