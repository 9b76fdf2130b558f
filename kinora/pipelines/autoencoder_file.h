#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "kinora/models/autoencoders/autoencoder.h"

namespace kinora::pipelines {

/// An autoencoder with its weights, which require no gradients, on `device` in `type` (kFloat,
/// kBFloat16 or kHalf; a config that says force_upcast makes fp32 of fp16). `path` is one of
///   - a folder of diffusers with config.json and diffusion_pytorch_model.safetensors (or .bin), or
///     one that has it in vae/ or vqvae/: AutoencoderKL, AutoencoderTiny, AutoencoderDC, VQModel;
///   - a file of an AutoencoderKL or VQModel with CompVis' or diffusers' keys, or a whole
///     checkpoint of Stable Diffusion or latent diffusion, whose other parts are not read;
///   - a file of TAESD, X_encoder.Y or X_decoder.Y, the other one beside it;
///   - a file of an autoencoder of clips (clip_autoencoder_config.h), or a folder of it with its
///     config.json and model.safetensors (Open-Sora 1.2, 1.3) or pytorch_model.pt (HunyuanVideo).
/// Every tensor of the autoencoder must be there, of the right shape, and no other: kIo, listing
/// what is not so. kConfig for architectures that are not known, by name.
[[nodiscard]] std::unique_ptr<models::Autoencoder> open_autoencoder(
    const std::filesystem::path& path, at::Device device, at::ScalarType type);

/// The bytes of its weights. Reads none.
[[nodiscard]] int64_t autoencoder_bytes(const std::filesystem::path& path, at::ScalarType type);

/// The latents of the autoencoder that open_autoencoder() makes of `path`. Reads no weights.
[[nodiscard]] models::LatentSpace latent_space(const std::filesystem::path& path);

/// Names the autoencoder that open_autoencoder() makes of `path`: checksum of its weights and how
/// it is built and scaled. The same for the same numbers under other keys.
[[nodiscard]] std::string fingerprint(const std::filesystem::path& path);

}  // namespace kinora::pipelines
