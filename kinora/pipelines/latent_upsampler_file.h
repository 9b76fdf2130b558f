#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>

#include "kinora/models/autoencoders/latent_upsampler.h"

namespace kinora::pipelines {

/// How the spatial upscaler of LTX-Video in `path` is built: a folder of diffusers'
/// LTXLatentUpsamplerModel, or of an LTXLatentUpsamplePipeline, which has it in latent_upsampler/.
/// Reads no weights. kIo for what is no such folder; kConfig for one that makes more frames.
[[nodiscard]] models::LatentUpsamplerConfig latent_upsampler_config(
    const std::filesystem::path& path);

/// The same with its weights, frozen, in fp32. Names and shapes are compared before any weight is
/// read: kIo.
[[nodiscard]] std::unique_ptr<models::LatentUpsampler> open_latent_upsampler(
    const std::filesystem::path& path, at::Device device);

}  // namespace kinora::pipelines
