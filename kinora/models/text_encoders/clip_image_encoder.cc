#include "kinora/models/text_encoders/clip_image_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

// Shapes: B pictures, S pixels a side, P pixels a side of a patch, N patches, C width.

namespace kinora::models {
namespace {

constexpr double kPatchEmbeddingStd = 0.02;

nn::Parameter image_embedding(std::vector<int64_t> shape) {
  return {.shape = std::move(shape),
          .init = nn::Init::normal(kPatchEmbeddingStd),
          .value = {},
          .grad = {}};
}

int64_t num_patches(const ClipImageConfig& config) {
  KINORA_CHECK(config.patch_size <= config.image_size, kConfig,
               "[clip] patch_size must be at most image_size ", config.image_size, ", got ",
               config.patch_size);
  const int64_t side = config.image_size / config.patch_size;
  return side * side;
}

}  // namespace

ClipImageEncoder::ClipImageEncoder(const ClipImageConfig& config)
    : class_embedding(image_embedding({config.hidden_size})),
      patch_embedding(
          image_embedding({config.hidden_size, 3, config.patch_size, config.patch_size})),
      position_embedding(image_embedding({num_patches(config) + 1, config.hidden_size})),
      pre_layer_norm(config.hidden_size, config.layer_norm_eps),
      post_layer_norm(config.hidden_size, config.layer_norm_eps),
      config_(config) {
  const ClipBlockConfig block{.width = config.hidden_size,
                              .hidden = config.intermediate_size,
                              .num_blocks = config.num_hidden_layers,
                              .num_heads = config.num_attention_heads,
                              .activation = config.activation,
                              .layer_norm_eps = config.layer_norm_eps,
                              .causal = false};
  add_parameter("vision_model.embeddings.class_embedding", class_embedding);
  add_parameter("vision_model.embeddings.patch_embedding.weight", patch_embedding);
  add_parameter("vision_model.embeddings.position_embedding.weight", position_embedding);
  add_child("vision_model.pre_layrnorm", pre_layer_norm);  // as transformers spells it
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks.push_back(std::make_unique<ClipBlock>(block));
    blocks.back()->set_layer(i + 1);
    add_child("vision_model.encoder.layers." + std::to_string(i), *blocks.back());
  }
  add_child("vision_model.post_layernorm", post_layer_norm);
  if (config.projection_dim > 0) {
    visual_projection.emplace(config.hidden_size, config.projection_dim,
                              nn::Init::normal(clip_std(config.hidden_size)), false);
    add_child("visual_projection", *visual_projection);
  }
}

at::Tensor ClipImageEncoder::run(const at::Tensor& pixels, size_t num_blocks) const {
  const int64_t size = config_.image_size;
  KINORA_CHECK(
      pixels.dim() == 4 && pixels.size(1) == 3 && pixels.size(2) == size && pixels.size(3) == size,
      kShape, "[clip] pictures must have shape [B, 3, ", size, ", ", size, "], got ",
      pixels.sizes());
  const int64_t count = pixels.size(0);
  const at::Tensor filter =
      ops::with_gradient(patch_embedding.value, patch_embedding.grad).to(at::kFloat);
  const at::Tensor patches =
      at::conv2d(pixels, filter, {}, config_.patch_size).flatten(2).transpose(1, 2);  // [B, N, C]
  const at::Tensor first = ops::with_gradient(class_embedding.value, class_embedding.grad)
                               .to(at::kFloat)
                               .expand({count, 1, config_.hidden_size});
  const at::Tensor tokens =
      at::cat({first, patches}, 1) +
      ops::with_gradient(position_embedding.value, position_embedding.grad);  // [B, 1 + N, C]
  const int64_t length = tokens.size(1);
  const RaggedRows rows(std::vector<int64_t>(static_cast<size_t>(count), length), pixels.device(),
                        1);
  at::Tensor x = pre_layer_norm.forward(tokens.flatten(0, 1));  // fp32 [B * (1 + N), C]
  for (size_t i = 0; i < num_blocks; ++i) {
    x = blocks[i]->forward(x, rows);
  }
  return x.unflatten(0, {count, length});
}

at::Tensor ClipImageEncoder::states(const at::Tensor& pixels) const {
  return run(pixels, blocks.size() - 1);
}

at::Tensor ClipImageEncoder::forward(const at::Tensor& pixels) const {
  KINORA_CHECK(
      visual_projection, kConfig,
      "[clip] this image tower has no projection, so it gives no vector of a picture. Hint: "
      "a CLIPVisionModelWithProjection does");
  const at::Tensor of_class = post_layer_norm.forward(run(pixels, blocks.size()).select(1, 0));
  return tapped(visual_projection->forward(of_class).to(at::kFloat));
}

}  // namespace kinora::models
