#include "kinora/models/unets/unet_names.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/model.h"
#include "kinora/models/unets/ip_adapter.h"

namespace kinora::models {
namespace {

constexpr const char* kCompvisAverage = "model_ema.";
constexpr const char* kCompvisClassToken = "cond_stage_model.embedding.weight";

/// A projection around attention, which is a convolution of one place in some files.
bool is_projection(std::string_view path) {
  return path.ends_with(".proj_in.weight") || path.ends_with(".proj_out.weight");
}

/// Of queries, keys and values of places, which are three linears in diffusers' files.
bool is_packed(std::string_view path) {
  return path.find(".qkv.") != std::string_view::npos;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

/// What a parameter belongs to: "" of the U-Net itself, else what its path begins with.
std::string_view owner_of(std::string_view path) {
  constexpr std::string_view kControls = "controlnets.";
  if (path.starts_with(kControls)) {
    return path.substr(0, path.find('.', kControls.size()) + 1);
  }
  for (const std::string_view owner : {"text_encoder.", kIpAdapterPrefix}) {
    if (path.starts_with(owner)) {
      return owner;
    }
  }
  return {};
}

/// The tensors of `owner` by what `key_of` calls them, with the dims that files have.
nn::Naming naming_of(const ModelConfig& config, std::string_view owner,
                     const std::function<std::string(const std::string& path)>& key_of) {
  nn::Naming naming;
  const std::unique_ptr<Model> model = make_model(config);  // without values
  for (const auto& [path, parameter] : model->named_parameters()) {
    if (owner_of(path) != owner) {
      continue;
    }
    nn::OtherName name{.path = path, .keys = {key_of(path)}};
    if (is_projection(path) && !config.unet.linear_projection) {
      name.shape = parameter->shape;
      name.shape.insert(name.shape.end(), {1, 1});
    }
    naming.push_back(std::move(name));
  }
  return naming;
}

/// The layers of attention to places: ours, and CompVis'.
constexpr std::pair<std::string_view, std::string_view> kPlaceLayers[] = {
    {"group_norm.", "norm."}, {"qkv.", "qkv."}, {"to_out.0.", "proj_out."}};

/// CompVis' heads of places have as many channels, which no file says.
constexpr int64_t kPlaceHead = 32;
/// And those that read its own encoder of words or layouts, but for text2img-large, and the first
/// cin256's.
constexpr int64_t kWordsHead = 32;
constexpr int64_t kLargeChannels = 4;

/// Heads of lsun_churches256, whose residual blocks change sizes.
constexpr int64_t kResizedHeads = 8;

/// Which modules a U-Net has, as far as names of CompVis depend on it.
struct Modules {
  int64_t resnets = 0;
  bool resizes_in_blocks = false;
  std::vector<bool> attends = {};  ///< of each level
};

/// What our paths begin with, and what CompVis' keys have there.
using Prefixes = std::vector<std::pair<std::string, std::string>>;

/// Channels of a head of queries, keys and values in one tensor.
int64_t head_of(const std::vector<int64_t>& packed, const Modules& modules) {
  const int64_t channels = packed.empty() ? 0 : packed.front() / 3;
  return modules.resizes_in_blocks ? channels / kResizedHeads : kPlaceHead;
}

void add_resnet(Prefixes& prefixes, const std::string& path, const std::string& key) {
  for (const auto& [ours, theirs] : {std::pair{"norm1.", "in_layers.0."},
                                     {"conv1.", "in_layers.2."},
                                     {"time_emb_proj.", "emb_layers.1."},
                                     {"norm2.", "out_layers.0."},
                                     {"conv2.", "out_layers.3."},
                                     {"conv_shortcut.", "skip_connection."}}) {
    prefixes.emplace_back(path + ours, key + theirs);
  }
}

/// CompVis numbers the units of a way one after the other, each with what changes the size apart.
Prefixes compvis_prefixes(const Modules& modules) {
  const auto levels = std::ssize(modules.attends);
  Prefixes prefixes = {{"conv_in.", "input_blocks.0.0."},
                       {"time_embedding.linear_1.", "time_embed.0."},
                       {"time_embedding.linear_2.", "time_embed.2."},
                       {"add_embedding.linear_1.", "label_emb.0.0."},
                       {"add_embedding.linear_2.", "label_emb.0.2."},
                       {"class_embedding.", "label_emb."},
                       {"mid_block.attentions.0.", "middle_block.1."},
                       {"conv_norm_out.", "out.0."},
                       {"conv_out.", "out.2."}};
  add_resnet(prefixes, "mid_block.resnets.0.", "middle_block.0.");
  add_resnet(prefixes, "mid_block.resnets.1.", "middle_block.2.");
  const auto add_unit = [&](const std::string& level, int64_t unit, const std::string& key) {
    const std::string number = std::to_string(unit) + ".";
    add_resnet(prefixes, level + "resnets." + number, key + "0.");
    prefixes.emplace_back(level + "attentions." + number, key + "1.");
  };
  int64_t input = 1;
  for (int64_t level = 0; level < levels; ++level) {
    const std::string path = "down_blocks." + std::to_string(level) + ".";
    for (int64_t unit = 0; unit < modules.resnets; ++unit, ++input) {
      add_unit(path, unit, "input_blocks." + std::to_string(input) + ".");
    }
    const std::string half = "input_blocks." + std::to_string(input++) + ".0.";
    if (modules.resizes_in_blocks) {
      add_resnet(prefixes, path + "downsamplers.0.", half);
    } else {
      prefixes.emplace_back(path + "downsamplers.0.conv.", half + "op.");
    }
  }
  int64_t output = 0;
  for (int64_t level = 0; level < levels; ++level) {
    const std::string path = "up_blocks." + std::to_string(level) + ".";
    for (int64_t unit = 0; unit <= modules.resnets; ++unit, ++output) {
      const std::string key = "output_blocks." + std::to_string(output) + ".";
      if (unit == modules.resnets) {  // before attention, which begins alike
        const bool attends = modules.attends[static_cast<size_t>(levels - 1 - level)];
        const std::string doubled = key + (attends ? "2." : "1.");
        if (modules.resizes_in_blocks) {
          add_resnet(prefixes, path + "upsamplers.0.", doubled);
        } else {
          prefixes.emplace_back(path + "upsamplers.0.conv.", doubled + "conv.");
        }
      }
      add_unit(path, unit, key);
    }
  }
  return prefixes;
}

/// Where residual blocks double sizes: those of a level on the way down. Else nothing.
std::optional<int64_t> resnets_before_doubling(const std::set<std::string>& names) {
  const auto has = [&names](int64_t block, const char* end) {
    return names.contains(kCompvisUnet + ("output_blocks." + std::to_string(block)) + end);
  };
  for (int64_t block = 0; has(block, ".0.in_layers.0.weight"); ++block) {
    if (has(block, ".1.in_layers.0.weight") || has(block, ".2.in_layers.0.weight")) {
      return block;
    }
  }
  return std::nullopt;
}

/// Those of a file, told by its names.
Modules modules_in(const std::set<std::string>& names) {
  const auto has = [&names](int64_t block, const char* end) {
    return names.contains(kCompvisUnet + ("input_blocks." + std::to_string(block)) + end);
  };
  Modules modules;
  if (const std::optional<int64_t> resnets = resnets_before_doubling(names)) {
    modules = {.resnets = *resnets, .resizes_in_blocks = true};
    // Each level but the last one ends with a block that halves.
    for (int64_t block = 1; has(block, ".0.in_layers.0.weight"); block += *resnets + 1) {
      modules.attends.push_back(has(block, ".1.norm.weight"));
    }
    return modules;
  }
  int64_t units = 0;  // of the level
  bool attends = false;
  const auto end_level = [&] {
    modules.attends.push_back(attends);
    modules.resnets = std::max(modules.resnets, units);
    units = 0;
    attends = false;
  };
  for (int64_t block = 1;; ++block) {
    if (has(block, ".0.op.weight")) {
      end_level();
    } else if (has(block, ".0.in_layers.0.weight")) {
      ++units;
      attends |= has(block, ".1.norm.weight");
    } else {
      break;
    }
  }
  end_level();
  return modules;
}

/// `rest`, behind the module's prefix, as CompVis has it. Only attention to places has other layers
/// there.
std::string compvis_layer(std::string_view path, const std::string& rest) {
  if (path.find(".attentions.") != std::string_view::npos) {
    for (const auto& [ours, theirs] : kPlaceLayers) {
      if (rest.starts_with(ours)) {
        return std::string(theirs) + rest.substr(ours.size());
      }
    }
  }
  return rest;
}

/// The way back, of a module that attends to places.
std::string own_place_layer(const std::string& rest) {
  for (const auto& [ours, theirs] : kPlaceLayers) {
    if (rest.starts_with(theirs)) {
      return std::string(ours) + rest.substr(theirs.size());
    }
  }
  return rest;
}

bool is_compvis_unet(const std::set<std::string>& names) {
  return names.contains(std::string(kCompvisUnet) + "input_blocks.0.0.weight");
}

/// A key among the averages, whose names have no dots.
std::string averaged_key(const std::string& key) {
  std::string name = key.substr(std::string_view("model.").size());
  std::erase(name, '.');
  return kCompvisAverage + name;
}

/// Shapes by key, below model.diffusion_model.
class CompvisShapes {
 public:
  CompvisShapes(const std::map<std::string, std::vector<int64_t>>& shapes, const std::string& where)
      : shapes_(shapes), where_(where) {}

  [[nodiscard]] bool has(const std::string& key) const {
    return shapes_.contains(kCompvisUnet + key);
  }
  /// Of a weight, which has at least two dims.
  [[nodiscard]] const std::vector<int64_t>& at(const std::string& key) const {
    const auto found = shapes_.find(kCompvisUnet + key);
    KINORA_CHECK(found != shapes_.end(), kIo, "[unet] ", where_, " has no ", kCompvisUnet, key);
    KINORA_CHECK(found->second.size() >= 2, kIo, "[unet] ", where_, ": ", kCompvisUnet, key,
                 " must have two dims or four, got ", found->second.size());
    return found->second;
  }
  /// Transformer blocks below `key`, or one attention to places.
  [[nodiscard]] int64_t depth(const std::string& key) const {
    int64_t depth = has(key + "qkv.weight") ? 1 : 0;
    while (has(key + "transformer_blocks." + std::to_string(depth) + ".attn2.to_k.weight")) {
      ++depth;
    }
    return depth;
  }

 private:
  const std::map<std::string, std::vector<int64_t>>& shapes_;
  const std::string& where_;
};

/// What is read beside time and text, which must be as SDXL's base or refiner has it: vectors of
/// CLIP ViT-bigG, and six numbers or, where that is the only encoder, five.
void take_sizes(const CompvisShapes& its, const std::string& where, ModelConfig& config) {
  constexpr int64_t kPooledChannels = 1280;
  constexpr int64_t kSizeChannels = 256;
  const bool has_sizes = its.has("label_emb.0.0.weight");
  const int64_t sum = has_sizes ? its.at("label_emb.0.0.weight")[1] : 0;
  UnetConfig& own = config.unet;
  own.size_channels = has_sizes ? kSizeChannels : 0;
  own.reads_score = has_sizes && sum == kPooledChannels + 5 * kSizeChannels;
  config.pooled_channels = has_sizes ? kPooledChannels : 0;
  KINORA_CHECK(!has_sizes || sum == kPooledChannels + own.size_numbers() * kSizeChannels, kConfig,
               "[unet] ", where, " has ", kCompvisUnet,
               "label_emb, of a U-Net that reads other than SDXL's sizes (upscalers, unCLIP), "
               "which Kinora lacks");
}

/// Returns whether the U-Net is told classes, of which the last is the null class.
bool take_classes(const std::map<std::string, std::vector<int64_t>>& shapes,
                  const CompvisShapes& its, const std::string& where, ModelConfig& config) {
  const auto token = shapes.find(kCompvisClassToken);
  const bool in_time = its.has("label_emb.weight");
  if (token == shapes.end() && !in_time) {
    return false;
  }
  KINORA_CHECK(token == shapes.end() || !in_time, kConfig, "[unet] ", where, " has both ",
               kCompvisClassToken, " and ", kCompvisUnet,
               "label_emb.weight, and Kinora's U-Nets are told a class in one way");
  const std::vector<int64_t>& table = in_time ? its.at("label_emb.weight") : token->second;
  const int64_t width = in_time ? its.at("time_embed.2.weight")[0] : config.text_channels;
  KINORA_CHECK(table.size() == 2 && table[0] > 1 && table[1] == width, kIo, "[unet] ", where, ": ",
               in_time ? kCompvisUnet : "", in_time ? "label_emb.weight" : kCompvisClassToken,
               " must have a vector of ", width, " numbers for two classes or more, got ",
               table.size() == 2 ? std::to_string(table[0]) + " of " + std::to_string(table[1])
                                 : std::to_string(table.size()) + " dims");
  config.num_classes = table[0] - 1;
  config.unet.classes = in_time ? UnetClasses::kTime : UnetClasses::kToken;
  return true;
}

}  // namespace

nn::Naming unet_naming(const ModelConfig& config) {
  nn::Naming naming = naming_of(config, "", [](const std::string& path) { return path; });
  std::erase_if(naming, [](const nn::OtherName& name) { return name.path == kClassToken; });
  for (nn::OtherName& name : naming) {
    if (is_packed(name.path)) {
      name.keys.clear();
      for (const char* layer : {".to_q.", ".to_k.", ".to_v."}) {
        name.keys.push_back(replaced(name.path, ".qkv.", layer));
      }
    }
  }
  return naming;
}

nn::Naming control_naming(const ModelConfig& config, int64_t control) {
  const std::string prefix = control_prefix(control);
  return naming_of(config, prefix,
                   [&prefix](const std::string& path) { return path.substr(prefix.size()); });
}

std::string control_prefix(int64_t control) {
  return "controlnets." + std::to_string(control) + ".";
}

std::optional<nn::Naming> find_unet_naming(const std::vector<std::string>& names) {
  if (!std::ranges::count(names, "down_blocks.0.resnets.0.time_emb_proj.weight")) {
    return std::nullopt;
  }
  // Of attention to places, now and as diffusers called it before.
  constexpr const char* kParts[][3] = {{".to_q.", ".to_k.", ".to_v."},
                                       {".query.", ".key.", ".value."}};
  constexpr std::string_view kOldOut = ".proj_attn.";
  nn::Naming naming;
  for (const std::string& name : names) {
    nn::OtherName row{.path = name, .keys = {name}};
    const auto has = [&name](std::string_view layer) {
      return name.find(layer) != std::string::npos;
    };
    bool is_new = true;  // not one with another name
    if (!has(".transformer_blocks.")) {
      for (const auto& [query, key, value] : kParts) {
        is_new = is_new && !has(key) && !has(value);
        if (has(query)) {
          row = {.path = replaced(name, query, ".qkv."),
                 .keys = {name, replaced(name, query, key), replaced(name, query, value)}};
        }
      }
      if (has(kOldOut)) {
        row.path = replaced(name, kOldOut, ".to_out.0.");
      }
    }
    if (is_new) {
      naming.push_back(std::move(row));
    }
  }
  return naming;
}

nn::Naming compvis_unet_naming(const ModelConfig& config) {
  KINORA_CHECK(config.unet.middle_depth > 0, kConfig,
               "[unet] model.unet.middle_depth must be above 0 for CompVis, whose U-Nets attend in "
               "the middle, got 0");
  Modules modules{.resnets = config.unet.resnets,
                  .resizes_in_blocks = config.unet.resizes_in_blocks};
  for (const int64_t depth : config.unet.depths) {
    modules.attends.push_back(depth > 0);
  }
  const bool is_of_places = config.unet.attends == UnetAttends::kPlaces;
  for (size_t level = 0; is_of_places && level < modules.attends.size(); ++level) {
    const UnetConfig& own = config.unet;
    const bool attends = modules.attends[level] || level + 1 == modules.attends.size();
    const int64_t heads = own.resizes_in_blocks ? kResizedHeads : own.channels[level] / kPlaceHead;
    KINORA_CHECK(!attends || own.heads[level] == heads, kConfig, "[unet] model.unet.heads must be ",
                 heads, " for CompVis where ", own.channels[level], " channels attend, got ",
                 own.heads[level], ". Hint: write a folder, or a file with our names");
  }
  const Prefixes prefixes = compvis_prefixes(modules);
  nn::Naming naming = naming_of(config, "", [&prefixes](const std::string& path) -> std::string {
    if (path == kClassToken) {
      return kCompvisClassToken;
    }
    const auto found = std::ranges::find_if(
        prefixes, [&path](const auto& prefix) { return path.starts_with(prefix.first); });
    KINORA_CHECK(found != prefixes.end(), kInternal, "[unet] ", path, " has no name of CompVis");
    return kCompvisUnet + found->second + compvis_layer(path, path.substr(found->first.size()));
  });
  const std::unique_ptr<Model> model = make_model(config);
  for (const auto& [path, parameter] : model->named_parameters()) {
    const bool is_weight = path.ends_with(".weight") && path.find(".attentions.") != path.npos;
    const auto name = std::ranges::find(naming, path, &nn::OtherName::path);
    if (!is_of_places || name == naming.end()) {
      continue;
    }
    name->packed_head = is_packed(path) ? head_of(parameter->shape, modules) : 0;
    if (is_weight && parameter->shape.size() == 2) {  // convolutions over one row of places
      name->shape = parameter->shape;
      name->shape.push_back(1);
    }
  }
  return naming;
}

std::optional<nn::Naming> find_compvis_unet_naming(
    const std::vector<std::string>& names,
    const std::function<std::vector<int64_t>(const std::string& name)>& shape_of, bool averaged) {
  const std::set<std::string> known(names.begin(), names.end());
  if (!is_compvis_unet(known)) {
    return std::nullopt;
  }
  const bool takes_averages =
      averaged &&
      known.contains(averaged_key(std::string(kCompvisUnet) + "input_blocks.0.0.weight"));
  nn::Naming naming;
  const Modules modules = modules_in(known);
  const Prefixes prefixes = compvis_prefixes(modules);
  for (const std::string& name : names) {
    if (name == "null_text") {  // a buffer, which CompVis has no name for
      naming.push_back({.path = name, .keys = {name}});
    }
    if (name == kCompvisClassToken) {  // of which no average is kept
      naming.push_back({.path = kClassToken, .keys = {name}});
    }
    if (!name.starts_with(kCompvisUnet)) {
      continue;
    }
    const std::string key = name.substr(std::string_view(kCompvisUnet).size());
    const auto found = std::ranges::find_if(
        prefixes, [&key](const auto& prefix) { return key.starts_with(prefix.second); });
    // What is not known stays, so that whoever loads it hears of it.
    nn::OtherName row{.path = name, .keys = {takes_averages ? averaged_key(name) : name}};
    if (found != prefixes.end()) {
      const std::string rest = key.substr(found->second.size());
      const bool is_of_places = known.contains(kCompvisUnet + found->second + "qkv.weight");
      row.path = found->first + (is_of_places ? own_place_layer(rest) : rest);
      row.packed_head = is_packed(row.path) ? head_of(shape_of(name), modules) : 0;
    }
    naming.push_back(std::move(row));
  }
  return naming;
}

bool is_without_null_class(const ModelConfig& config) {
  constexpr int64_t kClasses = 1000;  // ImageNet's
  return config.unet.classes == UnetClasses::kToken && config.num_classes == kClasses - 1;
}

std::optional<ModelConfig> find_compvis_unet(
    const std::map<std::string, std::vector<int64_t>>& shapes, const std::string& where) {
  std::set<std::string> names;
  for (const auto& [name, shape] : shapes) {
    names.insert(name);
  }
  if (!is_compvis_unet(names)) {
    return std::nullopt;
  }
  constexpr int64_t kHeads = 8;
  constexpr int64_t kClassHeads = 1;
  constexpr int64_t kHeadChannels = 64;
  const CompvisShapes its(shapes, where);
  const Modules modules = modules_in(names);
  ModelConfig config;
  config.architecture = "unet";
  const int64_t in = its.at("input_blocks.0.0.weight")[1];
  const int64_t out = its.at("out.2.weight")[0];
  const std::optional<UnetChannels> channels = unet_channels(in, out);
  KINORA_CHECK(channels.has_value(), kConfig, "[unet] ", where,
               " must make as many channels as it takes, ", in,
               ", or twice as many, or take as many more, or these and one, got ", out);
  config.in_channels = channels->drawn;
  config.learn_sigma = channels->learn_sigma;
  UnetConfig& own = config.unet;
  own.input = channels->input;
  own.resnets = modules.resnets;
  const std::string middle = "middle_block.1.";
  const bool is_of_places = its.has(middle + "qkv.weight");
  if (is_of_places) {
    const std::string first = "input_blocks.1.0.";
    own.scales_by_time =
        its.at(first + "emb_layers.1.weight")[0] == 2 * its.at(first + "out_layers.3.weight")[0];
    own.resizes_in_blocks = modules.resizes_in_blocks;
    own.attends = UnetAttends::kPlaces;
  } else {
    config.text_channels = its.at(middle + "transformer_blocks.0.attn2.to_k.weight")[1];
    own.linear_projection = its.at(middle + "proj_in.weight").size() == 2;
  }
  const bool of_classes = take_classes(shapes, its, where, config);
  const bool has_small_heads =
      is_without_null_class(config) || (shapes.contains(kCompvisWords) && in != kLargeChannels);
  if (of_classes || is_of_places) {
    config.architecture = "class_unet";
  } else {
    take_sizes(its, where, config);
  }
  own.middle_depth = its.depth(middle);
  for (size_t level = 0; level < modules.attends.size(); ++level) {
    const auto first = static_cast<int64_t>(level) * (own.resnets + 1) + 1;
    const std::string block = "input_blocks." + std::to_string(first) + ".";
    own.channels.push_back(its.at(block + "0.out_layers.3.weight")[0]);
    own.depths.push_back(its.depth(block + "1."));
  }
  for (const int64_t channels : own.channels) {
    own.heads.push_back(own.resizes_in_blocks   ? kResizedHeads
                        : is_of_places          ? std::max<int64_t>(channels / kPlaceHead, 1)
                        : has_small_heads       ? std::max<int64_t>(channels / kWordsHead, 1)
                        : own.linear_projection ? std::max<int64_t>(channels / kHeadChannels, 1)
                        : of_classes            ? kClassHeads
                                                : kHeads);
  }
  return config;
}

}  // namespace kinora::models
