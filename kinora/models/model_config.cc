#include "kinora/models/model_config.h"

#include <array>
#include <span>
#include <string_view>

#include "kinora/core/config.h"
#include "kinora/core/error.h"

namespace kinora::models {
namespace {

struct NamedSize {
  std::string_view name;  // without the patch
  Architecture architecture;
  int64_t depth;
  int64_t hidden;
  int64_t heads;
  int64_t text_channels = 0;
  int64_t text_tokens = 0;
  bool size_conditions = false;
  bool qk_norm = false;
};

constexpr int64_t kT5Width = 4096;
constexpr int64_t kClipWidth = 512;  // of the pooled vector of CLIP ViT-B/32

// DiT: Peebles and Xie 2023, table 1. The others: OpenDiT 1.0, Open-Sora 1.0 to 1.2, PixArt.
constexpr std::array<NamedSize, 14> kSizes = {{
    {"DiT-S", Architecture::kDit, 12, 384, 6},
    {"DiT-B", Architecture::kDit, 12, 768, 12},
    {"DiT-L", Architecture::kDit, 24, 1024, 16},
    {"DiT-XL", Architecture::kDit, 28, 1152, 16},
    {"VDiT-XL", Architecture::kVdit, 28, 1152, 16, kClipWidth, 1},
    {"Latte-XL", Architecture::kLatte, 28, 1152, 16, kClipWidth, 1},
    {"STDiT-XL", Architecture::kStdit, 28, 1152, 16, kT5Width, 120},
    {"STDiT2-XL", Architecture::kStdit2, 28, 1152, 16, kT5Width, 120, false, true},
    {"STDiT3-XL", Architecture::kStdit3, 28, 1152, 16, kT5Width, 300, false, true},
    {"STDiT3-3B", Architecture::kStdit3, 28, 1872, 26, kT5Width, 300, false, true},
    {"PixArt-XL", Architecture::kPixart, 28, 1152, 16, kT5Width, 120},
    {"PixArt-1B", Architecture::kPixart, 28, 1872, 26, kT5Width, 120},
    {"PixArt-MS-XL", Architecture::kPixart, 28, 1152, 16, kT5Width, 120, true},
    {"PixArt-Sigma-XL", Architecture::kPixart, 28, 1152, 16, kT5Width, 300},
}};

struct NamedPatch {
  std::string_view name;
  int64_t frames;
  int64_t side;
};
constexpr std::array<NamedPatch, 3> kImagePatches = {{{"2", 1, 2}, {"4", 1, 4}, {"8", 1, 8}}};
constexpr std::array<NamedPatch, 2> kClipPatches = {{{"1x2x2", 1, 2}, {"2x2x2", 2, 2}}};

/// Those that a size was published with.
std::span<const NamedPatch> patches_of(const NamedSize& size) {
  if (size.architecture == Architecture::kDit) {
    return kImagePatches;
  }
  if (size.architecture == Architecture::kVdit || size.architecture == Architecture::kLatte) {
    return kClipPatches;
  }
  return std::span(kImagePatches).first(1);
}

std::string full_name(const NamedSize& size, const NamedPatch& patch) {
  return std::string(size.name) + "/" + std::string(patch.name);
}

void fill(int64_t& value, int64_t from_name) {
  if (value == 0) {
    value = from_name;
  }
}

void fill_from_name(ModelConfig& config) {
  if (config.name == "custom") {
    return;
  }
  for (const NamedSize& size : kSizes) {
    for (const NamedPatch& patch : patches_of(size)) {
      if (config.name == full_name(size, patch)) {
        KINORA_CHECK(
            config.architecture == Architecture::kAuto || config.architecture == size.architecture,
            kConfig, "[model] model.architecture contradicts model.name ", config.name);
        config.architecture = size.architecture;
        fill(config.depth, size.depth);
        fill(config.hidden, size.hidden);
        fill(config.heads, size.heads);
        fill(config.patch, patch.side);
        fill(config.patch_frames, patch.frames);
        fill(config.text_channels, size.text_channels);
        fill(config.text_tokens, size.text_tokens);
        config.size_conditions |= size.size_conditions;
        if (config.qk_norm == ops::Switch::kAuto) {
          config.qk_norm = size.qk_norm ? ops::Switch::kOn : ops::Switch::kOff;
        }
        return;
      }
    }
  }
  std::string known;
  for (const std::string& name : model_names()) {
    known += ", " + name;
  }
  throw_error(ErrorKind::kConfig, "[model] model.name must be custom", known, "; got ",
              config.name);
}

void fill_defaults(ModelConfig& config) {
  if (config.architecture == Architecture::kAuto) {
    config.architecture = Architecture::kDit;
  }
  if (config.qk_norm == ops::Switch::kAuto) {
    const bool published = config.architecture == Architecture::kStdit2 ||
                           config.architecture == Architecture::kStdit3;
    config.qk_norm = published ? ops::Switch::kOn : ops::Switch::kOff;
  }
  fill(config.patch_frames, 1);
  fill(config.frames, config.is_video() ? 0 : 1);
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const NamedSize& size : kSizes) {
    for (const NamedPatch& patch : patches_of(size)) {
      names.push_back(full_name(size, patch));
    }
  }
  return names;
}

std::vector<int64_t> ModelConfig::sample_shape() const {
  if (is_video()) {
    return {in_channels, frames, height, width};
  }
  return {in_channels, height, width};
}

void describe(Fields& fields, ModelConfig& config) {
  const auto scope = fields.scope("model");
  fields.add("name", config.name,
             "A published size: DiT-{S,B,L,XL}/{2,4,8}, VDiT-XL/{1x2x2,2x2x2}, "
             "Latte-XL/{1x2x2,2x2x2}, STDiT-XL/2, STDiT2-XL/2, STDiT3-{XL,3B}/2, "
             "PixArt-{XL,1B,MS-XL,Sigma-XL}/2. It gives what is 0 or auto below; custom gives "
             "nothing.");
  fields.add("architecture", config.architecture,
             {{"auto", Architecture::kAuto},
              {"dit", Architecture::kDit},
              {"vdit", Architecture::kVdit},
              {"latte", Architecture::kLatte},
              {"stdit", Architecture::kStdit},
              {"stdit2", Architecture::kStdit2},
              {"stdit3", Architecture::kStdit3},
              {"pixart", Architecture::kPixart}},
             "The family of a custom model; auto = by name, of custom dit.");
  fields.add("depth", config.depth,
             "Number of transformer blocks (stdit3: of pairs of them); 0 = by name.", at_least(0));
  fields.add("hidden", config.hidden,
             "Width of a token, a multiple of 4 and of heads; 0 = by name.", at_least(0));
  fields.add("heads", config.heads, "Attention heads; 0 = by name.", at_least(0));
  fields.add("patch", config.patch, "Side of a patch in pixels of the input; 0 = by name.",
             at_least(0));
  fields.add("patch_frames", config.patch_frames, "Frames of a patch; 0 = by name, of custom 1.",
             at_least(0));
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
             at_least(1));
  fields.add("frame_compression", config.frame_compression,
             "Frames of the clip to one of the input, likewise.", at_least(1));
  fields.add("num_classes", config.num_classes,
             "Number of classes, to which the null class is added; 0 = as many as the data has.",
             between(0, 1e7));
  fields.add("mlp_ratio", config.mlp_ratio, "Hidden width of the MLP over hidden.", above(0));
  fields.add("learn_sigma", config.learn_sigma,
             "Predict the variance too, in as many more output channels (iddpm).");
  fields.add(
      "time_scale", config.time_scale,
      "Factor on t before its embedding: 1 for t in 0..999, 1000 for flows; 0 = by objective.",
      at_least(0));
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
             at_least(1));
  fields.add("position_scale", config.position_scale,
             "stdit, pixart: positions in space are divided by it.", above(0));
  fields.add("time_position_scale", config.time_position_scale,
             "stdit: positions in time are divided by it.", above(0));
  fields.add("rotary_3d", config.rotary_3d,
             "stdit3: rotary positions over time, rows and columns in both attentions (1.3).");
  fields.add("window", config.window,
             "stdit3: frames, rows and columns of windows of attention (1.3); [] = all.",
             at_least(1));
}

