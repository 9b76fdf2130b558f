#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/autoencoders/cogvideox_vae.h"
#include "kinora/models/autoencoders/hunyuan_vae.h"
#include "kinora/models/autoencoders/ltx_vae.h"
#include "kinora/models/autoencoders/opensora_causal_vae.h"
#include "kinora/models/autoencoders/opensora_vae.h"
#include "kinora/models/autoencoders/video_dc_ae.h"
#include "kinora/models/autoencoders/wan_vae.h"

namespace kinora::pipelines {

/// How an autoencoder of clips is built.
using ClipAutoencoderConfig =
    std::variant<models::HunyuanVaeConfig, models::OpenSoraVaeConfig,
                 models::OpenSoraCausalVaeConfig, models::VideoDcAeConfig, models::WanVaeConfig,
                 models::CogVideoXVaeConfig, models::LtxVaeConfig>;

/// That of a file whose weights have such names: HunyuanVideo's, those of Open-Sora 1.2, 1.3 and 2,
/// Wan 2.1's, CogVideoX', LTX-Video's.
/// Sizes are what `config`, the text of the config.json beside it, says, and the published ones
/// without ("" or a missing key). Nothing where the names are of no such kind. kIo: the config is
/// no JSON object; kConfig: it asks for what is not there.
[[nodiscard]] std::optional<ClipAutoencoderConfig> clip_autoencoder_config(
    const std::string& config, const std::vector<std::string>& names);

/// The tensors in such a file, one value a channel, that are a part of how it is built and scaled
/// (LTX-Video's latents_mean and latents_std), each with where its values belong; [] for others.
[[nodiscard]] std::vector<std::pair<std::string, std::vector<double>*>> statistics_of(
    ClipAutoencoderConfig& config);

/// What a name in such a file is called in the model; "" for what is no parameter of it.
[[nodiscard]] std::string clip_autoencoder_path(const std::string& name);

/// Parameters have no values yet.
[[nodiscard]] std::unique_ptr<models::Autoencoder> make_autoencoder(
    const ClipAutoencoderConfig& config);

/// All that decides what it computes but for the weights and their shapes, on one line.
[[nodiscard]] std::string describe(const ClipAutoencoderConfig& config);

}  // namespace kinora::pipelines
