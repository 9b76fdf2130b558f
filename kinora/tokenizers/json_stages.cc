// The stages of a tokenizer.json.

#include <utility>

#include "kinora/core/base64.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"
#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

/// {"String": "..."} or {"Regex": "..."}; older files have the text alone.
Pattern read_pattern(const JsonValue& value) {
  if (value.is_text()) {
    return Pattern::of_text(std::string(value.text()));
  }
  if (const auto text = value.find("String")) {
    return Pattern::of_text(std::string(text->text()));
  }
  const JsonValue regex = value.at("Regex");
  return Pattern::of_regex(regex.text(), regex.where());
}

std::string read_character(const JsonValue& value) {
  const std::string_view text = value.text();
  if (text.empty() || code_point_at(text, 0).size != text.size()) {
    value.refuse("must be one character, got ", quote(text));
  }
  return std::string(text);
}

SplitBehavior read_behavior(const JsonValue& stage, std::string_view otherwise) {
  const std::string name = stage.text_or("behavior", otherwise);
  for (const auto& [known, behavior] :
       {std::pair("Removed", SplitBehavior::kRemoved),
        std::pair("Isolated", SplitBehavior::kIsolated),
        std::pair("MergedWithPrevious", SplitBehavior::kMergedWithPrevious),
        std::pair("MergedWithNext", SplitBehavior::kMergedWithNext),
        std::pair("Contiguous", SplitBehavior::kContiguous)}) {
    if (name == known) {
      return behavior;
    }
  }
  stage.at("behavior")
      .refuse("must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, got ",
              quote(name));
}

/// Whether `stage` prepends, as Metaspace writes it; older files say only add_prefix_space.
Metaspace::Prepend read_prepend(const JsonValue& stage) {
  const bool adds = stage.flag_or("add_prefix_space", true);
  const std::string scheme = stage.text_or("prepend_scheme", adds ? "always" : "never");
  if (scheme == "never" || scheme == "first" || scheme == "always") {
    if (!adds && scheme != "never") {
      stage.refuse("must not have add_prefix_space: false with prepend_scheme ", quote(scheme));
    }
    return scheme == "never"   ? Metaspace::Prepend::kNever
           : scheme == "first" ? Metaspace::Prepend::kFirst
                               : Metaspace::Prepend::kAlways;
  }
  stage.at("prepend_scheme").refuse("must be always, first or never, got ", quote(scheme));
}

}  // namespace

void read_normalizer(const JsonValue& value, std::vector<Normalizer>& stages) {
  const std::string_view type = value.at("type").text();
  if (type == "Sequence") {
    value.at("normalizers").each([&](const JsonValue& each) { read_normalizer(each, stages); });
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    stages.push_back(UnicodeForm{type.back() == 'C', type[2] == 'K'});
  } else if (type == "Lowercase") {
    stages.push_back(Lowercase{});
  } else if (type == "Replace") {
    stages.push_back(
        Replace{read_pattern(value.at("pattern")), std::string(value.at("content").text())});
  } else if (type == "Prepend") {
    stages.push_back(Prepend{std::string(value.at("prepend").text())});
  } else if (type == "Strip") {
    stages.push_back(Strip{value.flag_or("strip_left", true), value.flag_or("strip_right", true)});
  } else if (type == "BertNormalizer") {
    BertRules rules{.clean_text = value.flag_or("clean_text", true),
                    .handle_chinese_chars = value.flag_or("handle_chinese_chars", true),
                    .lowercase = value.flag_or("lowercase", true)};
    rules.strip_accents = value.flag_or("strip_accents", rules.lowercase);
    stages.emplace_back(rules);
  } else if (type == "Precompiled") {
    const auto map = value.find("precompiled_charsmap");
    const auto bytes = map ? decode_base64(map->text()) : std::string();
    if (!bytes) {
      map->refuse("must be base64");
    }
    if (!bytes->empty()) {
      stages.push_back(Precompiled{CharMap(*bytes, map->where())});
    }
  } else {
    value.refuse(
        "must be NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, Precompiled, "
        "BertNormalizer or Sequence, got ",
        quote(type));
  }
}

