#include "kinora/pipelines/autoencoder_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

using models::AutoencoderKlConfig;
using models::AutoencoderTinyConfig;
using models::AutoencoderVqConfig;
using models::DcActivation;
using models::DcAeConfig;
using models::DcAeStage;
using models::DcNorm;
using nlohmann::json;

// Of raw latents, as the models were trained: the configs of the published pipelines.
constexpr double kStableDiffusionScale = 0.18215;
constexpr double kSdxlScale = 0.13025;
/// Of latent diffusion's files of which it was measured (scale_by_std).
constexpr const char* kMeasuredScale = "scale_factor";
constexpr double kFluxScale = 0.3611;
constexpr double kFluxShift = 0.1159;
constexpr int64_t kFluxChannels = 16;

constexpr int64_t kPixelChannels = 3;
// More has no autoencoder, and would not fit anywhere.
constexpr size_t kMostLevels = 16;
constexpr int64_t kMostLayers = 64;
constexpr int64_t kMostChannels = 65536;
constexpr int64_t kMostCodes = int64_t{1} << 24;
constexpr const char* kRoom = "autoencoder";  // in errors

template <typename T>
using Names = std::vector<std::pair<const char*, T>>;

/// All entries of a list of texts, or the text itself, must be `known`.
void require(const DiffusersConfig& config, const char* key, const std::string& known) {
  const auto entries = config.is_list(key) ? config.get<std::vector<std::string>>(key, {})
                                           : std::vector{config.get<std::string>(key, known)};
  for (const std::string& entry : entries) {
    KINORA_CHECK(entry == known, kConfig, config.message(), key, " must be ", known, ", got ",
                 io::in_quotes(entry));
  }
}

/// What `known` has under `text`, which the config has under `key`.
template <typename T>
T value_of(const DiffusersConfig& config, const char* key, const std::string& text,
           const Names<T>& known) {
  std::string names;
  for (const auto& [name, value] : known) {
    if (text == name) {
      return value;
    }
    names += (names.empty() ? "" : " or ") + std::string(name);
  }
  throw_error(ErrorKind::kConfig, config.message(), key, " must be ", names, ", got ", text);
}

/// What `known` has under the text, or `otherwise`.
template <typename T>
T named(const DiffusersConfig& config, const char* key, const std::string& otherwise,
        const Names<T>& known) {
  return value_of(config, key, config.get<std::string>(key, otherwise), known);
}

void check_count(const DiffusersConfig& config, const char* key, size_t got, size_t count) {
  KINORA_CHECK(got == count, kConfig, config.message(), key, " must have ", count,
               " entries, one for each of block_out_channels, got ", got);
}

/// The same of each of `count` texts of a list, or of one text that counts for all.
template <typename T>
std::vector<T> all_named(const DiffusersConfig& config, const char* key, size_t count,
                         const char* otherwise, const Names<T>& known) {
  if (!config.is_list(key)) {
    return std::vector<T>(count, named(config, key, otherwise, known));
  }
  std::vector<T> values;
  for (const auto& text : config.get<std::vector<std::string>>(key, {})) {
    values.push_back(value_of(config, key, text, known));
  }
  check_count(config, key, values.size(), count);
  return values;
}

/// A list of `count` entries.
template <typename T>
std::vector<T> all(const DiffusersConfig& config, const char* key, size_t count,
                   const std::vector<T>& otherwise) {
  auto values = config.get<std::vector<T>>(key, otherwise);
  check_count(config, key, values.size(), count);
  return values;
}

/// The one value of a list.
int64_t same(const DiffusersConfig& config, const char* key, int64_t otherwise) {
  const auto list = config.get<std::vector<int64_t>>(key, {otherwise});
  const bool are_same = !list.empty() && std::all_of(list.begin(), list.end(),
                                                     [&](int64_t n) { return n == list.front(); });
  KINORA_CHECK(are_same, kConfig, config.message(), key, " must be the same on all levels, got ",
               config.written(key));
  return list.front();
}

