#pragma once

#include <string>
#include <string_view>

/// Keys of published files of autoencoders, as the paths of our modules.
namespace kinora::models {

/// Of AutoencoderKl, from diffusers' keys of today and of before 2023 (attention) and from CompVis'
/// (`encoder.down.0.block.0.conv1.weight`), which count the decoder's levels from pixels: there
/// are `num_levels`. Other keys stay as they are.
[[nodiscard]] std::string kl_path(std::string_view key, size_t num_levels);

/// Of AutoencoderTiny, from the keys of TAESD's file of one half (`3.conv.0.weight`).
[[nodiscard]] std::string tiny_path(std::string_view key, bool is_decoder);

}  // namespace kinora::models
