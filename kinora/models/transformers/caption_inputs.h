#pragma once

#include <optional>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/models/model_config.h"
#include "kinora/models/transformers/caption_encoder.h"

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

/// The captions' states, those of `encoder` where the model has one; null_text [L, width] for
/// captions that are null: [B, L, width]. prepared: may have them (prepared_states). kShape.
[[nodiscard]] at::Tensor caption_states(const ModelConfig& config,
                                        const std::optional<CaptionEncoder>& encoder,
                                        const at::Tensor& null_text,
                                        const diffusion::Conditions& conditions,
                                        const diffusion::Prepared& prepared = {});
/// Those that `encoder` makes, for diffusion::Prepared::of_texts: they are the same at all times.
/// Nothing where there is none, something is missing, or they are too large to be kept.
[[nodiscard]] std::vector<at::Tensor> prepared_states(const ModelConfig& config,
                                                      const std::optional<CaptionEncoder>& encoder,
                                                      const at::Tensor& null_text,
                                                      const diffusion::Conditions& conditions);
/// How many tokens of each caption blocks with a text stream attend to: int64 [B]; undefined: all,
/// padding too.
[[nodiscard]] at::Tensor read_lengths(const ModelConfig& config,
                                      const diffusion::Conditions& conditions);

/// x_t with what the model is shown beside it (channels_beside()). kShape.
[[nodiscard]] at::Tensor with_shown(const ModelConfig& config, const at::Tensor& x_t,
                                    const diffusion::Conditions& conditions);

}  // namespace kinora::models
