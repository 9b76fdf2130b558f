#include "kinora/models/transformers/caption_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

T5Config t5_config(const TextEncoderSize& size) {
  T5Config config;
  config.vocab_size = size.vocab;
  config.d_model = size.width;
  config.d_kv = size.width / size.heads;
  config.d_ff = size.mlp;
  config.num_layers = size.layers;
  config.num_heads = size.heads;
  return config;
}

}  // namespace

CaptionEncoder::CaptionEncoder(const ModelConfig& config)
    : T5Encoder(t5_config(config.text_encoder)),
      buckets_(t5_distance_buckets(T5Encoder::config(), config.text_tokens)) {
  for (const auto& [path, parameter] : named_parameters()) {
    parameter->fp32_island = true;
  }
  set_layer(0);  // it lies before the blocks
}

at::Tensor CaptionEncoder::embed_captions(const at::Tensor& tokens,
                                          const at::Tensor& lengths) const {
  const int64_t length = tokens.size(1);
  const int64_t longest = buckets_.size(0) / 2 + 1;
  KINORA_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong && length <= longest, kShape,
               "[model] tokens must be int64 [B, up to ", longest, "], got ", tokens.scalar_type(),
               " ", tokens.sizes());
  const at::Tensor valid = at::arange(length, lengths.options()) < lengths.unsqueeze(1);  // [B, L]
  return encode_padded(tokens, valid, buckets_.narrow(0, longest - length, 2 * length - 1));
}

void CaptionEncoder::to_device(const at::Device& device) {
  buckets_ = buckets_.to(device);
}

}  // namespace kinora::models
