#include "kinora/models/dit_config.h"

#include <array>
#include <string_view>

#include "kinora/core/config.h"
#include "kinora/core/error.h"

namespace kinora::models {
namespace {

struct NamedSize {
  std::string_view name;
  int64_t depth;
  int64_t hidden;
  int64_t heads;
};

// Peebles and Xie 2023, table 1.
constexpr std::array<NamedSize, 4> kSizes = {{
    {"DiT-S", 12, 384, 6},
    {"DiT-B", 12, 768, 12},
    {"DiT-L", 24, 1024, 16},
    {"DiT-XL", 28, 1152, 16},
}};
constexpr std::array<int64_t, 3> kPatches = {2, 4, 8};

std::string full_name(const NamedSize& size, int64_t patch) {
  return std::string(size.name) + "/" + std::to_string(patch);
}

void fill(int64_t& value, int64_t from_name) {
  if (value == 0) {
    value = from_name;
  }
}

void fill_from_name(DiTConfig& config) {
  if (config.name == "custom") {
    return;
  }
  for (const NamedSize& size : kSizes) {
    for (const int64_t patch : kPatches) {
      if (config.name == full_name(size, patch)) {
        fill(config.depth, size.depth);
        fill(config.hidden, size.hidden);
        fill(config.heads, size.heads);
        fill(config.patch, patch);
        return;
      }
    }
  }
  throw_error(ErrorKind::kConfig, "[dit] model.name must be custom or DiT-{S,B,L,XL}/{2,4,8}, got ",
              config.name);
}

}  // namespace

std::vector<std::string> dit_names() {
  std::vector<std::string> names;
  for (const NamedSize& size : kSizes) {
    for (const int64_t patch : kPatches) {
      names.push_back(full_name(size, patch));
    }
  }
  return names;
}

void describe(Fields& fields, DiTConfig& config) {
  const auto scope = fields.scope("model");
  fields.add(
      "name", config.name,
      "DiT-{S,B,L,XL}/{2,4,8} gives depth, hidden, heads and patch where those are 0; custom "
      "gives none.");
  fields.add("depth", config.depth, "Number of transformer blocks; 0 = by name.", at_least(0));
  fields.add("hidden", config.hidden,
             "Width of a token, a multiple of 4 and of heads; 0 = by name.", at_least(0));
  fields.add("heads", config.heads, "Attention heads; 0 = by name.", at_least(0));
  fields.add("patch", config.patch, "Side of a patch in pixels of the input; 0 = by name.",
             at_least(0));
  fields.add("in_channels", config.in_channels, "Channels of the input: 3 pixels, 4 SD latents.",
             between(1, 4096));
  fields.add("height", config.height, "Height of the input, a multiple of patch; 0 = of the data.",
             between(0, 65536));
  fields.add("width", config.width, "Width of the input, likewise.", between(0, 65536));
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
}

DiTConfig resolved(DiTConfig config) {
  fill_from_name(config);
  KINORA_CHECK(config.depth > 0 && config.hidden > 0 && config.heads > 0 && config.patch > 0,
               kConfig, "[dit] model.depth, hidden, heads and patch must be positive, got ",
               config.depth, ", ", config.hidden, ", ", config.heads, ", ", config.patch,
               ". Hint: set them, or a model.name such as DiT-S/2");
  KINORA_CHECK(config.hidden % config.heads == 0 && config.hidden % 4 == 0, kConfig,
               "[dit] model.hidden must be a multiple of 4 and of model.heads = ", config.heads,
               ", got ", config.hidden);
  KINORA_CHECK(config.height > 0 && config.width > 0 && config.height % config.patch == 0 &&
                   config.width % config.patch == 0,
               kConfig, "[dit] model.height and width must be positive multiples of model.patch = ",
               config.patch, ", got ", config.height, " x ", config.width);
  KINORA_CHECK(config.mlp_hidden() > 0, kConfig, "[dit] model.mlp_ratio gives an empty MLP, got ",
               config.mlp_ratio);
  return config;
}

double forward_macs(const DiTConfig& config) {
  const double tokens = static_cast<double>(config.num_tokens());
  const double hidden = static_cast<double>(config.hidden);
  const double mlp = static_cast<double>(config.mlp_hidden());
  const double patch_area = static_cast<double>(config.patch * config.patch);
  const double per_token = 4 * hidden * hidden + 2 * hidden * mlp;  // qkv, proj, fc1, fc2
  const double attention = 2 * tokens * tokens * hidden;            // QK^T and PV
  const double modulation = 6 * hidden * hidden;
  const double blocks =
      static_cast<double>(config.depth) * (tokens * per_token + attention + modulation);
  const double embed = tokens * hidden * patch_area * static_cast<double>(config.in_channels);
  const double final_layer =
      tokens * hidden * patch_area * static_cast<double>(config.out_channels()) +
      2 * hidden * hidden;
  const double timestep = (256 + hidden) * hidden;
  return blocks + embed + final_layer + timestep;
}

}  // namespace kinora::models
