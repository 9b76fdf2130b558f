#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/pipelines/pipeline.h"

/// Stable Diffusion 1, 2 and XL, and latent diffusion of classes or of nothing, in one file as
/// CompVis lays it out: the U-Net under model.diffusion_model, its averaged weights under
/// model_ema, the autoencoder under first_stage_model and the text encoder, or the classes'
/// vectors, under cond_stage_model, of XL several under conditioner. Training's own things beside
/// them are not read.
namespace kinora::pipelines {

/// find_pipeline() of such a file. Its tokenizer is not in it, but beside it as a folder's would be
/// (find_tokenizer), else expected in tokenizer/; one of classes has none. Nothing also for a file
/// that holds a configuration of Kinora, which says all that this would guess.
[[nodiscard]] std::optional<Pipeline> find_compvis_pipeline(const std::filesystem::path& path);

/// The keys of a recipe that the U-Net of such a file gives: its model and what it was trained on,
/// by names and shapes (models::find_compvis_unet) and, for what those do not tell, as published:
/// Stable Diffusion 1 predicts noise at 512 x 512 pixels, XL at 1024 x 1024, 2 velocity at 768 x
/// 768, latent diffusion noise at 256 x 256. "" for other paths.
[[nodiscard]] std::string compvis_recipe(const std::filesystem::path& path);

/// pipeline_recipe() of such a file: compvis_recipe() with how the published pipelines sample, and
/// the file's autoencoder, if it has one.
[[nodiscard]] std::string compvis_pipeline_recipe(const Pipeline& pipeline);

/// Leaves of such a file the U-Net alone, under our names, and others as they are. averaged: its
/// averaged weights, if it has them.
void take_compvis_unet(checkpoint::WeightsFile& file, bool averaged);

}  // namespace kinora::pipelines
