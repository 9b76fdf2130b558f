#include "kinora/models/transformers/caption_inputs.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/grid.h"

namespace kinora::models {

void check_caption_inputs(const ModelConfig& config, const at::Tensor& x_t, const at::Tensor& t,
                          const diffusion::Conditions& conditions) {
  const Grid grid = grid_of(config, x_t);
  const int64_t batch = x_t.size(0);
  KINORA_CHECK(t.dim() == 1 && t.size(0) == batch && t.scalar_type() == at::kFloat, kShape,
               "[model] t must be float32 [", batch, "], got ", t.scalar_type(), " ", t.sizes());
  if (config.text_encoder.any()) {
    KINORA_CHECK(conditions.tokens.defined() && conditions.tokens.size(0) == batch &&
                     conditions.text_lengths.defined(),
                 kShape, "[model] ", config.name,
                 " has a text encoder and needs tokens and text_lengths, [", batch, ", L] and [",
                 batch, "]");
  } else {
    KINORA_CHECK(conditions.text.defined() && conditions.text.size(0) == batch, kShape, "[model] ",
                 config.name, " needs text, [", batch, ", L, ", config.text_channels, "]");
  }
  const at::Tensor& lengths = conditions.text_lengths;
  KINORA_CHECK(!lengths.defined() || (lengths.dim() == 1 && lengths.size(0) == batch), kShape,
               "[model] text_lengths must be int64 [", batch, "], got ", lengths.sizes());
  const at::Tensor& null = conditions.null_text;
  KINORA_CHECK(!null.defined() ||
                   (null.dim() == 1 && null.size(0) == batch && null.scalar_type() == at::kBool),
               kShape, "[model] null_text must be bool [", batch, "], got ", null.scalar_type(),
               " ", null.sizes());
  const at::Tensor& mask = conditions.frame_mask;
  KINORA_CHECK(!mask.defined() || (mask.dim() == 2 && mask.size(0) == batch &&
                                   mask.size(1) == grid.frames && mask.scalar_type() == at::kBool),
               kShape, "[model] frame_mask must be bool [", batch, ", ", grid.frames, "], got ",
               mask.scalar_type(), " ", mask.sizes());
}

const at::Tensor& captions_of(const ModelConfig& config, const diffusion::Conditions& conditions) {
  return config.text_encoder.any() ? conditions.tokens : conditions.text;
}

at::Tensor caption_lengths(const ModelConfig& config, const diffusion::Conditions& conditions) {
  const at::Tensor& given = captions_of(config, conditions);
  const at::Tensor& lengths = conditions.text_lengths;
  return lengths.defined()
             ? lengths.clamp(0, given.size(1))
             : at::full({given.size(0)}, given.size(1), given.options().dtype(at::kLong));
}

at::Tensor caption_states(const ModelConfig& config, const std::optional<CaptionEncoder>& encoder,
                          const at::Tensor& null_text, const diffusion::Conditions& conditions,
                          const diffusion::Prepared& prepared) {
  if (!prepared.of_texts.empty()) {
    return prepared.of_texts[0];
  }
  at::Tensor text = encoder ? encoder->embed_captions(conditions.tokens, conditions.text_lengths)
                            : conditions.text;
  KINORA_CHECK(
      text.dim() == 3 && text.size(1) <= config.text_tokens && text.size(2) == config.text_channels,
      kShape, "[model] text must have shape [B, up to ", config.text_tokens, ", ",
      config.text_channels, "], got ", text.sizes());
  if (const at::Tensor& null = conditions.null_text; null.defined()) {
    text =
        at::where(null.view({-1, 1, 1}), null_text.narrow(0, 0, text.size(1)), text.to(at::kFloat));
  }
  return text;
}

std::vector<at::Tensor> prepared_states(const ModelConfig& config,
                                        const std::optional<CaptionEncoder>& encoder,
                                        const at::Tensor& null_text,
                                        const diffusion::Conditions& conditions) {
  if (!encoder || !conditions.tokens.defined() || !conditions.text_lengths.defined() ||
      conditions.tokens.numel() * config.text_channels * static_cast<int64_t>(sizeof(float)) >
          diffusion::Prepared::kMaxBytes) {
    return {};
  }
  return {caption_states(config, encoder, null_text, conditions)};
}

at::Tensor read_lengths(const ModelConfig& config, const diffusion::Conditions& conditions) {
  if (pads_captions(config)) {
    return {};
  }
  const at::Tensor lengths = caption_lengths(config, conditions);
  // An empty caption is one token.
  return conditions.null_text.defined() && !config.text_encoder.any()
             ? at::where(conditions.null_text, 1, lengths)
             : lengths;
}

at::Tensor with_shown(const ModelConfig& config, const at::Tensor& x_t,
                      const diffusion::Conditions& conditions) {
  const int64_t channels = channels_beside(config);
  if (channels == 0) {
    return x_t;
  }
  const at::Tensor& beside = conditions.beside;
  KINORA_CHECK(beside.defined() && beside.dim() == x_t.dim() && beside.size(0) == x_t.size(0) &&
                   beside.size(1) == channels && beside.sizes().slice(2) == x_t.sizes().slice(2),
               kShape, "[model] what is shown beside x_t of shape ", x_t.sizes(), " must have ",
               channels, " channels, those of given frames or pictures; got shape ",
               beside.defined() ? beside.sizes() : at::IntArrayRef());
  return at::cat({x_t, beside}, 1);
}

}  // namespace kinora::models
