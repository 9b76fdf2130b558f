#include "kinora/tokenizers/tokenizer.h"

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/pipeline.h"
#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

// Pieces of one byte take forty times the text.
constexpr size_t kMaxTextBytes = size_t{64} << 20;

std::optional<int64_t> id_or_nothing(int64_t id) {
  return id < 0 ? std::nullopt : std::optional(id);
}

/// Everything of `text` for the model: normalised, with added tokens found, divided.
DividedText divided(const Pipeline& pipeline, std::string_view text) {
  DividedText all;
  all.text.reserve(text.size() + text.size() / 4);
  const auto add_token = [&](std::string_view found, int64_t id) {
    const size_t begin = all.text.size();
    all.text += found;
    all.pieces.push_back({{begin, all.text.size()}, id});
  };
  const auto add_text = [&](std::string_view part, bool at_start) {
    if (!part.empty()) {
      const size_t begin = all.text.size();
      all.text += part;
      all.pieces.push_back({{begin, all.text.size()}, -1, at_start});
    }
  };
  NormalizedText part;
  const auto add_normalized = [&](size_t begin, size_t end) {
    part.text.assign(text.substr(begin, end - begin));
    part.at_start = begin == 0;
    normalize(pipeline.normalizers, part);
    KINORA_CHECK(all.text.size() + part.text.size() <= kMaxNormalizedBytes, kConfig,
                 "[tokenizer] a normalised text must have at most ", kMaxNormalizedBytes,
                 " bytes, got more");
    const std::string_view whole = part.text;
    size_t at = 0;
    for (const auto& [range, id] : pipeline.added.find(whole, /*normalized=*/true)) {
      add_text(whole.substr(at, range.begin - at), part.at_start && at == 0);
      add_token(whole.substr(range.begin, range.end - range.begin), id);
      at = range.end;
    }
    add_text(whole.substr(at), part.at_start && at == 0);
  };
  size_t at = 0;
  for (const auto& [range, id] : pipeline.added.find(text, /*normalized=*/false)) {
    if (at < range.begin) {
      add_normalized(at, range.begin);
    }
    add_token(text.substr(range.begin, range.end - range.begin), id);
    at = range.end;
  }
  if (at < text.size()) {
    add_normalized(at, text.size());
  }
  pre_tokenize(pipeline.pre_tokenizers, all);
  return all;
}

template <typename Model>
void encode_pieces(const Model& model, const DividedText& text, std::vector<int64_t>& ids) {
  typename Model::Scratch scratch;
  for (const Piece& piece : text.pieces) {
    if (piece.token >= 0) {
      ids.push_back(piece.token);
    } else {
      const auto [begin, end] = piece.range;
      model.encode(std::string_view(text.text).substr(begin, end - begin), ids, scratch);
    }
  }
}

/// What the files beside the main one say of tokens.
void set_special_tokens(const TokenizerConfig& config, Pipeline& pipeline) {
  for (const AddedToken& token : config.added) {
    const AddedToken* known = pipeline.added.at(token.id);
    // A tokenizer.json has them already; of a SentencePiece model they are the sentinels.
    if (known == nullptr && pipeline.vocabulary->id_of(token.content) < 0) {
      pipeline.add_token(token);
    }
  }
  for (const auto& [role, token] : config.tokens) {
    const int64_t id = pipeline.id_of(token.content);
    SpecialTokens& special = pipeline.special;
    if (int64_t* const place = role == "bos_token"   ? &special.bos
                               : role == "eos_token" ? &special.eos
                               : role == "pad_token" ? &special.pad
                               : role == "unk_token" ? &special.unk
                                                     : nullptr) {
      *place = id;
    }
  }
}

Pipeline read_pipeline(const TokenizerFiles& files) {
  const TokenizerConfig config = read_tokenizer_config(files);
  Pipeline pipeline = files.main() == "spiece.model"
                          ? read_sentence_piece(files, config.sentence_piece)
                      : files.main() == "vocab.json" ? read_clip_files(files, config)
                      : files.main() == "vocab.txt"  ? read_bert_files(files, config)
                                                     : read_tokenizer_json(files);
  set_special_tokens(config, pipeline);
  pipeline.max_length = config.max_length;
  pipeline.cut_left = config.cut_left;
  return pipeline;
}

}  // namespace

