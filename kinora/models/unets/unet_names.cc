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

/// Which modules a U-Net has, as far as names of CompVis depend on it.
struct Modules {
  int64_t resnets = 0;
  std::vector<bool> attends = {};  ///< of each level
};

/// What our paths begin with, and what CompVis' keys have there.
using Prefixes = std::vector<std::pair<std::string, std::string>>;

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
    prefixes.emplace_back(path + "downsamplers.0.conv.",
                          "input_blocks." + std::to_string(input++) + ".0.op.");
  }
  int64_t output = 0;
  for (int64_t level = 0; level < levels; ++level) {
    const std::string path = "up_blocks." + std::to_string(level) + ".";
    for (int64_t unit = 0; unit <= modules.resnets; ++unit, ++output) {
      const std::string key = "output_blocks." + std::to_string(output) + ".";
      if (unit == modules.resnets) {  // before attention, which begins alike
        const bool attends = modules.attends[static_cast<size_t>(levels - 1 - level)];
        prefixes.emplace_back(path + "upsamplers.0.conv.", key + (attends ? "2.conv." : "1.conv."));
      }
      add_unit(path, unit, key);
    }
  }
  return prefixes;
}

/// Those of a file, told by its names.
Modules modules_in(const std::set<std::string>& names) {
  const auto has = [&names](int64_t block, const char* end) {
    return names.contains(kCompvisUnet + ("input_blocks." + std::to_string(block)) + end);
  };
  Modules modules;
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
  /// Transformer blocks below `key`.
  [[nodiscard]] int64_t depth(const std::string& key) const {
    int64_t depth = 0;
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
  config.architecture = "class_unet";
  config.num_classes = table[0] - 1;
  config.unet.classes = in_time ? UnetClasses::kTime : UnetClasses::kToken;
  return true;
}

}  // namespace

nn::Naming unet_naming(const ModelConfig& config) {
  nn::Naming naming = naming_of(config, "", [](const std::string& path) { return path; });
  std::erase_if(naming, [](const nn::OtherName& name) { return name.path == kClassToken; });
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
  nn::Naming naming;
  for (const std::string& name : names) {
    naming.push_back({.path = name, .keys = {name}});
  }
  return naming;
}

nn::Naming compvis_unet_naming(const ModelConfig& config) {
  KINORA_CHECK(config.unet.middle_depth > 0, kConfig,
               "[unet] model.unet.middle_depth must be above 0 for CompVis, whose U-Nets attend in "
               "the middle, got 0");
  Modules modules{.resnets = config.unet.resnets};
  for (const int64_t depth : config.unet.depths) {
    modules.attends.push_back(depth > 0);
  }
  const Prefixes prefixes = compvis_prefixes(modules);
  return naming_of(config, "", [&prefixes](const std::string& path) -> std::string {
    if (path == kClassToken) {
      return kCompvisClassToken;
    }
    const auto found = std::ranges::find_if(
        prefixes, [&path](const auto& prefix) { return path.starts_with(prefix.first); });
    KINORA_CHECK(found != prefixes.end(), kInternal, "[unet] ", path, " has no name of CompVis");
    return kCompvisUnet + found->second + path.substr(found->first.size());
  });
}

std::optional<nn::Naming> find_compvis_unet_naming(const std::vector<std::string>& names,
                                                   bool averaged) {
  const std::set<std::string> known(names.begin(), names.end());
  if (!is_compvis_unet(known)) {
    return std::nullopt;
  }
  const bool takes_averages =
      averaged &&
      known.contains(averaged_key(std::string(kCompvisUnet) + "input_blocks.0.0.weight"));
  nn::Naming naming;
  const Prefixes prefixes = compvis_prefixes(modules_in(known));
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
    naming.push_back(
        {.path = found == prefixes.end() ? name : found->first + key.substr(found->second.size()),
         .keys = {takes_averages ? averaged_key(name) : name}});
  }
  return naming;
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
  KINORA_CHECK(!its.has(middle + "qkv.weight"), kConfig, "[unet] ", where,
               " attends to its own places alone (", kCompvisUnet, middle,
               "qkv), as latent diffusion's U-Nets without captions or classes do, which Kinora "
               "lacks");
  config.text_channels = its.at(middle + "transformer_blocks.0.attn2.to_k.weight")[1];
  const bool of_classes = take_classes(shapes, its, where, config);
  if (!of_classes) {
    take_sizes(its, where, config);
  }
  own.middle_depth = its.depth(middle);
  own.linear_projection = its.at(middle + "proj_in.weight").size() == 2;
  for (size_t level = 0; level < modules.attends.size(); ++level) {
    const auto first = static_cast<int64_t>(level) * (own.resnets + 1) + 1;
    const std::string block = "input_blocks." + std::to_string(first) + ".";
    own.channels.push_back(its.at(block + "0.out_layers.3.weight")[0]);
    own.depths.push_back(its.depth(block + "1."));
  }
  for (const int64_t channels : own.channels) {
    own.heads.push_back(own.linear_projection ? std::max<int64_t>(channels / kHeadChannels, 1)
                        : of_classes          ? kClassHeads
                                              : kHeads);
  }
  return config;
}

}  // namespace kinora::models
