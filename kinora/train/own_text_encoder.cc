#include "kinora/train/own_text_encoder.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <memory>

#include "kinora/core/error.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/tokenizers/tokenizer.h"

namespace kinora::train {
namespace {

/// Without those that begin and end a text.
std::vector<int64_t> ids_of(const tokenizers::Tokenizer& tokenizer, const std::string& words) {
  std::vector<int64_t> ids = tokenizer.encode(words).ids;
  const int64_t specials = tokenizer.num_special_tokens();  // CLIP's: one on either side
  KINORA_CHECK(specials == 2 && std::ssize(ids) >= specials, kConfig,
               "[text] text.new_tokens needs CLIP's tokenizer, which begins and ends a text, got ",
               specials, " special tokens");
  return {ids.begin() + 1, ids.end() - 1};
}

}  // namespace

RunConfig with_own_text_encoder(RunConfig config) {
  inference::TextOptions& text = config.text;
  if (!text.train || text.encoder.empty()) {
    return config;
  }
  KINORA_CHECK(config.data.text == data::TextKind::kTokens && !config.checkpoint.init_from.empty(),
               kConfig,
               "[text] text.train needs data.text=tokens, since embedded texts have no encoder to "
               "train, and checkpoint.init_from");
  const auto encoder = pipelines::outlined_text_encoder(text.encoder);
  const auto* clip = dynamic_cast<const models::ClipTextEncoder*>(encoder.get());
  KINORA_CHECK(clip != nullptr, kConfig, "[text] text.train trains a CLIP, and text.encoder, ",
               text.encoder, ", is none. Hint: text.train=false");
  const models::ClipTextConfig& of = clip->config();
  config.model.text_encoder = {.kind = models::TextEncoderSize::Kind::kClip,
                               .layers = of.num_hidden_layers,
                               .width = of.hidden_size,
                               .heads = of.num_attention_heads,
                               .mlp = of.intermediate_size,
                               .vocab = of.vocab_size,
                               .positions = of.max_position_embeddings,
                               .activation = of.activation,
                               .new_tokens = std::ssize(inference::new_tokens_of(text))};
  if (text.tokenizer.empty()) {
    text.tokenizer = pipelines::find_tokenizer(text.encoder).string();
  }
  config.text_start = std::move(text.encoder);
  text.encoder.clear();
  return config;
}

void add_text_encoder(const RunConfig& config, checkpoint::LateTensors& weights) {
  if (config.text_start.empty()) {
    return;
  }
  const auto encoder = pipelines::open_text_encoder(config.text_start, {});
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    if (!path.starts_with("text_projection.")) {  // of pooled vectors
      weights["text_encoder." + path] = checkpoint::late_tensor(parameter->value);
    }
  }
  const std::vector<inference::NewToken> added = inference::new_tokens_of(config.text);
  if (added.empty()) {
    return;
  }
  const auto tokenizer = tokenizers::Tokenizer::load(config.text.tokenizer);
  const at::Tensor table = encoder->vocabularies().front().parameter->value;
  std::vector<at::Tensor> rows;
  for (const inference::NewToken& token : added) {
    const std::vector<int64_t> ids = ids_of(tokenizer, token.words);
    KINORA_CHECK(!ids.empty(), kConfig, "[text] text.new_tokens: ", token.words,
                 " has no token to start ", token.token, " from");
    rows.push_back(table.index_select(0, at::tensor(ids, at::kLong)).to(at::kFloat).mean(0));
  }
  weights["text_encoder.new_tokens"] = checkpoint::late_tensor(at::stack(rows));
}

}  // namespace kinora::train
