#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kinora/pipelines/pipeline.h"

/// Open-Sora 2 as its hub has it, hpcai-tech/Open-Sora-v2: one folder with
/// Open_Sora_v2.safetensors, hunyuan_vae.safetensors, google/t5-v1_1-xxl/ and
/// openai/clip-vit-large-patch14/. In the form of high compression the first two are
/// Open_Sora_v2_Video_DC_AE.safetensors and F32T4C128_AE.safetensors.
namespace kinora::pipelines {

/// find_pipeline() of such a folder, or of the transformer's file in it, which chooses where there
/// are both.
[[nodiscard]] std::optional<Pipeline> find_open_sora2(const std::filesystem::path& path);

/// pipeline_recipe() of it: the transformer by the shapes of its weights; size, flow, steps and
/// guidance are those of Open-Sora's configs/diffusion/inference (256px.py, high_compression.py).
/// kConfig for heads that cannot have rotary axes like the published ones.
[[nodiscard]] std::string open_sora2_recipe(const Pipeline& pipeline);

}  // namespace kinora::pipelines
