#include <algorithm>
#include <array>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"

namespace kinora::tokenizers {
namespace {

// transformers, models/bert/tokenization_bert.py.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kRoles = {
    {{"unk_token", "[UNK]"},
     {"sep_token", "[SEP]"},
     {"pad_token", "[PAD]"},
     {"cls_token", "[CLS]"},
     {"mask_token", "[MASK]"}}};

}  // namespace

Pipeline read_bert_files(const TokenizerFiles& files, const TokenizerConfig& config) {
  const TokenizerFiles::File& main = files.at(files.main());
  Pipeline pipeline;
  pipeline.where = "[tokenizer] " + printable_line(main.shown);
  const std::string& where = pipeline.where;
  KINORA_CHECK(
      config.tokenizer_class.empty() || config.tokenizer_class.starts_with("BertTokenizer"), kIo,
      where, " must be of a BertTokenizer, got one of ", quote(config.tokenizer_class),
      ". Hint: save the tokenizer with its tokenizer.json");
  KINORA_CHECK(is_utf8(main.bytes), kIo, where, " must be UTF-8");
  std::string_view text = main.bytes;
  text = text.substr(0, text.find_last_not_of("\r\n") + 1);
  int64_t line = 0;
  for (std::string_view token : split(text, '\n')) {
    if (token.ends_with('\r')) {
      token.remove_suffix(1);
    }
    pipeline.vocabulary->add(token, line++, where);
  }

  std::vector<AddedToken> special;
  for (const auto& [role, otherwise] : kRoles) {
    const auto named =
        std::ranges::find(config.tokens, role, [](const auto& each) { return each.role; });
    AddedToken token =
        named == config.tokens.end() ? AddedToken{.content = std::string(otherwise)} : named->token;
    token.id = pipeline.vocabulary->id_of(token.content);
    // BERT does without a mask here.
    KINORA_CHECK(token.id >= 0 || role == "mask_token", kIo, where, " must have the token ",
                 quote(token.content), ", got none");
    special.push_back(std::move(token));
  }
  pipeline.special = {
      .bos = special[3].id, .eos = special[1].id, .pad = special[2].id, .unk = special[0].id};
  pipeline.before = {pipeline.special.bos};
  pipeline.after = {pipeline.special.eos};

  pipeline.normalizers.emplace_back(config.bert);
  add_bert_pre_tokenizers(pipeline.pre_tokenizers);
  pipeline.model.emplace(
      WordPiece(*pipeline.vocabulary, WordPiece::Rules{.unk = pipeline.special.unk}, where));
  pipeline.decoders.emplace().emplace_back(DecodeWordPiece{});
  for (AddedToken& token : special) {
    if (token.id >= 0) {
      pipeline.add_token(std::move(token));
    }
  }
  return pipeline;
}

}  // namespace kinora::tokenizers
