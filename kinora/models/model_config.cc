#include "kinora/models/model_config.h"

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/caption_encoder.h"

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

namespace {

void describe_text_encoder(Fields& fields, TextEncoderSize& encoder) {
  const auto scope = fields.scope("text_encoder");
  fields.add(
      "layers", encoder.layers,
      "Layers of a text encoder that is trained with the model, which takes data.text tokens "
      "(every architecture of captions); 0 = none.",
      between(0, 256));
  fields.add("kind", encoder.kind,
             {{"t5", TextEncoderSize::Kind::kT5}, {"clip", TextEncoderSize::Kind::kClip}},
             "Its architecture: T5's, or of U-Nets CLIP's. text.train sets it and what is below.");
  fields.add("width", encoder.width, "Width of its tokens.", between(1, 65536));
  fields.add("heads", encoder.heads, "Its attention heads.", between(1, 4096));
  fields.add("mlp", encoder.mlp, "Hidden width of its MLPs.", between(1, 1048576));
  fields.add("vocab", encoder.vocab, "Tokens of its vocabulary, at least the tokenizer's.",
             between(1, 1048576));
  fields.add("positions", encoder.positions, "clip: tokens of the longest caption.",
             between(1, 4096));
  fields.add("activation", encoder.activation,
             {{"quick_gelu", Activation::kQuickGelu}, {"gelu", Activation::kGelu}},
             "clip: of its MLPs.");
  fields.add(
      "new_tokens", encoder.new_tokens,
      "clip: tokens behind the vocabulary, which text.new_tokens names; their embeddings are "
      "the parameter text_encoder.new_tokens.",
      between(0, 65536));
}

/// What the model's own text encoder gives is what its captions are projected from.
void resolve_text_encoder(ModelConfig& config) {
  const TextEncoderSize& encoder = config.text_encoder;
  if (!encoder.any()) {
    return;
  }
  KINORA_CHECK(
      family_of(config).conditions.tokens, kConfig, "[model] ", config.name,
      " has no text encoder of its own, but model.text_encoder.layers is ", encoder.layers,
      ". Hint: ", families_that([](const Family& family) { return family.conditions.tokens; }),
      " can have one");
  const bool is_clip = encoder.kind == TextEncoderSize::Kind::kClip;
  KINORA_CHECK(!is_clip || (family_of(config).pads_captions && config.pooled_channels == 0 &&
                            config.text_tokens <= encoder.positions),
               kConfig, "[model] model.text_encoder.kind clip is of ",
               families_that(&Family::pads_captions),
               " without pooled vectors, with model.text_tokens of at most its positions = ",
               encoder.positions, ", got ", config.name, " with ", config.text_tokens);
  KINORA_CHECK(encoder.width % encoder.heads == 0, kConfig,
               "[model] model.text_encoder.width must be a multiple of its heads = ", encoder.heads,
               ", got ", encoder.width);
  KINORA_CHECK(config.text_channels == 0 || config.text_channels == encoder.width, kConfig,
               "[model] model.text_channels must be model.text_encoder.width = ", encoder.width,
               " or 0, got ", config.text_channels);
  config.text_channels = encoder.width;
}

}  // namespace

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
  fields.add("pooled_channels", config.pooled_channels,
             "unet, sd3, flux, open_sora2, hunyuan_video: width of the captions' pooled vector, "
             "which is read beside "
             "their tokens, of U-Nets with the sizes of pictures (SDXL); 0 = by name, or none.",
             between(0, 65536));
  describe_text_encoder(fields, config.text_encoder);
  describe(fields, config.transformer);
  describe(fields, config.unet);
}

ModelConfig resolved(ModelConfig config) {
  const ModelConfig published = published_values(config);
  const Family& family = family_of(config);
  config.architecture = family.key;
  if (config.text_channels == 0) {
    config.text_channels = published.text_channels;
  }
  if (config.text_tokens == 0) {
    config.text_tokens = published.text_tokens;
  }
  if (config.pooled_channels == 0) {
    config.pooled_channels = published.pooled_channels;
  }
  if (config.frames == 0 && !family.is_video) {
    config.frames = 1;
  }
  family.resolve(config, published);
  resolve_text_encoder(config);
  KINORA_CHECK(config.pooled_channels == 0 ||
                   (family.conditions.pooled_beside && !config.text_encoder.any()),
               kConfig, "[model] model.pooled_channels must be 0 for ", config.name,
               config.text_encoder.any() ? ", whose own text encoder makes no such vector" : "",
               ", got ", config.pooled_channels);
  KINORA_CHECK(family.is_video || config.frames == 1, kConfig, "[model] ", config.name,
               " is a model of images, but model.frames is ", config.frames);
  KINORA_CHECK(!config.takes_text() || (config.text_channels > 0 && config.text_tokens > 0),
               kConfig, "[model] model.text_channels and text_tokens must be positive, got ",
               config.text_channels, ", ", config.text_tokens);
  return config;
}

double forward_macs(const ModelConfig& config) {
  return family_of(config).macs(config) +
         (config.text_encoder.any() ? CaptionEncoder::macs(config) : 0.0);
}

double fp8_share(const ModelConfig& config) {
  const auto fp8_macs = family_of(config).fp8_macs;
  return fp8_macs == nullptr ? 1.0 : fp8_macs(config) / forward_macs(config);
}

}  // namespace kinora::models