/// Of encoder and decoder, which AutoencoderKL and VQModel have alike.
AutoencoderKlConfig halves_config(const DiffusersConfig& values, int64_t latent_channels) {
  require(values, "act_fn", "silu");
  AutoencoderKlConfig config;
  config.in_channels = values.get("in_channels", kPixelChannels);
  KINORA_CHECK(values.get("out_channels", config.in_channels) == config.in_channels, kConfig,
               values.message(), "out_channels must be in_channels, ", config.in_channels, ", got ",
               values.written("out_channels"));
  config.block_out_channels = values.get<std::vector<int64_t>>("block_out_channels", {64});
  const size_t levels = config.block_out_channels.size();
  KINORA_CHECK(levels >= 1 && levels <= kMostLevels &&
                   std::ranges::all_of(config.block_out_channels,
                                       [](int64_t n) { return n >= 1 && n <= kMostChannels; }),
               kConfig, values.message(), "block_out_channels must be up to ", kMostLevels,
               " numbers from 1 to ", kMostChannels, ", got ",
               values.written("block_out_channels"));
  config.encoder_attention =
      all_named<bool>(values, "down_block_types", levels, "DownEncoderBlock2D",
                      {{"DownEncoderBlock2D", false}, {"AttnDownEncoderBlock2D", true}});
  config.decoder_attention =
      all_named<bool>(values, "up_block_types", levels, "UpDecoderBlock2D",
                      {{"UpDecoderBlock2D", false}, {"AttnUpDecoderBlock2D", true}});
  std::reverse(config.decoder_attention.begin(), config.decoder_attention.end());
  config.layers_per_block = values.size("layers_per_block", 1, kMostLayers);
  config.latent_channels = values.size("latent_channels", latent_channels, kMostChannels);
  config.norm_num_groups = values.size("norm_num_groups", config.norm_num_groups, kMostChannels);
  config.mid_block_add_attention = values.get("mid_block_add_attention", true);
  return config;
}

AutoencoderVqConfig vq_config(const DiffusersConfig& values) {
  require(values, "norm_type", "group");
  AutoencoderVqConfig config;
  config.halves = halves_config(values, config.halves.latent_channels);
  // Before diffusers had the key nothing was scaled, as in latent diffusion.
  config.halves.scale = {values.get("scaling_factor", 1.0)};
  config.num_vq_embeddings = values.size("num_vq_embeddings", config.num_vq_embeddings, kMostCodes);
  config.vq_embed_dim = values.size("vq_embed_dim", config.halves.latent_channels, kMostChannels);
  return config;
}

AutoencoderKlConfig kl_config(const DiffusersConfig& values) {
  AutoencoderKlConfig config = halves_config(values, AutoencoderKlConfig().latent_channels);
  config.use_quant_conv = values.get("use_quant_conv", true);
  config.use_post_quant_conv = values.get("use_post_quant_conv", true);
  const double factor = values.get("scaling_factor", kStableDiffusionScale);
  config.scale = values.get<std::vector<double>>("latents_std", {1.0});
  for (double& value : config.scale) {
    value = factor / value;
  }
  config.shift = values.get<std::vector<double>>("latents_mean", {values.get("shift_factor", 0.0)});
  return config;
}

AutoencoderTinyConfig tiny_config(const DiffusersConfig& values) {
  require(values, "act_fn", "relu");
  require(values, "upsample_fn", "nearest");
  KINORA_CHECK(values.get<int64_t>("upsampling_scaling_factor", 2) == 2, kConfig,
               "[autoencoder] upsampling_scaling_factor must be 2");
  AutoencoderTinyConfig config;
  config.channels = same(values, "encoder_block_out_channels", config.channels);
  KINORA_CHECK(same(values, "decoder_block_out_channels", config.channels) == config.channels,
               kConfig, "[autoencoder] encoder and decoder must be of the same width");
  config.latent_channels = values.get("latent_channels", config.latent_channels);
  config.num_encoder_blocks = values.get("num_encoder_blocks", config.num_encoder_blocks);
  config.num_decoder_blocks = values.get("num_decoder_blocks", config.num_decoder_blocks);
  config.scaling_factor = values.get("scaling_factor", config.scaling_factor);
  return config;
}

