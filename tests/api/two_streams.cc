#include "tests/api/two_streams.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "kinora/models/families.h"
#include "kinora/models/run_block.h"
#include "kinora/models/transformers/caption_encoder.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/models/transformers/video_layers.h"
#include "kinora/ops/patches.h"

// Shapes: B batch, L text tokens, N image tokens, C hidden, H heads, D = C / H.

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

/// What a block does to one stream x [B, 1, L or N, C]. m: of `modulation`.
struct Stream : nn::Module {
  Stream(const TransformerConfig& c, bool goes_on)
      : modulation(c.hidden, goes_on ? 6 : 2, false),
        qkv(c.hidden, 3 * c.hidden, nn::Init::normal(0.02)) {
    add_child("modulation", modulation);
    add_child("qkv", qkv);
    if (goes_on) {
      add_child("proj", proj.emplace(c.hidden, c.hidden, nn::Init::normal(0.02)));
      add_child("mlp", mlp.emplace(c.hidden, c.mlp_hidden(), c.hidden));
    }
  }
  [[nodiscard]] at::Tensor project(const at::Tensor& x, const Tensors& m) const {
    return qkv.forward(modulated_norm(x, m[0], m[1])).squeeze(1);
  }
  [[nodiscard]] at::Tensor finish(const at::Tensor& x, const Tensors& m,
                                  const at::Tensor& attended) const {
    const at::Tensor y = gated_sum(x, m[2], proj->forward(attended));
    return tapped(gated_sum(y, m[5], mlp->forward(modulated_norm(y, m[3], m[4]))));
  }
  Modulation modulation;
  nn::Linear qkv;
  std::optional<nn::Linear> proj;
  std::optional<nn::Mlp> mlp;  // neither in the last block's text, which nothing reads
};

struct Block : nn::Module {
  Block(const TransformerConfig& c, int64_t i)
      : heads(c.heads), text(c, i + 1 < c.depth), image(c, true) {
    add_child("text", text);
    add_child("image", image);
  }
  /// in: text, image, the time [B, C], which tokens are read (bool [B, 1, 1, L + N]).
  [[nodiscard]] Tensors forward(const Tensors& in) const {
    const Tensors m_text = text.modulation.forward(in[2]);
    const Tensors m_image = image.modulation.forward(in[2]);
    const Tensors qkv = at::cat({text.project(in[0], m_text), image.project(in[1], m_image)}, 1)
                            .unflatten(-1, {3, heads, -1})
                            .permute({2, 0, 3, 1, 4})  // [3, B, H, L + N, D]
                            .unbind(0);
    const Tensors attended = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], in[3])
                                 .transpose(1, 2)
                                 .flatten(2)
                                 .unsqueeze(1)
                                 .split_with_sizes({in[0].size(2), in[1].size(2)}, 2);
    const at::Tensor x = image.finish(in[1], m_image, attended[1]);
    return text.mlp ? Tensors{text.finish(in[0], m_text, attended[0]), x} : Tensors{x};
  }
  int64_t heads;
  Stream text;
  Stream image;
};

struct TwoStreams : BlockModel {
  explicit TwoStreams(const ModelConfig& c)
      : BlockModel(c),
        x_embedder(c, 2),
        t_embedder(c.transformer.hidden, c.time_scale),
        text_encoder(c),
        y_embedder(c),
        pos_embed(
            sin_cos_position_embedding(c.transformer.hidden, grid_of(c).rows, grid_of(c).columns)),
        blocks(c.transformer),
        final_layer(c) {
    add_child("x_embedder", x_embedder);
    add_child("t_embedder", t_embedder);
    add_child("text_encoder", text_encoder);
    add_child("y_embedder", y_embedder);
    add_buffer("pos_embed", pos_embed);
    add_child("blocks", blocks);
    add_child("final_layer", final_layer);
    final_layer.set_layer(c.transformer.depth + 1);
    set_buckets(block_buckets(*this, numbered("blocks", c.transformer.depth)), {});
  }
  void to_device(const at::Device& device) override {
    BlockModel::to_device(device);
    text_encoder.to_device(device);
  }
  /// Counts the last block as the others.
  [[nodiscard]] static double macs(const ModelConfig& config) {
    const TransformerMacs m(config);
    const double tokens = m.tokens + static_cast<double>(config.text_tokens);
    return m.model(tokens / m.tokens * (m.attention(tokens) + m.mlp) + 2 * m.modulation) +
           m.captions;
  }
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override {
    const ModelConfig& c = config();
    const at::Tensor& lengths = conditions.text_lengths;
    const at::Tensor time = t_embedder.forward(t);
    const at::Tensor text = y_embedder.forward(
        text_encoder.embed_captions(conditions.tokens, lengths), conditions.null_text);
    const at::Tensor image =
        x_embedder.forward(ops::patchify(x_t, c.transformer.patch, at::kFloat));
    const at::Tensor is_word = at::arange(text.size(1), lengths.options()) < lengths.unsqueeze(1);
    const at::Tensor is_read =
        at::constant_pad_nd(is_word, {0, image.size(1)}, true).unsqueeze(1).unsqueeze(1);
    Tensors streams = {text.to(at::kFloat).unsqueeze(1), (image + pos_embed).unsqueeze(1)};
    const auto in_turn = [&](Tensors in, int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        in = run_block([&block = blocks[i]](const Tensors& all) { return block.forward(all); },
                       std::move(in), {time, is_read}, i < recompute_blocks(), hook(),
                       block_bucket(i));
      }
      return in;
    };
    const at::Tensor out = through_blocks(streams, num_blocks(), pass, in_turn, {});
    if (!out.defined()) {
      return {};
    }
    const at::Tensor patches = final_layer.forward(out, time).squeeze(1);
    return tapped(ops::unpatchify(patches, c.height, c.width, c.transformer.patch));
  }

  PatchEmbed x_embedder;
  TimestepEmbedder t_embedder;
  CaptionEncoder text_encoder;
  CaptionEmbedder y_embedder;
  at::Tensor pos_embed;  // [1, N, C]
  BlockList<Block> blocks;
  FinalLayer final_layer;
};

}  // namespace

void add_two_streams() {
  add_family({.key = "two_streams",
              .name = "TwoStreams",
              .conditions = {.text = true, .tokens = true},
              .resolve = resolve_transformer,
              .macs = TwoStreams::macs,
              .make = make<TwoStreams>});
}

}  // namespace kinora::models
