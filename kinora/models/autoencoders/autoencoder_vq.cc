#include "kinora/models/autoencoders/autoencoder_vq.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

constexpr int64_t kDistanceBytes = int64_t{64} << 20;

const AutoencoderVqConfig& checked(const AutoencoderVqConfig& config) {
  KINORA_CHECK(config.num_vq_embeddings > 0 && config.vq_embed_dim > 0, kConfig,
               "[autoencoder] a codebook must have codes of numbers, got ",
               config.num_vq_embeddings, " codes of ", config.vq_embed_dim);
  return config;
}

}  // namespace

Codebook::Codebook(int64_t num_codes, int64_t channels)
    : weight{.shape = {num_codes, channels},
             .init = {nn::Init::Kind::kUniform, 1.0 / static_cast<double>(num_codes)},
             .value = {},
             .grad = {}} {
  add_parameter("weight", weight);
}

at::Tensor Codebook::nearest(const at::Tensor& z, int64_t bytes) const {
  const auto type = c10::promoteTypes(z.scalar_type(), at::kFloat);
  const at::Tensor codes = weight.value.detach().to(type);
  const at::Tensor norms = codes.square().sum(1);  // |e|^2
  const at::Tensor vectors =
      z.detach().to(type).permute({0, 2, 3, 1}).reshape({-1, z.size(1)});  // [B h w, C]
  const int64_t row_bytes = codes.size(0) * codes.element_size();
  const int64_t rows = std::max<int64_t>((bytes > 0 ? bytes : kDistanceBytes) / row_bytes, 1);
  std::vector<at::Tensor> numbers;
  for (int64_t begin = 0; begin < vectors.size(0); begin += rows) {
    const at::Tensor some = vectors.narrow(0, begin, std::min(rows, vectors.size(0) - begin));
    // |z - e|^2 without |z|^2, which is the same for all codes
    numbers.push_back(at::addmm(norms, some, codes.t(), 1.0, -2.0).argmin(1));
  }
  return at::cat(numbers).view({z.size(0), z.size(2), z.size(3)});
}

at::Tensor Codebook::codes(const at::Tensor& numbers) const {
  return at::embedding(weight.value.detach(), numbers).permute({0, 3, 1, 2});
}

AutoencoderVq::AutoencoderVq(const AutoencoderVqConfig& config)
    : ImageAutoencoder(kl_space(config.halves, checked(config).vq_embed_dim)),
      encoder(config.halves, KlHalf::Kind::kEncoder, config.halves.latent_channels),
      decoder(config.halves, KlHalf::Kind::kDecoder, config.halves.in_channels),
      codebook(config.num_vq_embeddings, config.vq_embed_dim),
      quant_conv(nn::ConvShape::same(config.halves.latent_channels, config.vq_embed_dim, 1)),
      post_quant_conv(nn::ConvShape::same(config.vq_embed_dim, config.halves.latent_channels, 1)) {
  add_child("encoder", encoder);
  add_child("decoder", decoder);
  add_child("quantize.embedding", codebook);
  add_child("quant_conv", quant_conv);
  add_child("post_quant_conv", post_quant_conv);
}

LatentMoments AutoencoderVq::encode_images(const at::Tensor& pixels) {
  return {.mean = quant_conv.forward(encoder.run(pixels, limits())), .std = {}};
}

at::Tensor AutoencoderVq::decode_images(const at::Tensor& raw) {
  at::Tensor codes = raw;
  if (quantises_) {
    codes = codebook.codes(codebook.nearest(raw, limits().bytes)).to(raw.scalar_type());
    if (raw.requires_grad()) {
      codes = raw + (codes - raw).detach();
    }
  }
  return decoder.run(post_quant_conv.forward(codes), limits());
}

}  // namespace kinora::models
