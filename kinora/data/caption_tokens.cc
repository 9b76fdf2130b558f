#include "kinora/data/caption_tokens.h"

#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/data/layout.h"
#include "kinora/prompts/caption_cleaning.h"
#include "kinora/tokenizers/pieces.h"

namespace kinora::data {

namespace {

tokenizers::Tokens layout_tokens(const CaptionTokens& tokens, std::string_view caption) {
  const tokenizers::Tokenizer& tokenizer = *tokens.tokenizer;
  tokenizers::Tokens result;
  for (const LayoutObject& object : parse_layout(caption)) {
    const std::vector<int64_t> phrase =
        tokenizer.encode(object.phrase, {.special_tokens = false}).ids;
    KINORA_CHECK(!phrase.empty(), kConfig, "[layout] a phrase must have a token in it, got ",
                 quote(object.phrase));
    result.ids.insert(result.ids.end(), phrase.begin(), phrase.end());
    const CornerPlaces corners = corner_places(object.box, tokens.layout_grid);
    result.ids.push_back(tokenizer.vocab_size() + corners.top_left);
    result.ids.push_back(tokenizer.vocab_size() + corners.bottom_right);
  }
  KINORA_CHECK(std::ssize(result.ids) <= tokens.max_length, kConfig, "[layout] a layout must have ",
               tokens.max_length, " tokens at most (model.text_tokens), got ", result.ids.size(),
               ": ", shortened(std::string(caption)));
  return result;
}

}  // namespace

int64_t own_length(const CaptionTokens& tokens) {
  int64_t length = tokens.max_length;
  for (const TokenizerBeside& each : tokens.beside) {
    length -= each.length;
  }
  return length;
}

void add_tokens_beside(const std::vector<TokenizerBeside>& beside, std::string_view text,
                       std::vector<int64_t>& ids) {
  for (const TokenizerBeside& each : beside) {
    const tokenizers::Tokens own = tokenizers::encode_in_pieces(
        *each.tokenizer, text, {.max_length = each.length, .pads = true});
    ids.insert(ids.end(), own.ids.begin(), own.ids.end());
  }
}

tokenizers::Tokens encode(const CaptionTokens& tokens, std::string_view caption) {
  if (tokens.layout_grid > 0) {
    return layout_tokens(tokens, caption);
  }
  const std::string text =
      tokens.cleans ? prompts::preprocess_caption(caption) : std::string(caption);
  tokenizers::Tokens result = tokenizers::encode_in_pieces(
      *tokens.tokenizer, tokens.before + text + tokens.behind,
      {.max_length = own_length(tokens), .piece = tokens.piece, .pads = tokens.pads});
  add_tokens_beside(tokens.beside, text, result.ids);
  return result;
}

std::string shortened(const std::string& text) {
  constexpr size_t kMostBytes = 120;
  if (text.size() <= kMostBytes) {
    return quote(text);
  }
  size_t end = kMostBytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0U) == 0x80U) {
    --end;  // within a character
  }
  return quote(text.substr(0, end)) + "...";
}

TokenSource::TokenSource(std::unique_ptr<Source> inner, CaptionTokens tokens)
    : WrappedSource(std::move(inner)),
      tokens_(std::move(tokens)),
      padding_(tokens_.tokenizer->pad_id().value_or(0)) {
  const int64_t least = tokens_.tokenizer->num_special_tokens() + 1;
  KINORA_CHECK(own_length(tokens_) >= least, kConfig, "[text] texts must have room for ", least,
               " tokens or more, special ones counted, got ", own_length(tokens_),
               ". Hint: text.max_length, model.text_tokens");
}

void TokenSource::read(int64_t index, Sample& out) const {
  WrappedSource::read(index, out);
  out.text.ids = ids_of(
      index, out.caption.empty() ? class_names()[static_cast<size_t>(out.label)] : out.caption);
  out.text.length = std::ssize(out.text.ids);
  KINORA_CHECK(out.text.length > 0, kIo, "[text] ", sample_name(index),
               " must have a caption or a class name with a token in it, got none");
  out.text.ids.resize(static_cast<size_t>(tokens_.max_length), padding_);
}

std::vector<int64_t> TokenSource::ids_of(int64_t index, std::string_view caption) const {
  try {
    tokenizers::Tokens tokens = encode(tokens_, caption);
    if (tokens.num_cut > 0 && !said_what_is_cut_.exchange(true)) {
      log_warn("[text] captions of more than ", own_length(tokens_),
               " tokens are cut off there; the first is that of ", sample_name(index),
               ", which loses the last ", tokens.num_cut, ": ", shortened(tokens.cut));
    }
    return std::move(tokens.ids);
  } catch (const Error& error) {  // of this caption, so of this sample alone
    throw_error(ErrorKind::kIo, "[text] the caption of ", sample_name(index),
                " cannot be made tokens: ", error.what());
  }
}

}  // namespace kinora::data
