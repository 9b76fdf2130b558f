#include "kinora/models/unets/unet_config.h"

#include "kinora/core/config.h"

namespace kinora::models {

void describe(Fields& fields, UnetConfig& config) {
  const auto scope = fields.scope("unet");
  fields.add("channels", config.channels,
             "unet: width of each level, from the finest, multiples of norm_groups; [] = by name.",
             between(1, 65536));
  fields.add(
      "resnets", config.resnets,
      "unet: residual blocks of a level on the way down, one more on the way up; 0 = by name.",
      between(0, 64));
  fields.add(
      "depths", config.depths,
      "unet: transformer blocks behind each residual block of a level, 0 where none attends; "
      "[] = by name.",
      between(0, 64));
  fields.add("middle_depth", config.middle_depth,
             "unet: transformer blocks in the middle; 0 = by name.", between(0, 64));
  fields.add("heads", config.heads, "unet: attention heads of each level; [] = by name.",
             between(1, 4096));
  fields.add("norm_groups", config.norm_groups, "unet: groups of every group norm.",
             between(1, 4096));
  fields.add("norm_epsilon", config.norm_epsilon,
             "unet: what is added to the variance in norms of residual blocks.", above(0, 1));
  fields.add("linear_projection", config.linear_projection,
             "unet: files of diffusers have linears around attention (SD 2, SDXL), else "
             "convolutions of one place.");
  fields.add("size_channels", config.size_channels,
             "unet: with model.pooled_channels, sinusoids of each number that says how large a "
             "picture was and how it was cut, even; 0 = by name.",
             between(0, 65536));
  fields.add("reads_score", config.reads_score,
             "unet: likewise; a score of how well a picture pleases stands for its size after the "
             "cut (SDXL's refiner).");
}

}  // namespace kinora::models