ModelConfig resolved(ModelConfig config) {
  fill_from_name(config);
  fill_defaults(config);
  KINORA_CHECK(config.depth > 0 && config.hidden > 0 && config.heads > 0 && config.patch > 0,
               kConfig, "[model] model.depth, hidden, heads and patch must be positive, got ",
               config.depth, ", ", config.hidden, ", ", config.heads, ", ", config.patch,
               ". Hint: set them, or a model.name such as DiT-S/2");
  KINORA_CHECK(config.hidden % config.heads == 0 && config.hidden % 4 == 0, kConfig,
               "[model] model.hidden must be a multiple of 4 and of model.heads = ", config.heads,
               ", got ", config.hidden);
  KINORA_CHECK(config.height > 0 && config.width > 0 && config.height % config.patch == 0 &&
                   config.width % config.patch == 0,
               kConfig,
               "[model] model.height and width must be positive multiples of model.patch = ",
               config.patch, ", got ", config.height, " x ", config.width);
  KINORA_CHECK(config.frames > 0 && config.frames % config.patch_frames == 0, kConfig,
               "[model] model.frames must be a positive multiple of model.patch_frames = ",
               config.patch_frames, ", got ", config.frames);
  KINORA_CHECK(config.is_video() || config.frames == 1, kConfig, "[model] ", config.name,
               " is a model of images, but model.frames is ", config.frames);
  KINORA_CHECK(!config.takes_text() || (config.text_channels > 0 && config.text_tokens > 0),
               kConfig, "[model] model.text_channels and text_tokens must be positive, got ",
               config.text_channels, ", ", config.text_tokens);
  KINORA_CHECK(config.window.empty() || config.window.size() == 3, kConfig,
               "[model] model.window must be [] or frames, rows and columns, got ",
               config.window.size(), " numbers");
  KINORA_CHECK(config.mlp_hidden() > 0, kConfig, "[model] model.mlp_ratio gives an empty MLP, got ",
               config.mlp_ratio);
  return config;
}

