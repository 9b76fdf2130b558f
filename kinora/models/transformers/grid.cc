#include "kinora/models/transformers/grid.h"

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::models {

Grid grid_of(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return {ceil_div(config.frames, own.patch_frames), config.height / own.patch,
          config.width / own.patch};
}

Grid grid_of(const ModelConfig& config, const at::Tensor& x_t) {
  const at::IntArrayRef sizes = x_t.sizes();
  KINORA_CHECK((sizes.size() == 4 || sizes.size() == 5) && sizes[1] == config.in_channels, kShape,
               "[model] x_t must have shape [B, ", config.in_channels,
               ", frames, height, width] or, of images, [B, ", config.in_channels,
               ", height, width], got ", sizes);
  const TransformerConfig& own = config.transformer;
  const int64_t frames = sizes.size() == 4 ? 1 : sizes[2];
  return {ceil_div(frames, own.patch_frames), ceil_div(sizes[sizes.size() - 2], own.patch),
          ceil_div(sizes.back(), own.patch)};
}

}  // namespace kinora::models
