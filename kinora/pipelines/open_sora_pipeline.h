#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kinora/pipelines/pipeline.h"

/// Open-Sora 1.0 to 1.3 as their hub has them: a folder of the transformer with config.json
/// (model_type STDiT2 or STDiT3, the latter of 1.3 with kernel_size) and weights, of 1.0 a file
/// OpenSora-v1-*.pth or config.json (STDiT); and folders of the autoencoder and of T5. One folder
/// with transformer/, vae/ and text_encoder/ holds all three; or the others are named apart.
namespace kinora::pipelines {

/// find_pipeline() of such a folder, or of the transformer's alone, beside which or in which vae/
/// and text_encoder/ lie.
[[nodiscard]] std::optional<Pipeline> find_open_sora(const std::filesystem::path& path);

/// pipeline_recipe() of it: the transformer of config.json, of the size that Open-Sora's own
/// inference draws by default; its rectified flow whose times are shifted by the clip's size, of
/// 1.1 its chain of noises; steps and guidance likewise. kConfig for what Kinora's models lack.
[[nodiscard]] std::string open_sora_recipe(const Pipeline& pipeline);

}  // namespace kinora::pipelines
