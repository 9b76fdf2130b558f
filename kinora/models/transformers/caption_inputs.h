#pragma once

#include "kinora/diffusion/denoiser.h"
#include "kinora/models/model_config.h"

/// What all transformers of captions are given.
namespace kinora::models {

/// kShape where x_t, t, the captions, their lengths or the frame mask do not fit together.
void check_caption_inputs(const ModelConfig& config, const at::Tensor& x_t, const at::Tensor& t,
                          const diffusion::Conditions& conditions);

/// Captions or their tokens, whichever the model takes.
[[nodiscard]] const at::Tensor& captions_of(const ModelConfig& config,
                                            const diffusion::Conditions& conditions);

/// How many tokens of each caption are read: int64 [B].
[[nodiscard]] at::Tensor caption_lengths(const ModelConfig& config,
                                         const diffusion::Conditions& conditions);

}  // namespace kinora::models
