#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Keys of published files of autoencoders, as the paths of our modules.
namespace kinora::models {

/// Of AutoencoderKl and AutoencoderVq, from diffusers' keys of today and of before 2023 (attention)
/// and from CompVis' (`encoder.down.0.block.0.conv1.weight`), which count the decoder's levels from
/// pixels: there are `num_levels`. Other keys stay as they are.
[[nodiscard]] std::string kl_path(std::string_view key, size_t num_levels);

/// The reverse: CompVis' key of our path.
[[nodiscard]] std::string compvis_kl_key(std::string_view path, size_t num_levels);

/// Whether the weight at a path is a linear layer of ours and a convolution of one place in
/// CompVis' files.
[[nodiscard]] bool is_kl_attention_weight(std::string_view path);

/// Of AutoencoderTiny, from the keys of TAESD's file of one half (`3.conv.0.weight`).
[[nodiscard]] std::string tiny_path(std::string_view key, bool is_decoder);

/// Of WanVae, from the keys of Wan 2.1's own file (`encoder.middle.0.residual.2.weight`), whose
/// decoder has four blocks a level. Nothing for other keys.
[[nodiscard]] std::optional<std::string> wan_vae_path(std::string_view key);

}  // namespace kinora::models
