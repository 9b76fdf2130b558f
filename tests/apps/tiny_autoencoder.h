#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "tests/apps/files.h"
#include "tests/models/formula_values.h"

namespace kinora::apps {

/// A small AutoencoderKL of diffusers' form in `folder`: latents of 4 channels, two pixels a cell.
inline void write_tiny_autoencoder(const std::filesystem::path& folder, double scaling_factor) {
  models::AutoencoderKl model({.block_out_channels = {32, 32}, .layers_per_block = 1});
  std::vector<at::Tensor> values;
  std::vector<io::SafetensorsTensor> tensors;
  for (const auto& [path, parameter] : model.named_parameters()) {
    values.push_back(models::formula_weight(path, parameter->shape));
    tensors.push_back({.name = path,
                       .dtype = DType::kF32,
                       .shape = parameter->shape,
                       .data = device::bytes_of(values.back())});
  }
  std::filesystem::create_directories(folder);
  io::write_safetensors(folder / "diffusion_pytorch_model.safetensors", tensors);
  write_text(folder / "config.json",
             R"({"_class_name": "AutoencoderKL", "block_out_channels": [32, 32],
                 "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 32,
                 "scaling_factor": )" +
                 std::to_string(scaling_factor) + "}");
}

}  // namespace kinora::apps
