#include "kinora/models/unets/unet_config.h"

#include "kinora/core/config.h"
#include "kinora/core/error.h"

namespace kinora::models {

const char* to_string(UnetClasses classes) {
  switch (classes) {
    case UnetClasses::kNone:
      return "none";
    case UnetClasses::kToken:
      return "token";
    case UnetClasses::kTime:
      return "time";
  }
  KINORA_UNREACHABLE("[unet] unknown kind of classes");
}

const char* to_string(UnetAttends attends) {
  switch (attends) {
    case UnetAttends::kCaptions:
      return "captions";
    case UnetAttends::kPlaces:
      return "places";
  }
  KINORA_UNREACHABLE("[unet] unknown attention");
}

std::optional<UnetChannels> unet_channels(int64_t in, int64_t out) {
  for (const ShownInput input : {ShownInput::kPlain, ShownInput::kInpaint, ShownInput::kEdit}) {
    if (out > 0 && in == out + UnetConfig{.input = input}.channels_beside(out)) {
      return UnetChannels{.drawn = out, .input = input};
    }
  }
  if (in > 0 && out == 2 * in) {
    return UnetChannels{.drawn = in, .learn_sigma = true};
  }
  return std::nullopt;
}

int64_t UnetConfig::channels_beside(int64_t in_channels) const {
  switch (input) {
    case ShownInput::kPlain:
      return 0;
    case ShownInput::kInpaint:
      return 1 + in_channels;
    case ShownInput::kEdit:
      return in_channels;
    case ShownInput::kFrames:
    case ShownInput::kFirstFrame:
    case ShownInput::kMarkedFirstFrame:
    case ShownInput::kFill:
    case ShownInput::kReference:
    case ShownInput::kSubjects:
      break;  // of no U-Net
  }
  KINORA_UNREACHABLE("[unet] unknown input");
}

void describe(Fields& fields, UnetConfig& config) {
  const auto scope = fields.scope("unet");
  fields.add("input", config.input,
             {{to_string(ShownInput::kPlain), ShownInput::kPlain},
              {to_string(ShownInput::kInpaint), ShownInput::kInpaint},
              {to_string(ShownInput::kEdit), ShownInput::kEdit}},
             "unet: what is shown beside the noised latents: inpaint = a mask and the picture "
             "without what it covers (9 channels of 4), edit = a picture to change "
             "(instruct-pix2pix, 8 channels).");
  fields.add(
      "classes", config.classes,
      {{to_string(UnetClasses::kNone), UnetClasses::kNone},
       {to_string(UnetClasses::kToken), UnetClasses::kToken},
       {to_string(UnetClasses::kTime), UnetClasses::kTime}},
      "class_unet: what becomes of the learned vector of a sample's class: token = it is all "
      "that attention to captions reads (latent diffusion), time = it is added to the "
      "embedded time (diffusers' num_class_embeds), and attention to captions reads zeros; "
      "none = by name, or with attends = places nobody tells it one.");
  fields.add("attends", config.attends,
             {{to_string(UnetAttends::kCaptions), UnetAttends::kCaptions},
              {to_string(UnetAttends::kPlaces), UnetAttends::kPlaces}},
             "class_unet: places = places attend to each other alone, once behind a residual block "
             "(latent diffusion's faces and rooms, DDPM; depths are 0 or 1, text_channels 0); "
             "captions = as in Stable Diffusion.");
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
  fields.add("sines_first", config.sines_first,
             "unet: of the time's sinusoids, else cosines (flip_sin_to_cos of diffusers).");
  fields.add("time_shift", config.time_shift,
             "unet: their periods go to 10000 in so many fewer steps (freq_shift of diffusers).",
             between(0, 1));
  fields.add("pads_behind", config.pads_behind,
             "unet: where sizes halve, zeros lie behind the last row and column alone "
             "(downsample_padding 0 of diffusers).");
  fields.add(
      "scales_by_time", config.scales_by_time,
      "unet: with attends = places, residual blocks scale and shift their second norm by the "
      "time (resnet_time_scale_shift: scale_shift of diffusers), else add it before.");
  fields.add("resizes_in_blocks", config.resizes_in_blocks,
             "unet: with attends = places, residual blocks halve and double sizes, by means and by "
             "repeating (downsample_type: resnet of diffusers), else convolutions.");
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
  fields.add("controls", config.controls,
             "unet: ControlNets beside it, each with a picture of its own (data.control).",
             between(0, 16));
  fields.add("control_scales", config.control_scales,
             "unet: what the residuals of each are multiplied by; [] = 1.", between(-100, 100));
  fields.add("control_channels", config.control_channels,
             "unet: widths of the convolutions that read the pictures of ControlNets, each but the "
             "first at half the size.",
             between(1, 65536));
}

}  // namespace kinora::models
