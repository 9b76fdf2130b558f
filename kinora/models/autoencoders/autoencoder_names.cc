#include "kinora/models/autoencoders/autoencoder_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/core/text.h"

namespace kinora::models {
namespace {

using Words = std::vector<std::string>;
using Renamed = std::pair<std::string_view, std::string_view>;

bool is_number(const std::string& word) {
  return !word.empty() && word.size() < 6 &&
         std::all_of(word.begin(), word.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string joined(const Words& words) {
  std::string path;
  for (const std::string& word : words) {
    path += (path.empty() ? "" : ".") + word;
  }
  return path;
}

template <size_t N>
std::string renamed(const std::string& word, const std::array<Renamed, N>& names) {
  for (const auto& [from, to] : names) {
    if (word == from) {
      return std::string(to);
    }
  }
  return word;
}

constexpr std::array<Renamed, 10> kAttentionNames = {{{"norm", "group_norm"},
                                                      {"q", "to_q"},
                                                      {"k", "to_k"},
                                                      {"v", "to_v"},
                                                      {"proj_out", "to_out.0"},
                                                      {"query", "to_q"},
                                                      {"key", "to_k"},
                                                      {"value", "to_v"},
                                                      {"proj_attn", "to_out.0"},
                                                      {"group_norm", "group_norm"}}};

/// Layers of a residual block of Wan's, by their number.
constexpr std::array<Renamed, 4> kWanResidual = {
    {{"0", "norm1"}, {"2", "conv1"}, {"3", "norm2"}, {"6", "conv2"}}};
constexpr int64_t kWanBlocks = 4;  // of a level of the decoder: three residual ones and a resampler

/// CompVis' words after "encoder" or "decoder".
Words from_compvis(const Words& words, size_t num_levels) {
  Words path = {words[0]};
  if (words[1] == "norm_out") {
    path.emplace_back("conv_norm_out");
  } else if (words[1] == "mid" && words.size() == 5) {
    path.emplace_back("mid_block");
    if (words[2] == "attn_1") {
      path.insert(path.end(), {"attentions.0", renamed(words[3], kAttentionNames)});
    } else {
      path.insert(path.end(), {words[2] == "block_1" ? "resnets.0" : "resnets.1", words[3]});
    }
  } else if ((words[1] == "down" || words[1] == "up") && words.size() >= 6 && is_number(words[2])) {
    const auto level = static_cast<size_t>(std::stoul(words[2]));
    const bool up = words[1] == "up";
    path.emplace_back(up ? "up_blocks" : "down_blocks");
    path.push_back(std::to_string(up && level < num_levels ? num_levels - 1 - level : level));
    if (words[3] == "block") {
      path.insert(path.end(),
                  {"resnets", words[4], words[5] == "nin_shortcut" ? "conv_shortcut" : words[5]});
    } else if (words[3] == "attn") {
      path.insert(path.end(), {"attentions", words[4], renamed(words[5], kAttentionNames)});
    } else {
      path.insert(path.end(), {up ? "upsamplers.0" : "downsamplers.0", words[4]});
    }
  } else {
    return words;
  }
  path.push_back(words.back());
  return path;
}

/// What CompVis calls a layer of attention.
std::string compvis_attention(const std::string& word) {
  return word == "group_norm" ? "norm" : word == "to_out" ? "proj_out" : word.substr(3);  // to_q
}

/// Our words after "encoder" or "decoder" as CompVis has them.
Words to_compvis(const Words& words, size_t num_levels) {
  Words key = {words[0]};
  size_t at = 1;  // the first word that is not taken yet
  if (words[1] == "mid_block") {
    const bool attends = words[2] == "attentions";
    key.insert(key.end(), {"mid", attends ? "attn_1" : words[3] == "0" ? "block_1" : "block_2"});
    at = 4;
  } else if (words[1] == "down_blocks" || words[1] == "up_blocks") {
    const bool up = words[1] == "up_blocks";
    const auto level = static_cast<size_t>(std::stoul(words[2]));
    key.insert(key.end(),
               {up ? "up" : "down", std::to_string(up ? num_levels - 1 - level : level)});
    if (words[3].ends_with("samplers")) {
      key.emplace_back(up ? "upsample" : "downsample");
    } else {
      key.insert(key.end(), {words[3] == "resnets" ? "block" : "attn", words[4]});
    }
    at = 5;
  }
  const std::string& layer = words[at];
  if (at > 1 && words[at - 2] == "attentions") {
    key.push_back(compvis_attention(layer));
  } else {
    key.push_back(layer == "conv_shortcut"   ? "nin_shortcut"
                  : layer == "conv_norm_out" ? "norm_out"
                                             : layer);
  }
  key.push_back(words.back());
  return key;
}

Words words_of(std::string_view key) {
  Words words;
  for (const std::string_view word : split(key, '.')) {
    words.emplace_back(word);
  }
  return words;
}

bool is_of_half(const Words& words) {
  return words.size() >= 3 && (words[0] == "encoder" || words[0] == "decoder");
}

}  // namespace

std::string kl_path(std::string_view key, size_t num_levels) {
  Words words = words_of(key);
  if (!is_of_half(words)) {
    return std::string(key);
  }
  // encoder.mid_block.attentions.0.X.weight, encoder.down_blocks.3.attentions.0.X.weight
  for (const size_t at : {size_t{2}, size_t{3}}) {
    if (words.size() == at + 4 && words[at] == "attentions") {
      words[at + 2] = renamed(words[at + 2], kAttentionNames);
      return joined(words);
    }
  }
  return joined(from_compvis(words, num_levels));
}

std::string compvis_kl_key(std::string_view path, size_t num_levels) {
  const Words words = words_of(path);
  return is_of_half(words) ? joined(to_compvis(words, num_levels)) : std::string(path);
}

bool is_kl_attention_weight(std::string_view path) {
  return path.find(".attentions.") != std::string_view::npos && path.ends_with(".weight") &&
         !path.ends_with(".group_norm.weight");
}

std::string tiny_path(std::string_view key, bool is_decoder) {
  const size_t dot = key.find('.');
  const std::string number(key.substr(0, dot));
  if (dot == std::string_view::npos || !is_number(number)) {
    return std::string(key);
  }
  // The original's decoder begins with a layer of its own that keeps latents within bounds.
  const int64_t shift = is_decoder ? 1 : 0;
  return (is_decoder ? "decoder.layers." : "encoder.layers.") +
         std::to_string(std::stol(number) - shift) + std::string(key.substr(dot));
}

std::optional<std::string> wan_vae_path(std::string_view key) {
  const Words words = words_of(key);
  if (words.size() == 2 && (words[0] == "conv1" || words[0] == "conv2")) {
    return joined({words[0] == "conv1" ? "quant_conv" : "post_quant_conv", words[1]});
  }
  const bool is_half = is_of_half(words);
  if (is_half && words[1] == "conv1") {
    return joined({words[0], "conv_in", words[2]});
  }
  if (!is_half || words.size() < 4 || !is_number(words[2])) {
    return std::nullopt;
  }
  const int64_t number = std::stol(words[2]);
  Words path = {words[0]};
  if (words[1] == "head") {
    path.emplace_back(number == 0 ? "norm_out" : "conv_out");
  } else if (words[1] == "middle") {
    path.emplace_back("mid_block");
    path.emplace_back(number == 1 ? "attentions.0" : number == 0 ? "resnets.0" : "resnets.1");
  } else if (words[1] == "downsamples") {
    path.insert(path.end(), {"down_blocks", words[2]});
  } else if (words[1] == "upsamples") {
    path.insert(path.end(), {"up_blocks", std::to_string(number / kWanBlocks)});
    const int64_t place = number % kWanBlocks;
    path.emplace_back(place + 1 == kWanBlocks ? "upsamplers.0"
                                              : "resnets." + std::to_string(place));
  } else {
    return std::nullopt;
  }
  size_t rest = 3;
  if (words[rest] == "residual" && words.size() == 6) {
    path.push_back(renamed(words[4], kWanResidual));
    rest = 5;
  } else if (words[rest] == "shortcut") {
    path.emplace_back("conv_shortcut");
    rest = 4;
  }
  path.insert(path.end(), words.begin() + static_cast<std::ptrdiff_t>(rest), words.end());
  return joined(path);
}

}  // namespace kinora::models
