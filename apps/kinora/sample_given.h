#pragma once

#include <filesystem>

#include "kinora/data/data_config.h"
#include "kinora/models/model_config.h"
#include "kinora/pipelines/clips.h"

namespace kinora::apps {

/// The reference of clips of `model`, and where its frames lie in them (see
/// pipelines::frame_places). `path`: an image, a strip of square frames, a folder of frames in the
/// order of their names, or for latents a safetensors file with latents [C, K, H, W] or [1, C, K,
/// H, W]. Images are cropped to the model's size. kConfig where the model takes no given frames;
/// kIo.
[[nodiscard]] pipelines::GivenFrames read_given(const std::filesystem::path& path,
                                                data::FrameLayout layout, const std::string& places,
                                                const models::ModelConfig& model);

/// kConfig unless some frames of the model's clips can be given.
void check_takes_given(const models::ModelConfig& model);

}  // namespace kinora::apps
