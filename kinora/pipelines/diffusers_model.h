#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/models/model_config.h"

/// The transformers and U-Nets in the folders of diffusers.
namespace kinora::pipelines {

/// A model's weights under our names, whether the file has those, diffusers' or, of a U-Net beside
/// other parts, CompVis'.
[[nodiscard]] checkpoint::WeightsFile open_weights(const std::filesystem::path& path,
                                                   bool averaged = true);

/// The keys of a recipe that a folder of diffusers gives, from transformer/config.json,
/// unet/config.json or its own and from the pipeline's scheduler, if it has one; "" for other
/// paths. kConfig for a model or scheduler that Kinora lacks, kIo for a file that is none.
[[nodiscard]] std::string diffusers_recipe(const std::filesystem::path& path);

/// The scheduler's file of a model's folder, in the pipeline around it or, where the pipeline's
/// parts all lie together, in it.
[[nodiscard]] std::filesystem::path scheduler_of(const std::filesystem::path& folder);

/// The pipeline that write_diffusers() makes of a model, with its autoencoder where it draws
/// latents: DiTPipeline, and of U-Nets that are told nothing LDMPipeline or DDIMPipeline; "": none.
[[nodiscard]] std::string pipeline_of(const models::ModelConfig& model);
/// The folder in which that pipeline's autoencoder lies: vae or vqvae.
[[nodiscard]] std::string autoencoder_folder(const models::ModelConfig& model);

/// Writes `tensors`, of our names, into a folder that diffusers opens: transformer/ or unet/, for
/// pipeline_of() also the objective's scheduler and model_index.json. What diffusers has no name
/// for lies beside its file (checkpoint::kBesideDiffusers). kConfig for models that diffusers
/// cannot describe.
void write_diffusers(const std::filesystem::path& folder, checkpoint::LateTensors tensors,
                     const models::ModelConfig& model, const diffusion::ObjectiveConfig& objective,
                     const checkpoint::OutputOptions& options);

}  // namespace kinora::pipelines