/// One half of an AutoencoderDC; norms and activations stay as they are.
std::vector<DcAeStage> dc_stages(const DiffusersConfig& values, const std::string& half,
                                 const std::vector<int64_t>& depths) {
  const auto key = [&half](const char* name) { return half + "_" + name; };
  const auto widths = values.get<std::vector<int64_t>>(key("block_out_channels").c_str(),
                                                       {128, 256, 512, 512, 1024, 1024});
  const size_t count = widths.size();
  const auto attends = all_named<bool>(values, key("block_types").c_str(), count, "ResBlock",
                                       {{"ResBlock", false}, {"EfficientViTBlock", true}});
  const auto layers = all(values, key("layers_per_block").c_str(), count, depths);
  const auto scales = all<std::vector<int64_t>>(values, key("qkv_multiscales").c_str(), count,
                                                {{}, {}, {}, {5}, {5}, {5}});
  std::vector<DcAeStage> stages;
  for (size_t i = 0; i < count; ++i) {
    stages.push_back(
        {.width = widths[i], .depth = layers[i], .attends = attends[i], .scales = scales[i]});
  }
  return stages;
}

DcAeConfig dc_config(const DiffusersConfig& values) {
  KINORA_CHECK(values.get("in_channels", kPixelChannels) == kPixelChannels, kConfig,
               "[autoencoder] in_channels must be ", kPixelChannels);
  require(values, "decoder_conv_act_fn", "relu");
  DcAeConfig config;
  config.latent_channels = values.get("latent_channels", config.latent_channels);
  config.attention_head_dim = values.get("attention_head_dim", config.attention_head_dim);
  config.encoder = dc_stages(values, "encoder", {2, 2, 2, 3, 3, 3});
  config.decoder = dc_stages(values, "decoder", {3, 3, 3, 3, 3, 3});
  const auto norms =
      all_named<DcNorm>(values, "decoder_norm_types", config.decoder.size(), "rms_norm",
                        {{"rms_norm", DcNorm::kRms}, {"batch_norm", DcNorm::kBatch}});
  const auto activations =
      all_named<DcActivation>(values, "decoder_act_fns", config.decoder.size(), "silu",
                              {{"silu", DcActivation::kSilu}, {"relu", DcActivation::kRelu}});
  for (size_t i = 0; i < config.decoder.size(); ++i) {
    config.decoder[i].norm = norms[i];
    config.decoder[i].activation = activations[i];
  }
  config.unshuffles = named<bool>(values, "downsample_block_type", "pixel_unshuffle",
                                  {{"pixel_unshuffle", true}, {"conv", false}, {"Conv", false}});
  config.shuffles = named<bool>(values, "upsample_block_type", "pixel_shuffle",
                                {{"pixel_shuffle", true}, {"interpolate", false}});
  config.encoder_out_shortcut = values.get("encoder_out_shortcut", true);
  config.decoder_in_shortcut = values.get("decoder_in_shortcut", true);
  config.scaling_factor = values.get("scaling_factor", config.scaling_factor);
  return config;
}

/// The one of `names` that stands for each level, which attends or not.
std::vector<std::string> block_types(std::vector<bool> attends, size_t levels,
                                     const std::array<std::string, 2>& names) {
  attends.resize(levels);
  std::vector<std::string> types;
  for (const bool attends_here : attends) {
    types.push_back(names[attends_here ? 1 : 0]);
  }
  return types;
}

json described(const std::vector<DcAeStage>& stages) {
  json values = json::array();
  for (const DcAeStage& stage : stages) {
    values.push_back({stage.attends, stage.scales, stage.norm == DcNorm::kBatch,
                      stage.activation == DcActivation::kRelu});
  }
  return values;
}

