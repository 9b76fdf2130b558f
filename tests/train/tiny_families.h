#pragma once

#include <string>

#include "tests/train/tiny_run.h"

/// Small recipes of every family that ranks can divide.
namespace kinora::train {

/// Of images and captions.
inline RunConfig tiny_captions(const std::string& architecture) {
  const bool is_joint = architecture != "pixart";
  RunConfig config = tiny();
  config.model = {.architecture = architecture,
                  .in_channels = 4,
                  .height = 8,
                  .width = 8,
                  .learn_sigma = !is_joint,
                  .time_scale = 1.0,
                  .text_channels = 8,
                  .text_tokens = 5,
                  .pooled_channels = is_joint ? 6 : 0,
                  .transformer = {.depth = 2, .hidden = 48, .heads = 4, .patch = 2}};
  config.model.transformer.qk_norm = is_joint ? ops::Switch::kOn : ops::Switch::kOff;
  config.model.transformer.parallel_depth = architecture == "flux" ? 2 : 0;
  config.model = models::resolved(config.model);
  config.model.num_classes = 1;
  return config;
}

/// With 4 heads.
inline RunConfig tiny_of(const std::string& architecture) {
  if (architecture == "dit") {
    RunConfig config = tiny();
    config.model.transformer.hidden = 48;
    config.model.transformer.heads = 4;
    config.model = models::resolved(config.model);
    return config;
  }
  if (architecture == "pixart" || architecture == "sd3" || architecture == "flux") {
    return tiny_captions(architecture);
  }
  const bool is_clean = architecture == "hunyuan_video_first_frame";
  RunConfig config = tiny_video(is_clean ? "hunyuan_video" : architecture);
  if (architecture == "wan") {
    config.frame_masks = {};
  }
  if (architecture == "hunyuan_video" || is_clean) {
    config.frame_masks = {.image_head = is_clean ? 0.5 : 0.0};
    config.model.transformer.clean_first_frame = is_clean;
    config.model.learn_sigma = false;
    config.model.pooled_channels = 6;
    config.model.transformer.parallel_depth = 2;
  }
  if (architecture == "cogvideox") {
    config.frame_masks = {};
    config.model.learn_sigma = false;
    config.model.transformer.time_channels = 12;
  }
  if (architecture == "stdit3") {
    config.model.transformer.qk_norm = ops::Switch::kOn;
  }
  return config;
}

}  // namespace kinora::train
