#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"

namespace kinora::tokenizers {
namespace {

// transformers, models/clip/tokenization_clip.py.
constexpr std::string_view kClipPattern =
    R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";
constexpr std::string_view kClipStart = "<|startoftext|>";
constexpr std::string_view kClipEnd = "<|endoftext|>";

void read_merges(const TokenizerFiles::File& file, MergeList& merges) {
  const std::string where = "[tokenizer] " + printable_line(file.shown);
  KINORA_CHECK(is_utf8(file.bytes), kIo, where, " must be UTF-8");
  for (std::string_view line : split(file.bytes, '\n')) {
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (!line.empty() && !line.starts_with("#version")) {
      merges.add(line, where);
    }
  }
}

}  // namespace

Pipeline read_clip_files(const TokenizerFiles& files, const TokenizerConfig& config) {
  const TokenizerFiles::File& main = files.at(files.main());
  const JsonFile file(main);
  const JsonValue vocab = file.root();
  Pipeline pipeline;
  pipeline.where = vocab.where();
  KINORA_CHECK(
      config.tokenizer_class.empty() || config.tokenizer_class.starts_with("CLIPTokenizer"), kIo,
      pipeline.where, " vocab.json with merges.txt must be of a CLIPTokenizer, got one of ",
      quote(config.tokenizer_class), ". Hint: save the tokenizer with its tokenizer.json");
  const std::string where = "[tokenizer] " + printable_line(main.shown);
  vocab.each_member([&](std::string_view token, const JsonValue& id) {
    pipeline.vocabulary->add(token, id.integer(), where);
  });
  const auto content = [&](std::string_view role, std::string_view otherwise) {
    const auto found =
        std::find_if(config.tokens.begin(), config.tokens.end(),
                     [role](const TokenizerConfig::Token& each) { return each.role == role; });
    return std::string(found == config.tokens.end() ? otherwise : found->token.content);
  };
  const auto id_of = [&](const std::string& token) {
    const int64_t id = pipeline.vocabulary->id_of(token);
    KINORA_CHECK(id >= 0, kIo, where, " must have the token ", quote(token), ", got none");
    return id;
  };
  const std::string end = content("eos_token", kClipEnd);
  pipeline.special.bos = id_of(content("bos_token", kClipStart));
  pipeline.special.eos = id_of(end);
  pipeline.special.pad = id_of(content("pad_token", end));
  pipeline.special.unk = id_of(content("unk_token", kClipEnd));

  pipeline.normalizers.emplace_back(UnicodeForm{});
  pipeline.normalizers.emplace_back(Replace{Pattern::of_regex("\\s+", pipeline.where), " "});
  pipeline.normalizers.emplace_back(Lowercase{});
  pipeline.pre_tokenizers.emplace_back(Split{Pattern::of_regex(kClipPattern, pipeline.where),
                                             SplitBehavior::kRemoved, /*invert=*/true});
  pipeline.pre_tokenizers.emplace_back(ByteLevel{.add_prefix_space = false});
  MergeList merges(*pipeline.vocabulary, 0);
  read_merges(files.at("merges.txt"), merges);
  Bpe::Rules rules;
  rules.unk = pipeline.special.unk;
  rules.end_of_word_suffix = "</w>";
  pipeline.model.emplace(Bpe(*pipeline.vocabulary, std::move(rules), merges.merges()));
  pipeline.before = {pipeline.special.bos};
  pipeline.after = {pipeline.special.eos};
  auto& decoders = pipeline.decoders.emplace();
  decoders.emplace_back(DecodeByteLevel{});
  add_suffix_decoders("</w>", decoders);

  // Special tokens are looked for in the text as well. Of several that are the same the last
  // counts.
  for (const TokenizerConfig::Token& each : config.tokens) {
    AddedToken token = each.token;
    token.id = id_of(token.content);
    pipeline.add_token(std::move(token));
  }
  for (const std::string_view token : {kClipStart, kClipEnd}) {
    if (config.tokens.empty()) {
      pipeline.add_token({.content = std::string(token), .id = id_of(std::string(token))});
    }
  }
  return pipeline;
}

}  // namespace kinora::tokenizers