json described(const DcAeConfig& config) {
  return {{"kind", "dc_ae"},
          {"heads", config.attention_head_dim},
          {"encoder", described(config.encoder)},
          {"decoder", described(config.decoder)},
          {"shuffles", {config.unshuffles, config.shuffles}},
          {"shortcuts", {config.encoder_out_shortcut, config.decoder_in_shortcut}},
          {"scale", config.scaling_factor}};
}

/// How many of PREFIX0SUFFIX, PREFIX1SUFFIX, ... there are.
int64_t count_of(const AutoencoderWeights& weights, const std::string& prefix,
                 const std::string& suffix) {
  int64_t count = 0;
  while (weights.contains(prefix + std::to_string(count) + suffix)) {
    ++count;
  }
  return count;
}

/// Dim `dim` of a convolution's weight; kIo, saying what to give, where there is none.
int64_t size_in(const AutoencoderWeights& weights, const std::string& path, size_t dim) {
  KINORA_CHECK(
      weights.contains(path) && weights.shape(path).size() == 4, kIo, "[autoencoder] ",
      weights.files.front().path(), " has no ", path,
      " of four dims. Hint: config.json beside it, or a file of Stable Diffusion or latent "
      "diffusion");
  return weights.shape(path)[dim];
}

/// Whether each level has attention behind its resnets, from the first on.
std::vector<bool> attention_in(const AutoencoderWeights& weights, const std::string& half,
                               size_t levels) {
  std::vector<bool> attends;
  for (size_t i = 0; i < levels; ++i) {
    attends.push_back(weights.contains(half + std::to_string(i) + ".attentions.0.to_q.weight"));
  }
  return attends;
}

/// Encoder and decoder of CompVis' or diffusers' weights.
AutoencoderKlConfig halves_in(const AutoencoderWeights& weights) {
  const std::string down = "encoder.down_blocks.";
  AutoencoderKlConfig config;
  config.in_channels = size_in(weights, "encoder.conv_in.weight", 1);
  config.block_out_channels.clear();
  const int64_t levels = count_of(weights, down, ".resnets.0.conv1.weight");
  for (int64_t i = 0; i < levels; ++i) {
    config.block_out_channels.push_back(
        size_in(weights, down + std::to_string(i) + ".resnets.0.conv1.weight", 0));
  }
  config.encoder_attention = attention_in(weights, down, static_cast<size_t>(levels));
  config.decoder_attention =
      attention_in(weights, "decoder.up_blocks.", static_cast<size_t>(levels));
  std::reverse(config.decoder_attention.begin(), config.decoder_attention.end());
  config.layers_per_block = count_of(weights, down + "0.resnets.", ".conv1.weight");
  config.latent_channels = size_in(weights, "decoder.conv_in.weight", 1);
  config.mid_block_add_attention = weights.contains("decoder.mid_block.attentions.0.to_q.weight");
  return config;
}

void set_scaling(AutoencoderKlConfig& config, bool of_sdxl) {
  const auto attends = [](const std::vector<bool>& levels) {
    return std::ranges::count(levels, true) > 0;
  };
  KINORA_CHECK(!attends(config.encoder_attention), kConfig,
               "[autoencoder] a file of an AutoencoderKL whose levels attend (latent diffusion's "
               "kl-f16, kl-f32) does not say how its latents are scaled. Hint: the folder of "
               "diffusers, with config.json");
  if (config.latent_channels == kFluxChannels) {
    config.scale = {kFluxScale};
    config.shift = {kFluxShift};
    return;
  }
  KINORA_CHECK(config.latent_channels == 4, kConfig,
               "[autoencoder] a file without config.json must have 4 latent channels (Stable "
               "Diffusion) or ",
               kFluxChannels, " (Flux), whose scaling is known, got ", config.latent_channels,
               ". Hint: the folder of diffusers, with config.json");
  config.scale = {of_sdxl ? kSdxlScale : kStableDiffusionScale};
}

}  // namespace

