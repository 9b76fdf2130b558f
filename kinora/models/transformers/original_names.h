#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/nn/naming.h"

/// Keys of transformers in their authors' single files, as the paths of our modules.
/// Other programs put kModelPrefix before them.
namespace kinora::models {

inline constexpr const char* kModelPrefix = "model.diffusion_model.";

/// Stability AI's of Stable Diffusion 3: ours but for the norms of heads.
[[nodiscard]] nn::Naming original_sd3_naming(const ModelConfig& config);
/// Black Forest Labs' of Flux.
[[nodiscard]] nn::Naming original_flux_naming(const ModelConfig& config);
/// Open-Sora 2's: Flux', but queries, keys and values lie apart (fused_qkv off), and the first two
/// in the order of half-split rotary positions (use_liger_rope).
[[nodiscard]] nn::Naming original_open_sora2_naming(const ModelConfig& config);

/// Tencent's of HunyuanVideo.
[[nodiscard]] nn::Naming original_hunyuan_video_naming(const ModelConfig& config);

/// Wan's.
[[nodiscard]] nn::Naming original_wan_naming(const ModelConfig& config);

/// That of a file with these names; nothing if they are none of those. shape_of: of one of them.
[[nodiscard]] std::optional<nn::Naming> find_original_naming(
    const std::vector<std::string>& names,
    const std::function<std::vector<int64_t>(const std::string& name)>& shape_of);

}  // namespace kinora::models