void Pipeline::add_token(AddedToken token) {
  if (token.content.empty()) {
    return;
  }
  const int64_t known = vocabulary->id_of(token.content);
  token.id = known >= 0 ? known : token.id;
  KINORA_CHECK(token.id >= 0 && token.id < kMaxTokenId, kIo, where, " the id of the added token ",
               quote(token.content), " must be 0 to ", kMaxTokenId - 1, ", got ", token.id);
  KINORA_CHECK(token.content.size() <= Unigram::kMaxPieceBytes, kIo, where,
               " an added token must have at most ", Unigram::kMaxPieceBytes, " bytes, got ",
               token.content.size());
  NormalizedText sought{token.content};
  if (token.normalized) {
    normalize(normalizers, sought);
  }
  added.add(std::move(token), sought.text);
}

Tokenizer::Tokenizer(Pipeline pipeline)
    : pipeline_(std::make_unique<const Pipeline>(std::move(pipeline))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return Tokenizer(TokenizerFiles::read(path));
}

Tokenizer::Tokenizer(const TokenizerFiles& files) : Tokenizer(read_pipeline(files)) {}

Tokens Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const Pipeline& pipeline = *pipeline_;
  KINORA_CHECK(text.size() <= kMaxTextBytes, kConfig, "[tokenizer] a text must have at most ",
               kMaxTextBytes, " bytes, got ", text.size());
  std::string whole;
  if (!is_utf8(text)) {
    whole = replace_broken(text);
    text = whole;
  }
  const DividedText pieces = divided(pipeline, text);
  Tokens tokens;
  if (options.special_tokens) {
    tokens.ids = pipeline.before;
  }
  tokens.ids.reserve(text.size() / 4 + 8);
  const auto begin = static_cast<int64_t>(tokens.ids.size());
  std::visit([&](const auto& model) { encode_pieces(model, pieces, tokens.ids); }, *pipeline.model);
  if (options.max_length) {
    const int64_t num_special = options.special_tokens ? num_special_tokens() : 0;
    const int64_t room = *options.max_length - num_special;
    KINORA_CHECK(room >= 0, kConfig, "[tokenizer] max_length must be at least ", num_special,
                 ", the number of special tokens, got ", *options.max_length);
    const int64_t num_cut = static_cast<int64_t>(tokens.ids.size()) - begin - room;
    if (num_cut > 0) {
      const auto first =
          pipeline.cut_left ? tokens.ids.begin() + begin : tokens.ids.begin() + begin + room;
      tokens.cut = decode({first, first + num_cut}, /*special_tokens=*/true);
      tokens.num_cut = num_cut;
      tokens.ids.erase(first, first + num_cut);
    }
  }
  if (options.special_tokens) {
    tokens.ids.insert(tokens.ids.end(), pipeline.after.begin(), pipeline.after.end());
  }
  return tokens;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool special_tokens) const {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    const AddedToken* added = pipeline_->added.at(id);
    const std::string* known = pipeline_->vocabulary->token_of(id);
    if (added != nullptr && (special_tokens || !added->special)) {
      tokens.push_back(added->content);
    } else if (added == nullptr && known != nullptr) {
      tokens.push_back(*known);
    }
  }
  if (pipeline_->decoders) {
    return decode_tokens(*pipeline_->decoders, std::move(tokens));
  }
  std::string text;
  for (const std::string& token : tokens) {
    text += (text.empty() ? "" : " ") + token;
  }
  return text;
}

int64_t Tokenizer::vocab_size() const {
  return std::max(pipeline_->vocabulary->size(), pipeline_->added.size());
}

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  return id_or_nothing(pipeline_->id_of(token));
}

std::optional<std::string> Tokenizer::token_of(int64_t id) const {
  if (const AddedToken* added = pipeline_->added.at(id)) {
    return added->content;
  }
  const std::string* known = pipeline_->vocabulary->token_of(id);
  return known == nullptr ? std::nullopt : std::optional(*known);
}

std::optional<int64_t> Tokenizer::bos_id() const {
  return id_or_nothing(pipeline_->special.bos);
}

std::optional<int64_t> Tokenizer::eos_id() const {
  return id_or_nothing(pipeline_->special.eos);
}

std::optional<int64_t> Tokenizer::pad_id() const {
  return id_or_nothing(pipeline_->special.pad);
}

std::optional<int64_t> Tokenizer::unk_id() const {
  return id_or_nothing(pipeline_->special.unk);
}

std::optional<int64_t> Tokenizer::max_length() const {
  return pipeline_->max_length > 0 ? std::optional(pipeline_->max_length) : std::nullopt;
}

int64_t Tokenizer::num_special_tokens() const {
  return static_cast<int64_t>(pipeline_->before.size() + pipeline_->after.size());
}

}  // namespace kinora::tokenizers