std::vector<int64_t> AutoencoderWeights::shape(const std::string& path) const {
  const Source& source = sources.at(path);
  return files[source.file].shape(source.key);
}

at::Tensor AutoencoderWeights::read(const std::string& path) const {
  const Source& source = sources.at(path);
  return files[source.file].read(source.key);
}

std::string autoencoder_class(const std::string& text, const std::string& where) {
  const DiffusersConfig values(text, kRoom, where);
  return values.get<std::string>("_class_name", "");
}

AutoencoderConfig parse_autoencoder_config(const std::string& text, const std::string& where) {
  const DiffusersConfig values(text, kRoom, where);
  const auto kind = values.get<std::string>("_class_name", "");
  AutoencoderConfig config;
  if (kind == "AutoencoderKL") {
    config.model = kl_config(values);
    config.force_upcast = values.get("force_upcast", true);
  } else if (kind == "AutoencoderTiny") {
    config.model = tiny_config(values);
  } else if (kind == kDcClass) {
    config.model = dc_config(values);
    config.force_upcast = true;
  } else if (kind == kVqClass) {
    config.model = vq_config(values);
    config.force_upcast = values.get("force_upcast", false);
  } else {
    throw_error(
        ErrorKind::kConfig, values.message(),
        "_class_name must be AutoencoderKL, AutoencoderTiny, AutoencoderDC or VQModel, got ", kind);
  }
  return config;
}

AutoencoderConfig kl_config_of(const AutoencoderWeights& weights, bool of_sdxl) {
  AutoencoderKlConfig config = halves_in(weights);
  config.use_quant_conv = weights.contains("quant_conv.weight");
  config.use_post_quant_conv = weights.contains("post_quant_conv.weight");
  const checkpoint::WeightsFile& file = weights.files.front();
  if (file.contains(kMeasuredScale)) {
    config.scale = {file.read(kMeasuredScale).to(at::kDouble).item<double>()};
  } else {
    set_scaling(config, of_sdxl);
  }
  return {.model = config, .force_upcast = true};
}

AutoencoderConfig vq_config_of(const AutoencoderWeights& weights) {
  AutoencoderVqConfig config;
  config.halves = halves_in(weights);
  config.halves.scale = {1.0};
  const std::vector<int64_t> codes = weights.shape(kCodebook);
  config.vq_embed_dim = size_in(weights, "quant_conv.weight", 0);
  KINORA_CHECK(
      codes.size() == 2 && codes[1] == config.vq_embed_dim, kIo, "[autoencoder] ",
      weights.files.front().path(), ": codes of ", kCodebook, " must have ", config.vq_embed_dim,
      " numbers, as quant_conv.weight makes, got ",
      codes.size() == 2 ? std::to_string(codes[1]) : std::to_string(codes.size()) + " dims");
  config.num_vq_embeddings = codes[0];
  return {.model = config, .force_upcast = true};
}

AutoencoderConfig tiny_config_of(const AutoencoderWeights& weights) {
  const auto size = [&](const std::string& path, size_t dim) {
    KINORA_CHECK(weights.contains(path) && weights.shape(path).size() == 4, kIo, "[autoencoder] ",
                 weights.files.front().path(), " and its other half have no ", path,
                 " of four dims. Hint: files of TAESD");
    return weights.shape(path)[dim];
  };
  AutoencoderTinyConfig config;
  config.channels = size("encoder.layers.0.weight", 0);
  config.latent_channels = size("decoder.layers.0.weight", 1);
  config.pools = weights.contains("decoder.layers.2.pool.0.weight");
  return {.model = config, .force_upcast = false};
}

