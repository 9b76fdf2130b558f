#include "kinora/pipelines/clip_autoencoder_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "kinora/core/error.h"
#include "kinora/models/autoencoders/autoencoder_names.h"

namespace kinora::pipelines {
namespace {

using nlohmann::json;

/// Sets `value` to what the config has under `key`, if it has.
template <typename T>
void read(const json& config, const char* key, T* value) {
  const auto found = config.find(key);
  if (found == config.end()) {
    return;
  }
  try {
    *value = found->get<T>();
  } catch (const json::exception&) {
    throw_error(ErrorKind::kConfig,
                "[autoencoder] config.json has a value of the wrong kind under ", key, ": ",
                found->dump());
  }
}

/// The same of a count, which must lie in 1 to `most`.
void read_count(const json& config, const char* key, int64_t most, int64_t* value) {
  read(config, key, value);
  KINORA_CHECK(*value >= 1 && *value <= most, kConfig, "[autoencoder] ", key, " must be from 1 to ",
               most, " in config.json, got ", *value);
}

/// What a config may say that has only one meaning here.
template <typename T>
void expect(const json& config, const char* key, const T& value) {
  T got = value;
  read(config, key, &got);
  KINORA_CHECK(got == value, kConfig, "[autoencoder] ", key, " must be ", json(value).dump(),
               " in config.json, got ", json(got).dump());
}

/// An object in the config; empty where there is none.
json part(const json& config, const char* key) {
  json result = json::object();
  read(config, key, &result);
  KINORA_CHECK(result.is_object(), kConfig, "[autoencoder] ", key,
               " must be an object in config.json, got ", result.dump());
  return result;
}

models::HunyuanVaeConfig hunyuan_config(const json& config) {
  models::HunyuanVaeConfig result;
  expect(config, "in_channels", int64_t{3});
  expect(config, "out_channels", int64_t{3});
  expect(config, "act_fn", std::string("silu"));
  read(config, "latent_channels", &result.latent_channels);
  read(config, "block_out_channels", &result.block_out_channels);
  read(config, "layers_per_block", &result.layers_per_block);
  read(config, "norm_num_groups", &result.norm_num_groups);
  read(config, "spatial_compression_ratio", &result.spatial_compression_ratio);
  // The original's name, then diffusers'.
  read(config, "time_compression_ratio", &result.temporal_compression_ratio);
  read(config, "temporal_compression_ratio", &result.temporal_compression_ratio);
  read(config, "mid_block_add_attention", &result.mid_block_add_attention);
  read(config, "scaling_factor", &result.scaling_factor);
  return result;
}

models::CogVideoXVaeConfig cogvideox_config(const json& config) {
  models::CogVideoXVaeConfig result;
  expect(config, "in_channels", models::kPixelChannels);
  expect(config, "out_channels", models::kPixelChannels);
  expect(config, "act_fn", std::string("silu"));
  for (const char* key : {"use_quant_conv", "use_post_quant_conv"}) {
    expect(config, key, false);
  }
  constexpr int64_t kMostChannels = 65536;
  constexpr int64_t kMostLayers = 64;
  constexpr int64_t kMostRatio = 64;
  read_count(config, "latent_channels", kMostChannels, &result.latent_channels);
  read(config, "block_out_channels", &result.block_out_channels);
  KINORA_CHECK(
      std::ranges::all_of(result.block_out_channels,
                          [](int64_t width) { return width >= 1 && width <= kMostChannels; }),
      kConfig, "[autoencoder] block_out_channels must be from 1 to ", kMostChannels,
      " in config.json, got ", json(result.block_out_channels).dump());
  read_count(config, "layers_per_block", kMostLayers, &result.layers_per_block);
  read_count(config, "norm_num_groups", kMostChannels, &result.norm_num_groups);
  read(config, "norm_eps", &result.norm_eps);
  double ratio = static_cast<double>(result.temporal_compression_ratio);  // also written as 4.0
  read(config, "temporal_compression_ratio", &ratio);
  KINORA_CHECK(ratio >= 1 && ratio <= kMostRatio, kConfig,
               "[autoencoder] temporal_compression_ratio must be from 1 to ", kMostRatio,
               " in config.json, got ", ratio);
  result.temporal_compression_ratio = static_cast<int64_t>(ratio);
  read(config, "scaling_factor", &result.scaling_factor);
  read(config, "invert_scale_latents", &result.invert_scale_latents);
  for (const char* key : {"shift_factor", "latents_mean", "latents_std"}) {
    const auto found = config.find(key);
    KINORA_CHECK(found == config.end() || found->is_null(), kConfig, "[autoencoder] ", key,
                 " must be null in config.json, got ", found->dump());
  }
  return result;
}

models::OpenSoraVaeConfig opensora_config(const json& config) {
  models::OpenSoraVaeConfig result;
  read(config, "micro_frame_size", &result.micro_frame_size);
  read(config, "shift", &result.shift);
  read(config, "scale", &result.scale);
  expect(part(config, "vae_2d"), "type", std::string("VideoAutoencoderKL"));
  expect(part(config, "vae_temporal"), "type", std::string("VAE_Temporal_SD"));
  return result;
}

/// As encoder of config.json lists the levels that halve frames; the decoder's count from the other
/// side of the halving.
std::vector<bool> halvings(const json& encoder, const json& decoder, size_t levels) {
  std::vector<int64_t> halved = {1, 2};
  read(encoder, "down_sampling_layer", &halved);
  std::vector<bool> result(levels - 1);
  for (const int64_t level : halved) {
    KINORA_CHECK(level >= 0 && level < std::ssize(result), kConfig,
                 "[autoencoder] down_sampling_layer must lie in 0 to ", std::ssize(result) - 1,
                 " in config.json, got ", level);
    result[static_cast<size_t>(level)] = true;
  }
  std::vector<int64_t> doubled;
  for (size_t level = 0; level < result.size(); ++level) {
    if (result[level]) {
      doubled.push_back(static_cast<int64_t>(level) + 1);
    }
  }
  expect(decoder, "temporal_up_layers", doubled);
  // Frames of the first latent frame, of which the last one stays.
  expect(decoder, "temporal_downsample", int64_t{1} << doubled.size());
  return result;
}

models::OpenSoraCausalVaeConfig causal_config(const json& config) {
  models::OpenSoraCausalVaeConfig result;
  const json encoder = part(config, "encoder");
  const json decoder = part(config, "decoder");
  expect(encoder, "type", std::string("VideoEncoder"));
  expect(decoder, "type", std::string("VideoDecoder"));
  expect(encoder, "double_z", true);
  expect(encoder, "in_channels", int64_t{3});
  expect(decoder, "out_ch", int64_t{3});
  constexpr int64_t kMostChannels = 65536;
  constexpr int64_t kMostLevels = 16;
  read_count(encoder, "z_channels", kMostChannels, &result.latent_channels);
  read_count(encoder, "ch", kMostChannels, &result.channels);
  read_count(encoder, "num_res_blocks", kMostLevels, &result.num_res_blocks);
  read(encoder, "ch_mult", &result.channel_multipliers);
  const bool fits = std::ranges::all_of(result.channel_multipliers, [&](int64_t factor) {
    return factor >= 1 && factor <= kMostChannels / result.channels;
  });
  KINORA_CHECK(fits && !result.channel_multipliers.empty() &&
                   std::ssize(result.channel_multipliers) <= kMostLevels,
               kConfig, "[autoencoder] ch_mult must have 1 to ", kMostLevels,
               " factors in config.json, which make at most ", kMostChannels, " of ch, got ",
               json(result.channel_multipliers).dump());
  expect(decoder, "z_channels", result.latent_channels);
  expect(decoder, "ch", result.channels);
  expect(decoder, "ch_mult", result.channel_multipliers);
  expect(decoder, "num_res_blocks", result.num_res_blocks);
  result.temporal_downsample = halvings(encoder, decoder, result.channel_multipliers.size());
  read_count(config, "micro_frame_size", kMostChannels, &result.micro_frame_size);
  read(config, "shift", &result.shift);
  read(config, "scale", &result.scale);
  return result;
}

models::VideoDcAeConfig dc_ae_config(const json& config) {
  models::VideoDcAeConfig result;
  read(config, "scaling_factor", &result.scaling_factor);
  return result;
}

models::WanVaeConfig wan_config(const json& config) {
  models::WanVaeConfig result;
  expect(config, "attn_scales", std::vector<double>());
  read(config, "is_residual", &result.is_residual);
  constexpr int64_t kMostChannels = 65536;
  constexpr int64_t kMostLevels = 16;
  read_count(config, "base_dim", kMostChannels, &result.base_dim);
  constexpr int64_t kMostPatch = 16;
  const auto read_set = [&config](const char* key, int64_t most, int64_t* value) {
    const auto found = config.find(key);
    if (found != config.end() && !found->is_null()) {
      read_count(config, key, most, value);
    }
  };
  read_set("decoder_base_dim", kMostChannels, &result.decoder_base_dim);
  read_set("patch_size", kMostPatch, &result.patch_size);
  const int64_t channels = models::kPixelChannels * result.patch_size * result.patch_size;
  for (const char* key : {"in_channels", "out_channels"}) {
    const auto found = config.find(key);
    const json got = found == config.end() ? json(models::kPixelChannels) : *found;
    KINORA_CHECK(got == channels, kConfig, "[autoencoder] ", key, " must be ", channels,
                 " in config.json, the values of a patch of patch_size, got ", got.dump());
  }
  read_count(config, "z_dim", kMostChannels, &result.z_dim);
  read_count(config, "num_res_blocks", kMostLevels, &result.num_res_blocks);
  read(config, "dim_mult", &result.dim_mult);
  const bool fits = std::ranges::all_of(result.dim_mult, [&](int64_t factor) {
    return factor >= 1 && factor <= kMostChannels / result.base_dim;
  });
  KINORA_CHECK(fits && !result.dim_mult.empty() && std::ssize(result.dim_mult) <= kMostLevels,
               kConfig, "[autoencoder] dim_mult must have 1 to ", kMostLevels,
               " factors in config.json, which make at most ", kMostChannels, " of base_dim, got ",
               json(result.dim_mult).dump());
  read(config, "temperal_downsample", &result.temporal_downsample);
  read(config, "latents_mean", &result.latents_mean);
  read(config, "latents_std", &result.latents_std);
  return result;
}

// Tensors of LTX-Video's file that are no parameters.
constexpr const char* kMeanName = "latents_mean";
constexpr const char* kStdName = "latents_std";

models::LtxHalving ltx_halving(const std::string& name) {
  using models::LtxHalving;
  for (const auto& [halving, known] : {std::pair{LtxHalving::kConv, "conv"},
                                       {LtxHalving::kSpatial, "spatial"},
                                       {LtxHalving::kTemporal, "temporal"},
                                       {LtxHalving::kSpatiotemporal, "spatiotemporal"}}) {
    if (name == known) {
      return halving;
    }
  }
  throw_error(ErrorKind::kConfig,
              "[autoencoder] downsample_type must be conv, spatial, temporal or spatiotemporal in "
              "config.json, got ",
              name);
}

models::LtxVaeConfig ltx_config(const json& config) {
  models::LtxVaeConfig result;
  expect(config, "in_channels", models::kPixelChannels);
  expect(config, "out_channels", models::kPixelChannels);
  expect(config, "patch_size_t", int64_t{1});
  constexpr int64_t kMostChannels = 65536;
  constexpr int64_t kMostPatch = 16;
  read_count(config, "latent_channels", kMostChannels, &result.latent_channels);
  read_count(config, "patch_size", kMostPatch, &result.patch_size);
  read(config, "block_out_channels", &result.block_out_channels);
  read(config, "decoder_block_out_channels", &result.decoder_block_out_channels);
  read(config, "layers_per_block", &result.layers_per_block);
  read(config, "decoder_layers_per_block", &result.decoder_layers_per_block);
  read(config, "spatio_temporal_scaling", &result.spatio_temporal_scaling);
  read(config, "decoder_spatio_temporal_scaling", &result.decoder_spatio_temporal_scaling);
  read(config, "decoder_inject_noise", &result.decoder_inject_noise);
  read(config, "upsample_residual", &result.upsample_residual);
  read(config, "upsample_factor", &result.upsample_factor);
  read(config, "timestep_conditioning", &result.timestep_conditioning);
  read(config, "resnet_norm_eps", &result.resnet_norm_eps);
  read(config, "scaling_factor", &result.scaling_factor);
  read(config, "encoder_causal", &result.encoder_causal);
  read(config, "decoder_causal", &result.decoder_causal);
  std::vector<std::string> blocks;
  read(config, "down_block_types", &blocks);
  const auto is_wide = [](const std::string& block) { return block == "LTXVideo095DownBlock3D"; };
  const auto is_first = [](const std::string& block) { return block == "LTXVideoDownBlock3D"; };
  result.widens_by_halving = !blocks.empty() && std::ranges::all_of(blocks, is_wide);
  KINORA_CHECK(result.widens_by_halving || std::ranges::all_of(blocks, is_first), kConfig,
               "[autoencoder] down_block_types must be all LTXVideoDownBlock3D or all "
               "LTXVideo095DownBlock3D in config.json, got ",
               json(blocks).dump());
  std::vector<std::string> halvings;
  read(config, "downsample_type", &halvings);
  if (!halvings.empty() && result.widens_by_halving) {
    result.downsample_type.clear();
    for (const std::string& halving : halvings) {
      result.downsample_type.push_back(ltx_halving(halving));
    }
  }
  const auto all_positive = [](const std::vector<int64_t>& values, int64_t most) {
    return std::ranges::all_of(values,
                               [most](int64_t value) { return value >= 1 && value <= most; });
  };
  constexpr int64_t kMostLayers = 256;
  KINORA_CHECK(all_positive(result.block_out_channels, kMostChannels) &&
                   all_positive(result.decoder_block_out_channels, kMostChannels) &&
                   all_positive(result.layers_per_block, kMostLayers) &&
                   all_positive(result.decoder_layers_per_block, kMostLayers),
               kConfig, "[autoencoder] widths must be from 1 to ", kMostChannels,
               " and layers from 1 to ", kMostLayers, " in config.json");
  return result;
}

}  // namespace

std::optional<ClipAutoencoderConfig> clip_autoencoder_config(
    const std::string& config, const std::vector<std::string>& names) {
  const json parsed = config.empty() ? json::object() : json::parse(config, nullptr, false);
  KINORA_CHECK(parsed.is_object(), kIo, "[autoencoder] config.json is not a JSON object");
  const auto has = [&](const std::string& path) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return clip_autoencoder_path(name) == path;
    });
  };
  if (has("temporal_vae.encoder.conv_in.conv.weight")) {
    return opensora_config(parsed);
  }
  if (has("encoder.stages.0.op_list.0.main.conv1.conv.weight")) {
    return dc_ae_config(parsed);
  }
  if (has("encoder.down.0.block.0.conv1.conv.weight")) {
    return causal_config(parsed);
  }
  if (has("decoder.norm_out.conv_y.conv.weight")) {
    return cogvideox_config(parsed);
  }
  if (has("encoder.conv_in.conv.weight")) {
    if (std::ranges::count(names, kMeanName) > 0) {
      return ltx_config(parsed);
    }
    return hunyuan_config(parsed);
  }
  if (has("encoder.down_blocks.0.norm1.gamma") ||
      has("encoder.down_blocks.0.resnets.0.norm1.gamma")) {
    return wan_config(parsed);
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, std::vector<double>*>> statistics_of(
    ClipAutoencoderConfig& config) {
  auto* const ltx = std::get_if<models::LtxVaeConfig>(&config);
  if (ltx == nullptr) {
    return {};
  }
  return {{kMeanName, &ltx->latents_mean}, {kStdName, &ltx->latents_std}};
}

std::string clip_autoencoder_path(const std::string& name) {
  // Open-Sora 1.2 stores what config.json says, too; HunyuanVideo's own files begin with "vae.".
  if (name == "scale" || name == "shift" || name == kMeanName || name == kStdName) {
    return "";
  }
  if (const std::optional<std::string> path = models::wan_vae_path(name)) {
    return *path;
  }
  const std::string prefix = "vae.";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

std::unique_ptr<models::Autoencoder> make_autoencoder(const ClipAutoencoderConfig& config) {
  if (const auto* hunyuan = std::get_if<models::HunyuanVaeConfig>(&config)) {
    return std::make_unique<models::HunyuanVae>(*hunyuan);
  }
  if (const auto* opensora = std::get_if<models::OpenSoraVaeConfig>(&config)) {
    return std::make_unique<models::OpenSoraVae>(*opensora);
  }
  if (const auto* causal = std::get_if<models::OpenSoraCausalVaeConfig>(&config)) {
    return std::make_unique<models::OpenSoraCausalVae>(*causal);
  }
  if (const auto* wan = std::get_if<models::WanVaeConfig>(&config)) {
    return std::make_unique<models::WanVae>(*wan);
  }
  if (const auto* cogvideox = std::get_if<models::CogVideoXVaeConfig>(&config)) {
    return std::make_unique<models::CogVideoXVae>(*cogvideox);
  }
  if (const auto* ltx = std::get_if<models::LtxVaeConfig>(&config)) {
    return std::make_unique<models::LtxVae>(*ltx);
  }
  return std::make_unique<models::VideoDcAe>(std::get<models::VideoDcAeConfig>(config));
}

std::string describe(const ClipAutoencoderConfig& config) {
  json values;
  if (const auto* hunyuan = std::get_if<models::HunyuanVaeConfig>(&config)) {
    values = {{"kind", "hunyuan"},
              {"groups", hunyuan->norm_num_groups},
              {"sides", hunyuan->spatial_compression_ratio},
              {"frames", hunyuan->temporal_compression_ratio},
              {"scale", hunyuan->scaling_factor}};
  } else if (const auto* opensora = std::get_if<models::OpenSoraVaeConfig>(&config)) {
    values = {{"kind", "opensora"},
              {"chunk", opensora->micro_frame_size},
              {"shift", opensora->shift},
              {"scale", opensora->scale}};
  } else if (const auto* causal = std::get_if<models::OpenSoraCausalVaeConfig>(&config)) {
    values = {{"kind", "opensora_causal"},
              {"frames", causal->temporal_downsample},
              {"chunk", causal->micro_frame_size},
              {"shift", causal->shift},
              {"scale", causal->scale}};
  } else if (const auto* wan = std::get_if<models::WanVaeConfig>(&config)) {
    values = {{"kind", "wan"},
              {"frames", wan->temporal_downsample},
              {"patch", wan->patch_size},
              {"shift", wan->latents_mean},
              {"scale", wan->latents_std}};
  } else if (const auto* cogvideox = std::get_if<models::CogVideoXVaeConfig>(&config)) {
    values = {{"kind", "cogvideox"},
              {"groups", cogvideox->norm_num_groups},
              {"frames", cogvideox->temporal_compression_ratio},
              {"scale", cogvideox->scaling_factor}};
  } else if (const auto* ltx = std::get_if<models::LtxVaeConfig>(&config)) {
    values = {{"kind", "ltx"},
              {"causal", {ltx->encoder_causal, ltx->decoder_causal}},
              {"residual", ltx->upsample_residual},
              {"halvings", ltx->downsample_type},
              {"norm", ltx->resnet_norm_eps},
              {"patch", ltx->patch_size},
              {"factor", ltx->scaling_factor},
              {"shift", ltx->latents_mean},
              {"scale", ltx->latents_std}};
  } else {
    values = {{"kind", "video_dc_ae"},
              {"scale", std::get<models::VideoDcAeConfig>(config).scaling_factor}};
  }
  return values.dump();
}

}  // namespace kinora::pipelines
