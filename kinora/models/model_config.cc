#include "kinora/models/model_config.h"

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/models/families.h"

namespace kinora::models {
bool ModelConfig::is_video() const {
  return family_of(*this).is_video;
}

bool ModelConfig::takes_text() const {
  return !family_of(*this).conditions.labels;
}

std::vector<int64_t> ModelConfig::sample_shape() const {
  if (is_video()) {
    return {in_channels, frames, height, width};
  }
  return {in_channels, height, width};
}

void describe(Fields& fields, ModelConfig& config) {
  const auto scope = fields.scope("model");
  std::string published;
  std::vector<std::string> architectures = {kAutoArchitecture};
  for (const Family& family : families()) {
    if (!family.sizes.empty()) {
      published += (published.empty() ? "" : ", ") + family.published_in_short();
    }
    architectures.push_back(family.key);
  }
  fields.add("name", config.name,
             "A published size: " + published +
                 ". It gives what is 0 or auto below; custom gives nothing.");
  fields.add(
      "architecture", config.architecture, std::move(architectures),
      "The family of a custom model; auto = by name, of custom " + families().front().key + ".");
  fields.add("depth", config.depth,
             "Number of transformer blocks (stdit3: of pairs of them); 0 = by name.",
             between(0, 4096));
  fields.add("hidden", config.hidden,
             "Width of a token, a multiple of 4 and of heads; 0 = by name.", between(0, 1048576));
  fields.add("heads", config.heads, "Attention heads; 0 = by name.", between(0, 65536));
  fields.add("patch", config.patch, "Side of a patch in pixels of the input; 0 = by name.",
             between(0, 1024));
  fields.add("patch_frames", config.patch_frames, "Frames of a patch; 0 = by name, of custom 1.",
             between(0, 1024));
  fields.add("in_channels", config.in_channels, "Channels of the input: 3 pixels, 4 SD latents.",
             between(1, 4096));
  fields.add("frames", config.frames,
             "Frames of the input, a multiple of patch_frames; 0 = of the data.",
             between(0, 65536));
  fields.add("height", config.height, "Height of the input, a multiple of patch; 0 = of the data.",
             between(0, 65536));
  fields.add("width", config.width, "Width of the input, likewise.", between(0, 65536));
  fields.add("compression", config.compression,
             "Pixels along a side of one value of the input: 1 for pixels, 8 for SD latents. Of "
             "models that are told the size.",
             between(1, 1024));
  fields.add("frame_compression", config.frame_compression,
             "Frames of the clip to one of the input, likewise.", between(1, 1024));
  fields.add("num_classes", config.num_classes,
             "Number of classes, to which the null class is added; 0 = as many as the data has.",
             between(0, 1e7));
  fields.add("class_names", config.class_names,
             "Names of the classes by number, for kinora sample --classes; [] = the data's.");
  fields.add("mlp_ratio", config.mlp_ratio, "Hidden width of the MLP over hidden.", above(0, 1024));
  fields.add("learn_sigma", config.learn_sigma,
             "Predict the variance too, in as many more output channels (iddpm).");
  fields.add(
      "time_scale", config.time_scale,
      "Factor on t before its embedding: 1 for t in 0..999, 1000 for flows; 0 = by objective.",
      between(0, 1e6));
  fields.add("text_channels", config.text_channels,
             "Width of embedded text tokens (vdit, latte: of the pooled vector); 0 = by name.",
             between(0, 65536));
  fields.add("text_tokens", config.text_tokens, "Tokens of the longest caption; 0 = by name.",
             between(0, 65536));
  fields.add("qk_norm", config.qk_norm,
             {{"auto", ops::Switch::kAuto}, {"on", ops::Switch::kOn}, {"off", ops::Switch::kOff}},
             "RMSNorm of each head's queries and keys; auto = as published.");
  fields.add("size_conditions", config.size_conditions,
             "pixart: condition on height, width and aspect ratio.");
  fields.add("base_pixels", config.base_pixels,
             "stdit2, stdit3: side in pixels of the clip at which positions are unscaled.",
             between(1, 65536));
  fields.add("position_scale", config.position_scale,
             "stdit, pixart: positions in space are divided by it.", above(0, 1e6));
  fields.add("time_position_scale", config.time_position_scale,
             "stdit: positions in time are divided by it.", above(0, 1e6));
  fields.add("rotary_3d", config.rotary_3d,
             "stdit3: rotary positions over time, rows and columns in both attentions (1.3).");
  fields.add("window", config.window,
             "stdit3: frames, rows and columns of windows of attention (1.3); [] = all.",
             between(1, 65536));
}

ModelConfig resolved(ModelConfig config) {
  const ModelConfig published = published_values(config);
  const Family& family = family_of(config);
  config.architecture = family.key;
  if (config.qk_norm == ops::Switch::kAuto) {
    config.qk_norm = family.qk_norm ? ops::Switch::kOn : ops::Switch::kOff;
  }
  if (config.frames == 0 && !family.is_video) {
    config.frames = 1;
  }
  family.resolve(config, published);
  KINORA_CHECK(family.is_video || config.frames == 1, kConfig, "[model] ", config.name,
               " is a model of images, but model.frames is ", config.frames);
  KINORA_CHECK(!config.takes_text() || (config.text_channels > 0 && config.text_tokens > 0),
               kConfig, "[model] model.text_channels and text_tokens must be positive, got ",
               config.text_channels, ", ", config.text_tokens);
  return config;
}

double forward_macs(const ModelConfig& config) {
  return family_of(config).macs(config);
}

}  // namespace kinora::models
