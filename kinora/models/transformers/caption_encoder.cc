#include "kinora/models/transformers/caption_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>

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

/// Which of `length` places are within the texts, bool [B, length].
at::Tensor places_within(const at::Tensor& lengths, int64_t length) {
  return at::arange(length, lengths.options()) < lengths.unsqueeze(1);
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
  return encode_padded(tokens, places_within(lengths, length),
                       buckets_.narrow(0, longest - length, 2 * length - 1));
}

at::Tensor CaptionEncoder::pool_captions(const at::Tensor& tokens,
                                         const at::Tensor& lengths) const {
  const at::Tensor states = embed_captions(tokens, lengths);
  const at::Tensor sums =
      at::where(places_within(lengths, tokens.size(1)).unsqueeze(2), states, 0.0).sum(1);
  return sums / lengths.unsqueeze(1);
}

double CaptionEncoder::macs(const ModelConfig& config) {
  const TextEncoderSize& size = config.text_encoder;
  const auto length = static_cast<double>(config.text_tokens);
  const auto width = static_cast<double>(size.width);
  const double attention = length * (4.0 * width * width + 2.0 * length * width);
  const double mlp = 2.0 * length * width * static_cast<double>(size.mlp);
  return static_cast<double>(size.layers) * (attention + mlp);
}

void CaptionEncoder::to_device(const at::Device& device) {
  buckets_ = buckets_.to(device);
}

}  // namespace kinora::models