double forward_macs(const ModelConfig& config) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double frames = number(config.num_frames());
  const double places = number(config.tokens_a_frame());
  const double tokens = frames * places;
  const double hidden = number(config.hidden);
  const double mlp = number(config.mlp_hidden());
  const double patch_area = number(config.patch * config.patch * config.patch_frames);
  const double text = number(config.text_tokens);

  // Tokens that a query meets in the attention of a frame, of a place, of the whole clip.
  const double projections = 4 * hidden * hidden;  // qkv, proj
  const auto attention = [&](double keys) { return tokens * (projections + 2 * keys * hidden); };
  const double cross =
      tokens * (2 * hidden * hidden + 2 * text * hidden) + text * 2 * hidden * hidden;
  const double both = 2 * tokens * hidden * mlp;  // fc1, fc2
  const double captions =
      text * (number(config.text_channels) * hidden + hidden * hidden);  // y_proj
  double block = both;
  double modulation = 6 * hidden * hidden;  // of every block
  double once = 0.0;
  switch (config.architecture) {
    case Architecture::kAuto:
    case Architecture::kDit:
    case Architecture::kVdit:
      block += attention(tokens);
      break;
    case Architecture::kLatte:
      block += (attention(places) + attention(frames)) / 2;
      break;
    case Architecture::kPixart:
      block += attention(tokens) + cross;
      break;
    case Architecture::kStdit:
      block += attention(places) + attention(frames) + cross;
      break;
    case Architecture::kStdit2:
      block += attention(places) + attention(frames) + cross;
      once += 3 * hidden * hidden;
      break;
    case Architecture::kStdit3:
      block = 2 * (both + cross) + attention(places) + attention(frames);
      break;
  }
  const bool single = config.takes_text() && config.architecture != Architecture::kVdit &&
                      config.architecture != Architecture::kLatte;  // adaLN-single
  if (single) {
    once += modulation + captions;
    modulation = 0.0;
  }
  const double embed = tokens * hidden * patch_area * number(config.in_channels);
  const double final_layer =
      tokens * hidden * patch_area * number(config.out_channels()) + 2 * hidden * hidden;
  const double timestep = (256 + hidden) * hidden;
  return number(config.depth) * (block + modulation) + once + embed + final_layer + timestep;
}

}  // namespace kinora::models
