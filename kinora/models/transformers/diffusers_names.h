#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/nn/naming.h"

/// Keys of diffusers' transformers, as the paths of our modules.
namespace kinora::models {

// All classes, the first two once Transformer2DModel, keep queries, keys and values apart.

/// DiTTransformer2DModel, of which every block repeats the embedders.
[[nodiscard]] nn::Naming dit_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_dit_naming(const std::vector<std::string>& names);

/// PixArtTransformer2DModel.
[[nodiscard]] nn::Naming pixart_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_pixart_naming(const std::vector<std::string>& names);

/// LatteTransformer3DModel.
[[nodiscard]] nn::Naming latte_t2v_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_latte_t2v_naming(
    const std::vector<std::string>& names);

/// SD3Transformer2DModel, FluxTransformer2DModel and HunyuanVideoTransformer3DModel.
[[nodiscard]] nn::Naming mmdit_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_sd3_naming(const std::vector<std::string>& names);
[[nodiscard]] std::optional<nn::Naming> find_flux_naming(const std::vector<std::string>& names);
[[nodiscard]] std::optional<nn::Naming> find_hunyuan_video_naming(
    const std::vector<std::string>& names);

/// CogVideoXTransformer3DModel.
[[nodiscard]] nn::Naming cogvideox_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_cogvideox_naming(
    const std::vector<std::string>& names);

/// WanTransformer3DModel.
[[nodiscard]] nn::Naming wan_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_wan_naming(const std::vector<std::string>& names);
/// A naming of Wan's of files whose tables have a batch dim before the others.
[[nodiscard]] nn::Naming with_batched_tables(nn::Naming naming, const ModelConfig& config);

/// LTXVideoTransformer3DModel.
[[nodiscard]] nn::Naming ltx_video_naming(const ModelConfig& config);
[[nodiscard]] std::optional<nn::Naming> find_ltx_video_naming(
    const std::vector<std::string>& names);

/// Of a model's family; kConfig for one that diffusers lacks.
[[nodiscard]] nn::Naming diffusers_naming(const ModelConfig& config);

/// The same for a file with these names; nothing if they are not diffusers'.
[[nodiscard]] std::optional<nn::Naming> find_diffusers_naming(
    const std::vector<std::string>& names);

}  // namespace kinora::models
