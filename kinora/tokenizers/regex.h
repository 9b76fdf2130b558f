#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::tokenizers {

/// A place in a text, in bytes.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

/// What a tokenizer's file calls a pattern: a text, or a regular expression in the dialect of
/// Oniguruma (Ruby), which Hugging Face's tokenizers use. It runs on PCRE2, compiled for the
/// machine: \s is Unicode's White_Space, \w letters, marks, numbers and connectors, \h a
/// hexadecimal digit, and ^ and $ match at every line. Classes within classes and && are refused.
class Pattern {
 public:
  /// Error (kIo), which begins with `where`: the expression is malformed or not supported.
  [[nodiscard]] static Pattern of_regex(std::string_view regex, std::string_view where);
  [[nodiscard]] static Pattern of_text(std::string text);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// Sets `matches` to all matches, from left to right, in well-formed UTF-8. May be called from
  /// several threads. Error (kConfig): the search takes too many steps.
  void find(std::string_view text, std::vector<Range>& matches) const;

 private:
  struct Compiled;
  Pattern();

  std::string text_;
  std::unique_ptr<Compiled> regex_;  // null: text_ itself is meant
};

}  // namespace kinora::tokenizers
