#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/models/unets/unet_blocks.h"
#include "kinora/models/unets/unet_layers.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/module.h"

namespace kinora::models {

/// What a ControlNet adds to a U-Net: to each result that the way down leaves for the way up, and
/// to that of the middle.
struct ControlResiduals {
  std::vector<at::Tensor> left;  ///< as go_down() returns them
  at::Tensor middle;
};

/// ControlNet (Zhang et al. 2023, "Adding conditional control to text-to-image diffusion models",
/// section 3.2): the way down and the middle of a U-Net, which are shown a picture besides, and
/// convolutions of one place that begin at zero. Keys are those of diffusers' ControlNetModel.
class ControlNet : public nn::Module {
 public:
  /// As of the U-Net, of which it is `scale` times.
  ControlNet(const ModelConfig& config, double scale);

  /// x_t: [B, C, H, W] without what lies beside it; t: fp32 [B], as embedded; control: fp32
  /// [B, 3, h, w] in [0, 1], h and w by compression as large; of `reads` text and sizes. Residuals
  /// are multiplied by `scale`.
  [[nodiscard]] ControlResiduals forward(const at::Tensor& x_t, const at::Tensor& t,
                                         const at::Tensor& control, const UnetReads& reads,
                                         UnetBlocks& blocks) const;

  /// What attends, by block in forward order; null where nothing does.
  [[nodiscard]] std::vector<UnetTransformer*> transformers();

  /// Its blocks, in forward order; `path` is its own.
  [[nodiscard]] std::vector<UnetBlockNames> names_of_blocks(const std::string& path) const;

  /// Pixels along a side of the picture for one of x_t.
  [[nodiscard]] static int64_t compression(const UnetConfig& config);
  /// Multiply-accumulates of reading the picture of x_t of H x W = `places`.
  [[nodiscard]] static double picture_macs(const UnetConfig& config, double places);

 private:
  /// The picture as wide as the first level: keys conv_in, blocks.I, conv_out.
  class Picture : public nn::Module {
   public:
    explicit Picture(const UnetConfig& config);
    [[nodiscard]] at::Tensor forward(const at::Tensor& control) const;

   private:
    std::vector<std::unique_ptr<nn::Conv>> convs_;
  };

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  nn::Conv conv_in;
  UnetEmbedding time_embedding;
  std::optional<UnetEmbedding> add_embedding;  ///< of pooled vectors and sizes, as the U-Net's
  Picture controlnet_cond_embedding;
  std::vector<std::unique_ptr<UnetLevel>> down_blocks;
  std::vector<std::unique_ptr<nn::Conv>> controlnet_down_blocks;
  UnetMiddle mid_block;
  nn::Conv controlnet_mid_block;
  // NOLINTEND(readability-identifier-naming)
  double scale_;
};

}  // namespace kinora::models
