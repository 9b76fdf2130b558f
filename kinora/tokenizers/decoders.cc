#include "kinora/tokenizers/decoders.h"

#include <optional>
#include <utility>

#include "kinora/core/text.h"
#include "kinora/tokenizers/pre_tokenizers.h"
#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

using TokenTexts = std::vector<std::string>;

std::string joined(const TokenTexts& tokens) {
  std::string text;
  for (const std::string& token : tokens) {
    text += token;
  }
  return text;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string replaced;
  size_t at = 0;
  for (size_t found = text.find(from); !from.empty() && found != std::string::npos;
       found = text.find(from, at)) {
    replaced.append(text, at, found - at).append(to);
    at = found + from.size();
  }
  text = replaced.append(text, at);
}

void apply(const DecodeByteLevel& /*stage*/, TokenTexts& tokens) {
  std::string all;
  std::string bytes;
  for (const std::string& token : tokens) {
    all += from_byte_level(token, bytes) ? bytes : token;
  }
  tokens = {replace_broken(all)};
}

void apply(const DecodeMetaspace& stage, TokenTexts& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    replace_all(tokens[i], stage.replacement, i == 0 && stage.is_prepended ? "" : " ");
  }
}

void apply(const DecodeReplace& stage, TokenTexts& tokens) {
  std::vector<TextRange> matches;
  for (std::string& token : tokens) {
    stage.pattern.find(token, matches);
    std::string replaced;
    size_t at = 0;
    for (const TextRange& match : matches) {
      replaced.append(token, at, match.begin - at).append(stage.content);
      at = match.end;
    }
    token = replaced.append(token, at);
  }
}

std::optional<char> byte_of(const std::string& token) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>' || digit(token[3]) < 0 ||
      digit(token[4]) < 0) {
    return std::nullopt;
  }
  return static_cast<char>(16 * digit(token[3]) + digit(token[4]));
}

void apply(const DecodeByteFallback& /*stage*/, TokenTexts& tokens) {
  TokenTexts decoded;
  std::string bytes;
  const auto flush = [&] {
    if (is_utf8(bytes)) {
      decoded.push_back(bytes);
    } else {
      decoded.insert(decoded.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
    } else {
      flush();
      decoded.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(decoded);
}

void apply(const DecodeFuse& /*stage*/, TokenTexts& tokens) {
  tokens = {joined(tokens)};
}

void apply(const DecodeStrip& stage, TokenTexts& tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (int64_t i = 0; i < stage.start && rest.starts_with(stage.content); ++i) {
      rest.remove_prefix(stage.content.size());
    }
    for (int64_t i = 0; i < stage.stop && rest.ends_with(stage.content); ++i) {
      rest.remove_suffix(stage.content.size());
    }
    token = std::string(rest);
  }
}

void apply(const DecodeSuffix& stage, TokenTexts& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    replace_all(tokens[i], stage.suffix, i + 1 == tokens.size() ? "" : " ");
  }
}

void apply(const DecodeWordPiece& stage, TokenTexts& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && tokens[i].starts_with(stage.prefix)) {
      tokens[i].erase(0, stage.prefix.size());
    } else if (i > 0) {
      tokens[i].insert(0, " ");
    }
    // decoders/wordpiece.rs, in its order.
    for (const auto& [from, to] :
         {std::pair(" .", "."), std::pair(" ?", "?"), std::pair(" !", "!"), std::pair(" ,", ","),
          std::pair(" ' ", "'"), std::pair(" n't", "n't"), std::pair(" 'm", "'m"),
          std::pair(" do not", " don't"), std::pair(" 's", "'s"), std::pair(" 've", "'ve"),
          std::pair(" 're", "'re")}) {
      if (stage.cleanup) {
        replace_all(tokens[i], from, to);
      }
    }
  }
}

}  // namespace

std::string decode_tokens(const std::vector<Decoder>& stages, std::vector<std::string> tokens) {
  for (const Decoder& stage : stages) {
    std::visit([&tokens](const auto& each) { apply(each, tokens); }, stage);
  }
  return joined(tokens);
}

}  // namespace kinora::tokenizers
