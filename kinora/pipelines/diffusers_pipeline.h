#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kinora/pipelines/pipeline.h"

/// The pipelines in the folders of diffusers: DiTPipeline, LDMPipeline, DDIMPipeline, DDPMPipeline,
/// PixArtAlphaPipeline, PixArtSigmaPipeline, LattePipeline, FluxPipeline, FluxFillPipeline,
/// FluxKontextPipeline, StableDiffusion3Pipeline, and of Stable Diffusion 1, 2 and XL
/// StableDiffusionPipeline, StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline,
/// StableDiffusionControlNetPipeline, StableDiffusionInstructPix2PixPipeline,
/// StableDiffusionXLPipeline, StableDiffusionXLImg2ImgPipeline and
/// StableDiffusionXLControlNetPipeline.
namespace kinora::pipelines {

/// find_pipeline() of model_index.json.
[[nodiscard]] std::optional<Pipeline> find_diffusers_pipeline(const std::filesystem::path& path);

/// pipeline_recipe() of such a pipeline: diffusers_recipe() of its transformer, the scheduler's
/// sampling (sampling_recipe), the steps and guidance that diffusers takes, its autoencoder, and
/// the names of its classes (id2label).
[[nodiscard]] std::string diffusers_pipeline_recipe(const Pipeline& pipeline);

}  // namespace kinora::pipelines
