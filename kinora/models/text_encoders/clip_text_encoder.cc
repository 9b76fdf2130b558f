#include "kinora/models/text_encoders/clip_text_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

// Shapes: T rows of all texts, B texts, C width.

namespace kinora::models {
namespace {

constexpr int64_t kOldEnd = 2;  // ClipTextConfig::eos_token_id
constexpr double kEmbeddingStd = 0.02;

/// What all its blocks are like.
ClipBlockConfig block_config(const ClipTextConfig& config) {
  return {.width = config.hidden_size,
          .hidden = config.intermediate_size,
          .num_blocks = config.num_hidden_layers,
          .num_heads = config.num_attention_heads,
          .activation = config.activation,
          .layer_norm_eps = config.layer_norm_eps,
          .causal = true};
}

}  // namespace

ClipTextEncoder::ClipTextEncoder(const ClipTextConfig& config)
    : token_embedding{.shape = {config.vocab_size, config.hidden_size},
                      .init = nn::Init::normal(kEmbeddingStd),
                      .value = {},
                      .grad = {}},
      position_embedding{.shape = {config.max_position_embeddings, config.hidden_size},
                         .init = nn::Init::normal(kEmbeddingStd),
                         .value = {},
                         .grad = {}},
      final_layer_norm(config.hidden_size, config.layer_norm_eps),
      config_(config) {
  add_parameter("text_model.embeddings.token_embedding.weight", token_embedding);
  add_parameter("text_model.embeddings.position_embedding.weight", position_embedding);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks.push_back(std::make_unique<ClipBlock>(block_config(config)));
    blocks.back()->set_layer(i + 1);
    add_child("text_model.encoder.layers." + std::to_string(i), *blocks.back());
  }
  final_layer_norm.set_layer(config.num_hidden_layers + 1);
  add_child("text_model.final_layer_norm", final_layer_norm);
  if (config.projection_dim > 0) {
    text_projection.emplace(config.hidden_size, config.projection_dim,
                            nn::Init::normal(clip_std(config.hidden_size)), false);
    text_projection->set_layer(config.num_hidden_layers + 1);
    add_child("text_projection", *text_projection);
  }
}

int64_t ClipTextEncoder::pooled_width() const {
  return text_projection ? config_.projection_dim : config_.hidden_size;
}

std::string ClipTextEncoder::block_path(int64_t block) const {
  return "text_model.encoder.layers." + std::to_string(block) + ".";
}

std::vector<TextLinear*> ClipTextEncoder::linears() {
  std::vector<TextLinear*> linears;
  for (const std::unique_ptr<ClipBlock>& block : blocks) {
    const std::vector<TextLinear*> own = block->linears();
    linears.insert(linears.end(), own.begin(), own.end());
  }
  return linears;
}

std::vector<int64_t>::const_iterator ClipTextEncoder::find_end(
    std::vector<int64_t>::const_iterator begin, std::vector<int64_t>::const_iterator end) const {
  return config_.eos_token_id == kOldEnd ? std::max_element(begin, end)
                                         : std::find(begin, end, config_.eos_token_id);
}

void ClipTextEncoder::add_tokens(const at::Tensor& embeddings) {
  KINORA_CHECK(embeddings.dim() == 2 && embeddings.size(1) == width(), kShape,
               "[clip] embeddings of tokens must be [tokens, ", width(), "], got ",
               embeddings.sizes());
  token_embedding.value =
      at::cat({token_embedding.value, embeddings.to(token_embedding.value.options())});
  config_.vocab_size += embeddings.size(0);
  token_embedding.shape[0] = config_.vocab_size;
}

at::Tensor ClipTextEncoder::end_rows(const TextTokens& tokens) const {
  std::vector<int64_t> rows;
  auto begin = tokens.ids.begin();
  for (size_t text = 0; text < tokens.lengths.size(); ++text) {
    const auto end = begin + std::min(tokens.lengths[text], config_.max_position_embeddings);
    const auto found = find_end(begin, end);
    KINORA_CHECK(found != end, kShape, "[clip] text ", text, " must have the end token ",
                 config_.eos_token_id, ", and has not. Hint: a tokenizer adds it");
    rows.push_back(found - tokens.ids.begin());
    begin += tokens.lengths[text];
  }
  return at::tensor(rows, at::kLong);
}

std::vector<int64_t> ClipTextEncoder::piece_lengths(const TextTokens& tokens) const {
  const int64_t most = config_.max_position_embeddings;
  std::vector<int64_t> pieces;
  auto begin = tokens.ids.begin();
  for (size_t text = 0; text < tokens.lengths.size(); ++text) {
    const int64_t length = tokens.lengths[text];
    for (int64_t first = 0; first < length; first += most) {
      pieces.push_back(std::min(most, length - first));
      const int64_t last = first + pieces.back() - 1;
      KINORA_CHECK(begin[last] == begin[length - 1], kShape, "[clip] text ", text, " has ", length,
                   " tokens, more than the ", most,
                   " positions, and must be in pieces that each end with ", begin[length - 1],
                   ", got ", begin[last], " at ", last,
                   ". Hint: truncate it, or tokenise it in pieces");
    }
    begin += length;
  }
  return pieces;
}

TextStates ClipTextEncoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  check(tokens, layer);
  KINORA_CHECK(tokens.attended.empty(), kShape, "[clip] all of a text's tokens are attended to");
  const std::vector<int64_t> pieces = piece_lengths(tokens);
  std::vector<int64_t> positions;
  for (const int64_t length : pieces) {
    const size_t first = positions.size();
    positions.resize(first + static_cast<size_t>(length));
    std::iota(positions.begin() + static_cast<std::ptrdiff_t>(first), positions.end(), 0);
  }
  const at::Tensor ends = end_rows(tokens);
  const at::Device device = position_embedding.value.device();
  const RaggedRows rows(pieces, device, RaggedRows::unit_for(device));
  at::Tensor x =
      embed(tokens, token_embedding, device) +
      at::embedding(ops::with_gradient(position_embedding.value, position_embedding.grad),
                    at::tensor(positions, at::kLong).to(device));  // fp32 [T, C]
  at::Tensor wanted;
  for (int64_t i = 0; i < num_blocks(); ++i) {
    x = with_block(i, [&] { return blocks[static_cast<size_t>(i)]->forward(x, rows); });
    if (i + 1 == num_blocks() - layer.before_last) {
      wanted = x;
    }
  }
  const at::Tensor at_ends =
      final_layer_norm.forward(x.index_select(0, ends.to(device)));  // [B, C]
  return {.states = layer.normed ? final_layer_norm.forward(wanted) : wanted,
          .lengths = tokens.lengths,
          .pooled = text_projection ? text_projection->forward(at_ends).to(at::kFloat) : at_ends};
}

}  // namespace kinora::models
