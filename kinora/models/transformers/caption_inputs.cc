#include "kinora/models/transformers/caption_inputs.h"

#include <ATen/ops/full.h>

#include "kinora/core/error.h"
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

}  // namespace kinora::models
