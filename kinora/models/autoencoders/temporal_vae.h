#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/layers/band_net.h"
#include "kinora/nn/conv.h"

namespace kinora::models {

struct TemporalVaeConfig {
  int64_t channels = 4;  ///< of the latents that come in, go out and lie between
  int64_t filters = 128;
  int64_t num_res_blocks = 4;
  std::vector<int64_t> channel_multipliers = {1, 2, 2, 4};
  /// Whether a block halves the frames; one entry less than multipliers.
  std::vector<bool> temporal_downsample = {false, true, true};
  int64_t num_groups = 32;
};

/// The temporal autoencoder of Open-Sora 1.2 (after MAGVIT-v2, Yu et al. 2023): latents of frames
/// to latents of fewer frames. Convolutions see earlier frames only, and zeros where a clip ends.
/// Names as Open-Sora has them.
class TemporalVae : public nn::Module {
 public:
  /// kConfig.
  explicit TemporalVae(const TemporalVaeConfig& config);

  /// x: [B, C, T, h, w] with T a multiple of compression(). Means and log variances, [B, 2 C,
  /// T / compression(), h, w].
  [[nodiscard]] at::Tensor encode(const at::Tensor& x, const nn::BandLimits& limits) const;
  /// z: [B, C, t, h, w]. Returns [B, C, t * compression(), h, w].
  [[nodiscard]] at::Tensor decode(const at::Tensor& z, const nn::BandLimits& limits) const;

  [[nodiscard]] int64_t compression() const { return compression_; }

 private:
  int64_t compression_;
  BandNet encoder_{1};
  BandNet decoder_{1};
  nn::Conv quant_conv_;
  nn::Conv post_quant_conv_;
};

}  // namespace kinora::models
