#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/layers/band_net.h"

namespace kinora::models {

/// Starts as OpenSoraVAE_V1_3.
struct OpenSoraCausalVaeConfig {
  int64_t latent_channels = 16;
  int64_t channels = 128;  ///< of the outermost blocks
  std::vector<int64_t> channel_multipliers = {1, 2, 4, 4};
  int64_t num_res_blocks = 2;
  /// Whether what halves the sides behind a block halves the frames, too; one entry less than
  /// multipliers.
  std::vector<bool> temporal_downsample = {false, true, true};
  int64_t num_groups = 32;
  int64_t micro_frame_size = 17;  ///< frames that are seen at once
  /// A model sees (z - shift) / scale; one value a channel, or one for all. These are the
  /// statistics that its authors measured on clips ("video").
  std::vector<double> shift = {
      -0.19016949832439423,  -0.04480062797665596,  0.020789705216884613,  0.01865335740149021,
      -0.011585569009184837, 0.0010865575168281794, 0.08378933370113373,   0.08902134001255035,
      0.00940945465117693,   0.08086848258972168,   -0.07251627743244171,  0.05052144080400467,
      -0.0209724809974432,   -0.1223079189658165,   -0.003862356534227729, -0.023072388023138046};
  std::vector<double> scale = {
      0.9490776062011719, 0.9594117999076843, 0.9444302916526794, 0.9103284478187561,
      0.959351658821106,  0.8430351614952087, 0.8888124823570251, 0.9291136860847473,
      0.972594141960144,  0.8917953968048096, 0.8630853891372681, 0.8279891610145569,
      0.9114300012588501, 0.7922844886779785, 0.8991407155990601, 0.9473513960838318};
};

/// The causal 3-D autoencoder of Open-Sora 1.3, 4x8x8: convolutions see earlier frames and zeros
/// where a clip ends; in the middle a place attends to those before it. Clips pass in chunks that
/// share a frame, which is encoded with both and decoded to the mean of both. Parameter names are
/// the original's.
class OpenSoraCausalVae : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit OpenSoraCausalVae(const OpenSoraCausalVaeConfig& config);

  /// How decode() cuts a chunk of such latents within the budget.
  [[nodiscard]] nn::BandPlan decode_plan(const ClipSize& latents, bool with_gradients) const;

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  BandNet encoder_;
  BandNet decoder_;
};

}  // namespace kinora::models
