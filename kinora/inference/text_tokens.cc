#include "kinora/inference/text_tokens.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/tokenizers/tokenizer.h"
#include "kinora/tokenizers/tokenizer_files.h"

namespace kinora::inference {
namespace {

using tokenizers::TokenizerFiles;

/// Of the longest caption; the model may be unresolved.
int64_t default_length(const models::ModelConfig& model, const tokenizers::Tokenizer& tokenizer) {
  const int64_t longest =
      std::min(models::kMostTokens, tokenizer.max_length().value_or(models::kMostTokens));
  if (models::family_of(model).conditions.pooled && !model.text_encoder.any()) {
    return longest;
  }
  const int64_t own =
      model.text_tokens > 0 ? model.text_tokens : models::published_values(model).text_tokens;
  return own > 0 ? std::min(longest, own) : longest;
}

}  // namespace

std::vector<NewToken> new_tokens_of(const TextOptions& text) {
  std::vector<NewToken> all;
  for (const std::string& entry : text.new_tokens) {
    const size_t equals = entry.rfind('=');
    KINORA_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < entry.size(), kConfig,
                 "[text] text.new_tokens must have TOKEN=WORDS, got ", entry);
    all.push_back({.token = entry.substr(0, equals), .words = entry.substr(equals + 1)});
    KINORA_CHECK(std::ranges::count(all, all.back().token, &NewToken::token) == 1, kConfig,
                 "[text] text.new_tokens has ", all.back().token, " twice");
  }
  return all;
}

std::optional<data::CaptionTokens> caption_tokens(const ModelRecipe& recipe) {
  const TextOptions& text = recipe.text;
  KINORA_CHECK(recipe.data.text != data::TextKind::kTokens || !text.tokenizer.empty() ||
                   !text.encoder.empty(),
               kConfig,
               "[text] data.text is tokens, and there is no tokenizer. Hint: text.encoder, or "
               "text.tokenizer for a model with an encoder of its own");
  if (text.tokenizer.empty() && text.encoder.empty()) {
    return std::nullopt;
  }
  const std::filesystem::path path = text.tokenizer.empty()
                                         ? pipelines::find_tokenizer(text.encoder)
                                         : std::filesystem::path(text.tokenizer);
  KINORA_CHECK(recipe.kept_tokenizer || std::filesystem::exists(path), kIo, "[text] the tokenizer ",
               path.string(),
               " is not there. Hint: text.tokenizer=PATH, a folder or file; kinora sample takes it "
               "by --set");
  const models::TextEncoderSize& own = recipe.model.text_encoder;
  const int64_t grid = recipe.data.layout_grid;
  KINORA_CHECK(grid == 0 || own.any(), kConfig,
               "[text] data.layout_grid must be 0 for a frozen text encoder, which does not know "
               "the places of corners, got ",
               grid, ". Hint: model.text_encoder.layers");
  TokenizerFiles files =
      recipe.kept_tokenizer ? *recipe.kept_tokenizer : TokenizerFiles::read(path);
  int64_t id = own.vocab;
  for (const NewToken& added : new_tokens_of(text)) {
    files.add_token(added.token, id++);
  }
  KINORA_CHECK(id == own.vocab + own.new_tokens, kConfig,
               "[text] text.new_tokens must be as many as model.text_encoder.new_tokens = ",
               own.new_tokens, ", got ", id - own.vocab, ". Hint: they need text.train");
  data::CaptionTokens tokens{.tokenizer = std::make_shared<const tokenizers::Tokenizer>(files)};
  id = own.vocab;
  for (const NewToken& added : new_tokens_of(text)) {
    KINORA_CHECK(std::ranges::count(tokens.tokenizer->encode(added.token).ids, id++) == 1, kConfig,
                 "[text] text.new_tokens: ", added.token,
                 " is a token of the tokenizer already. Hint: <", added.token, ">");
  }
  const int64_t num_tokens = tokens.tokenizer->vocab_size() - own.new_tokens + grid * grid;
  KINORA_CHECK(!own.any() || num_tokens <= own.vocab, kConfig,
               "[text] model.text_encoder.vocab must be at least ", num_tokens, ", which ",
               path.string(), grid > 0 ? " and data.layout_grid have" : " has", ", got ",
               own.vocab);
  std::optional<int64_t> piece;
  if (own.any() && own.kind == models::TextEncoderSize::Kind::kClip) {
    piece = own.positions;
  } else if (!text.encoder.empty()) {
    piece = pipelines::outlined_text_encoder(text.encoder)->piece();
  }
  tokens.max_length =
      text.max_length > 0 ? text.max_length : default_length(recipe.model, *tokens.tokenizer);
  if (!text.encoder.empty()) {
    tokens.beside = pipelines::tokenizers_beside(text.encoder);
  }
  if (!tokens.beside.empty()) {
    const auto encoder = pipelines::described_text_encoder(text.encoder);
    tokens.max_length -= encoder->num_states(0);
    if (const models::CaptionFrame* const frame = encoder->frame()) {
      tokens.before = frame->before;
      tokens.behind = frame->behind;
    }
  }
  if (models::family_of(recipe.model).conditions.pooled && piece) {
    KINORA_CHECK(text.max_length <= *piece, kConfig, "[text] text.max_length must be at most ",
                 *piece, ", the positions of text.encoder, for ", models::name_of(recipe.model),
                 ", which takes one vector a text, got ", text.max_length);
    tokens.max_length = std::min(tokens.max_length, *piece);
  } else {
    tokens.piece = piece;
  }
  tokens.layout_grid = grid;
  tokens.pads = models::pads_captions(recipe.model);
  tokens.cleans = text.clean == ops::Switch::kOn ||
                  (text.clean == ops::Switch::kAuto && cleans_captions(recipe.model));
  return tokens;
}

bool cleans_captions(const models::ModelConfig& model) {
  const models::Family& family = models::family_of(model);
  return !family.conditions.pooled && !family.tidies_captions && !family.keeps_captions &&
         !family.fills_captions && !models::pads_captions(model);
}

}  // namespace kinora::inference