std::unique_ptr<models::Autoencoder> make_autoencoder(const AutoencoderConfig& config) {
  if (const auto* kl = std::get_if<AutoencoderKlConfig>(&config.model)) {
    return std::make_unique<models::AutoencoderKl>(*kl);
  }
  if (const auto* clips = std::get_if<ClipAutoencoderConfig>(&config.model)) {
    return make_autoencoder(*clips);
  }
  if (const auto* dc = std::get_if<DcAeConfig>(&config.model)) {
    return std::make_unique<models::DcAe>(*dc);
  }
  if (const auto* vq = std::get_if<AutoencoderVqConfig>(&config.model)) {
    return std::make_unique<models::AutoencoderVq>(*vq);
  }
  return std::make_unique<models::AutoencoderTiny>(std::get<AutoencoderTinyConfig>(config.model));
}

const AutoencoderKlConfig* halves_of(const AutoencoderConfig& config) {
  const auto* vq = std::get_if<AutoencoderVqConfig>(&config.model);
  return vq != nullptr ? &vq->halves : std::get_if<AutoencoderKlConfig>(&config.model);
}

std::string diffusers_config(const AutoencoderConfig& config) {
  const AutoencoderKlConfig* halves = halves_of(config);
  KINORA_CHECK(halves != nullptr && halves->scale.size() == 1 && halves->shift.size() == 1, kConfig,
               "[autoencoder] only an AutoencoderKL or VQModel of one scale can get a config.json "
               "of diffusers. Hint: give the folder of diffusers that it comes from");
  std::vector<bool> up = halves->decoder_attention;
  std::reverse(up.begin(), up.end());
  const size_t levels = halves->block_out_channels.size();
  json values = {
      {"_diffusers_version", "0.30.0"},
      {"act_fn", "silu"},
      {"block_out_channels", halves->block_out_channels},
      {"down_block_types", block_types(halves->encoder_attention, levels,
                                       {"DownEncoderBlock2D", "AttnDownEncoderBlock2D"})},
      {"force_upcast", config.force_upcast},
      {"in_channels", halves->in_channels},
      {"latent_channels", halves->latent_channels},
      {"layers_per_block", halves->layers_per_block},
      {"mid_block_add_attention", halves->mid_block_add_attention},
      {"norm_num_groups", halves->norm_num_groups},
      {"out_channels", halves->in_channels},
      {"scaling_factor", halves->scale.front()},
      {"up_block_types", block_types(up, levels, {"UpDecoderBlock2D", "AttnUpDecoderBlock2D"})}};
  if (const auto* vq = std::get_if<AutoencoderVqConfig>(&config.model)) {
    values["_class_name"] = kVqClass;
    values["num_vq_embeddings"] = vq->num_vq_embeddings;
    values["vq_embed_dim"] = vq->vq_embed_dim;
    return values.dump(2) + "\n";
  }
  values["_class_name"] = "AutoencoderKL";
  values["use_post_quant_conv"] = halves->use_post_quant_conv;
  values["use_quant_conv"] = halves->use_quant_conv;
  if (halves->shift.front() != 0.0) {
    values["shift_factor"] = halves->shift.front();
  }
  return values.dump(2) + "\n";
}

std::string describe(const AutoencoderConfig& config) {
  if (const auto* clips = std::get_if<ClipAutoencoderConfig>(&config.model)) {
    return describe(*clips);
  }
  json values;
  if (const AutoencoderKlConfig* halves = halves_of(config)) {
    const bool is_kl = std::holds_alternative<AutoencoderKlConfig>(config.model);
    values = {{"kind", is_kl ? "kl" : "vq"},
              {"groups", halves->norm_num_groups},
              {"scale", halves->scale},
              {"shift", halves->shift}};
  } else if (const auto* dc = std::get_if<DcAeConfig>(&config.model)) {
    values = described(*dc);
  } else {
    values = {{"kind", "tiny"},
              {"scale", std::get<AutoencoderTinyConfig>(config.model).scaling_factor}};
  }
  return values.dump();
}

}  // namespace kinora::pipelines
