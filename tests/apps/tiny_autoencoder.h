#pragma once

#include <filesystem>
#include <string>

#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "tests/apps/files.h"
#include "tests/models/formula_file.h"

namespace kinora::apps {

/// A small AutoencoderKL of diffusers' form in `folder`: latents of 4 channels, two pixels a cell.
inline void write_tiny_autoencoder(const std::filesystem::path& folder, double scaling_factor) {
  models::AutoencoderKl model({.block_out_channels = {32, 32}, .layers_per_block = 1});
  std::filesystem::create_directories(folder);
  models::write_tensors(folder / "diffusion_pytorch_model.safetensors",
                        models::formula_weights(model));
  write_text(folder / "config.json",
             R"({"_class_name": "AutoencoderKL", "block_out_channels": [32, 32],
                 "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 32,
                 "scaling_factor": )" +
                 std::to_string(scaling_factor) + "}");
}

}  // namespace kinora::apps
