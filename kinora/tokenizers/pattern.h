#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kinora/core/regex.h"

namespace kinora::tokenizers {

/// What a tokenizer's file calls a pattern: a text, or a regular expression in the dialect of
/// Oniguruma, which Hugging Face's tokenizers use.
class Pattern {
 public:
  /// Error (kIo), which begins with `where`: the expression is malformed or not supported.
  [[nodiscard]] static Pattern of_regex(std::string_view regex, std::string_view where) {
    return Pattern(Regex(regex, Regex::Dialect::kOniguruma, where));
  }
  [[nodiscard]] static Pattern of_text(std::string text) { return Pattern(std::move(text)); }

  /// Sets `matches` to all matches, from left to right, in well-formed UTF-8. May be called from
  /// several threads. Error (kConfig): the search takes too many steps.
  void find(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  explicit Pattern(std::variant<std::string, Regex> what) : what_(std::move(what)) {}

  std::variant<std::string, Regex> what_;
};

}  // namespace kinora::tokenizers