void read_pre_tokenizer(const JsonValue& value, std::vector<PreTokenizer>& stages) {
  const std::string_view type = value.at("type").text();
  if (type == "Sequence") {
    value.at("pretokenizers").each([&](const JsonValue& each) {
      read_pre_tokenizer(each, stages);
    });
  } else if (type == "Split") {
    stages.push_back(Split{read_pattern(value.at("pattern")), read_behavior(value, ""),
                           value.flag_or("invert", false)});
  } else if (type == "ByteLevel") {
    stages.push_back(
        ByteLevel{value.flag_or("add_prefix_space", true), value.flag_or("use_regex", true)});
  } else if (type == "Metaspace") {
    stages.push_back(Metaspace{read_character(value.at("replacement")), read_prepend(value),
                               value.flag_or("split", true)});
  } else if (type == "WhitespaceSplit") {
    stages.push_back(CharacterSplit{is_whitespace, SplitBehavior::kRemoved});
  } else if (type == "Whitespace") {
    stages.push_back(WordSplit{});
  } else if (type == "Digits") {
    stages.push_back(CharacterSplit{is_numeric, value.flag_or("individual_digits", false)
                                                    ? SplitBehavior::kIsolated
                                                    : SplitBehavior::kContiguous});
  } else if (type == "BertPreTokenizer") {
    add_bert_pre_tokenizers(stages);
  } else if (type == "Punctuation") {
    stages.push_back(CharacterSplit{is_punctuation, read_behavior(value, "Isolated")});
  } else {
    value.refuse(
        "must be Split, ByteLevel, Metaspace, WhitespaceSplit, Whitespace, Digits, Punctuation, "
        "BertPreTokenizer or Sequence, got ",
        quote(type));
  }
}

void add_bert_pre_tokenizers(std::vector<PreTokenizer>& stages) {
  stages.emplace_back(CharacterSplit{is_whitespace, SplitBehavior::kRemoved});
  stages.emplace_back(CharacterSplit{is_punctuation, SplitBehavior::kIsolated});
}

void add_suffix_decoders(const std::string& suffix, std::vector<Decoder>& stages) {
  stages.emplace_back(DecodeReplace{Pattern::of_text(suffix), " "});
  stages.emplace_back(DecodeStrip{" ", 0, 1});
}

void read_decoder(const JsonValue& value, std::vector<Decoder>& stages) {
  const std::string_view type = value.at("type").text();
  if (type == "Sequence") {
    value.at("decoders").each([&](const JsonValue& each) { read_decoder(each, stages); });
  } else if (type == "ByteLevel") {
    stages.push_back(DecodeByteLevel{});
  } else if (type == "Metaspace") {
    stages.push_back(DecodeMetaspace{read_character(value.at("replacement")),
                                     read_prepend(value) != Metaspace::Prepend::kNever});
  } else if (type == "Replace") {
    stages.push_back(
        DecodeReplace{read_pattern(value.at("pattern")), std::string(value.at("content").text())});
  } else if (type == "ByteFallback") {
    stages.push_back(DecodeByteFallback{});
  } else if (type == "Fuse") {
    stages.push_back(DecodeFuse{});
  } else if (type == "Strip") {
    stages.push_back(DecodeStrip{read_character(value.at("content")), value.at("start").integer(),
                                 value.at("stop").integer()});
  } else if (type == "BPEDecoder") {
    stages.push_back(DecodeSuffix{value.text_or("suffix", "</w>")});
  } else if (type == "WordPiece") {
    stages.push_back(
        DecodeWordPiece{value.text_or("prefix", "##"), value.flag_or("cleanup", true)});
  } else {
    value.refuse(
        "must be ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, BPEDecoder, WordPiece "
        "or "
        "Sequence, got ",
        quote(type));
  }
}

}  // namespace kinora::tokenizers
