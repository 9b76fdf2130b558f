#include "kinora/models/transformers/grid.h"

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

int64_t divided_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

}  // namespace

Grid grid_of(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return {divided_up(config.frames, own.patch_frames), config.height / own.patch,
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
  return {divided_up(frames, own.patch_frames), divided_up(sizes[sizes.size() - 2], own.patch),
          divided_up(sizes.back(), own.patch)};
}

}  // namespace kinora::models
