#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/nn/naming.h"

/// What the files of others call the tensors of a U-Net.
namespace kinora::models {

/// The weight of a U-Net of classes that are a token (UnetClasses::kToken): [classes + 1, D]. Files
/// of diffusers have no name for it, since its U-Net is given the token.
inline constexpr const char* kClassToken = "class_token.weight";

/// DiffusersFamily::naming: ours, in some files with other dims.
[[nodiscard]] nn::Naming unet_naming(const ModelConfig& config);

/// Of ControlNet number `control` beside it: ControlNetModel's names.
[[nodiscard]] nn::Naming control_naming(const ModelConfig& config, int64_t control);

/// What the tensors of ControlNet number `control` begin with: "controlnets.0.".
[[nodiscard]] std::string control_prefix(int64_t control);

/// DiffusersFamily::find_naming.
[[nodiscard]] std::optional<nn::Naming> find_unet_naming(const std::vector<std::string>& names);

/// What stands before a U-Net's keys in CompVis' files, those of latent diffusion, Stable Diffusion
/// 1 and 2 and SDXL.
inline constexpr const char* kCompvisUnet = "model.diffusion_model.";

/// Whether a model of such a file is of latent diffusion's first cin256: it was trained with a
/// vector for each of ImageNet's 1,000 classes and none for the null class, for which the last one
/// stands here.
[[nodiscard]] bool is_without_null_class(const ModelConfig& config);

/// The vocabulary of the text encoder beside it in latent diffusion's files of captions and layouts
/// (LdmBertEncoder): [words, D].
inline constexpr const char* kCompvisWords = "cond_stage_model.transformer.token_emb.weight";

/// The names there, such as model.diffusion_model.input_blocks.1.0.in_layers.0.weight. A class'
/// token is beside them, cond_stage_model.embedding.weight.
[[nodiscard]] nn::Naming compvis_unet_naming(const ModelConfig& config);

/// The same for a file with these names, of which those that no U-Net here has stay as they are;
/// nothing where it has no such U-Net. averaged: the names of the averaged weights (model_ema.*)
/// instead, where it has some. shape_of: of a tensor.
[[nodiscard]] std::optional<nn::Naming> find_compvis_unet_naming(
    const std::vector<std::string>& names,
    const std::function<std::vector<int64_t>(const std::string& name)>& shape_of, bool averaged);

/// The model of such a file as names and shapes tell it; nothing where it has no such U-Net. What
/// they do not tell is as published: attention without linears around it (Stable Diffusion 1) has 8
/// heads, with them (2) heads of 64 channels, to places alone heads of 32 (with residual blocks
/// that change sizes, as lsun_churches256 has, 8 heads), and so beside kCompvisWords, but of 4
/// channels in (text2img-large) 8 heads, and where is_without_null_class(); all norms have 32
/// groups. Of the size that it draws
/// nothing is said. kIo for tensors that are missing or of another rank, kConfig for U-Nets that
/// Kinora lacks. where: the file, for errors.
[[nodiscard]] std::optional<ModelConfig> find_compvis_unet(
    const std::map<std::string, std::vector<int64_t>>& shapes, const std::string& where);

}  // namespace kinora::models
