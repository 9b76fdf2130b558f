#include <algorithm>
#include <array>
#include <charconv>

#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"

namespace kinora::tokenizers {
namespace {

// Hugging Face writes 1e30 for "no limit".
constexpr double kMaxMaxLength = 1e9;

// T5 has 100. Each is a token to look for.
constexpr int64_t kMaxExtraIds = int64_t{1} << 16;

/// A token as text, or as an object with how it is looked for.
AddedToken config_token(const JsonValue& value) {
  AddedToken token;
  if (value.is_text()) {
    token.content = value.text();
    return token;
  }
  token.content = value.at("content").text();
  token.single_word = value.flag_or("single_word", false);
  token.lstrip = value.flag_or("lstrip", false);
  token.rstrip = value.flag_or("rstrip", false);
  token.normalized = value.flag_or("normalized", false);
  token.special = value.flag_or("special", true);
  return token;
}

void read_roles(const JsonValue& root, TokenizerConfig& config) {
  for (const char* role : {"bos_token", "eos_token", "unk_token", "pad_token", "cls_token",
                           "sep_token", "mask_token"}) {
    if (const auto value = root.find(role)) {
      std::erase_if(config.tokens, [role](const auto& each) { return each.role == role; });
      config.tokens.push_back({role, config_token(*value)});
    }
  }
}

void read_added(const JsonValue& decoder, TokenizerConfig& config) {
  decoder.each_member([&](std::string_view key, const JsonValue& value) {
    AddedToken token = config_token(value);
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (error != std::errc() || end != key.data() + key.size()) {
      value.refuse("must be named by an id, got ", key);
    }
    config.added.push_back(std::move(token));
  });
  std::sort(config.added.begin(), config.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

TokenizerConfig read_files(const TokenizerFiles& files) {
  TokenizerConfig config;
  if (const auto* const map = files.find("special_tokens_map.json")) {
    const JsonFile file(*map);
    read_roles(file.root(), config);
  }
  const auto* const main = files.find("tokenizer_config.json");
  if (main == nullptr) {
    return config;
  }
  const JsonFile file(*main);
  const JsonValue root = file.root();
  read_roles(root, config);
  config.tokenizer_class = root.text_or("tokenizer_class", "");
  if (const auto decoder = root.find("added_tokens_decoder")) {
    read_added(*decoder, config);
  }
  if (const auto length = root.find("model_max_length")) {
    const double value = length->number();
    if (!(value >= 1)) {
      length->refuse("must be at least 1, got ", value);
    }
    config.max_length = value <= kMaxMaxLength ? static_cast<int64_t>(value) : 0;
  }
  config.cut_left = root.text_or("truncation_side", "right") == "left";
  const auto flag = [&root](const char* name) {
    const auto value = root.find(name);
    return value ? std::optional(value->flag()) : std::nullopt;
  };
  config.sentence_piece.add_bos = flag("add_bos_token");
  config.sentence_piece.add_eos = flag("add_eos_token");
  config.bert.lowercase = root.flag_or("do_lower_case", true);
  config.bert.handle_chinese_chars = root.flag_or("tokenize_chinese_chars", true);
  config.bert.strip_accents = root.flag_or("strip_accents", config.bert.lowercase);
  if (const auto count = root.find("extra_ids")) {
    const int64_t value = count->integer();
    if (value < 0 || value > kMaxExtraIds) {
      count->refuse("must be 0 to ", kMaxExtraIds, ", got ", value);
    }
    config.sentence_piece.num_extra_ids = value;
  }
  return config;
}

}  // namespace

TokenizerConfig read_tokenizer_config(const TokenizerFiles& files) {
  TokenizerConfig config = read_files(files);
  for (const auto& [content, id] : files.added()) {
    AddedToken token;
    token.content = content;
    token.id = id;
    token.special = false;
    config.added.push_back(std::move(token));
  }
  return config;
}

}  // namespace kinora::tokenizers
