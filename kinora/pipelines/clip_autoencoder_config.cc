#include "kinora/pipelines/clip_autoencoder_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "kinora/core/error.h"

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

/// What a config may say that has only one meaning here.
template <typename T>
void expect(const json& config, const char* key, const T& value) {
  T got = value;
  read(config, key, &got);
  KINORA_CHECK(got == value, kConfig, "[autoencoder] ", key, " must be ", json(value).dump(),
               " in config.json, got ", json(got).dump());
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

models::OpenSoraVaeConfig opensora_config(const json& config) {
  models::OpenSoraVaeConfig result;
  read(config, "micro_frame_size", &result.micro_frame_size);
  read(config, "shift", &result.shift);
  read(config, "scale", &result.scale);
  expect(config.value("vae_2d", json::object()), "type", std::string("VideoAutoencoderKL"));
  expect(config.value("vae_temporal", json::object()), "type", std::string("VAE_Temporal_SD"));
  return result;
}

models::VideoDcAeConfig dc_ae_config(const json& config) {
  models::VideoDcAeConfig result;
  read(config, "scaling_factor", &result.scaling_factor);
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
  if (has("encoder.conv_in.conv.weight")) {
    return hunyuan_config(parsed);
  }
  return std::nullopt;
}

std::string clip_autoencoder_path(const std::string& name) {
  // Open-Sora 1.2 stores what config.json says, too; HunyuanVideo's own files begin with "vae.".
  if (name == "scale" || name == "shift") {
    return "";
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
  } else {
    values = {{"kind", "video_dc_ae"},
              {"scale", std::get<models::VideoDcAeConfig>(config).scaling_factor}};
  }
  return values.dump();
}

}  // namespace kinora::pipelines
