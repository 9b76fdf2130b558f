#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kinora {

/// A place in a text, in bytes.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

/// A regular expression over UTF-8. It runs on PCRE2, compiled for the machine where it can be, and
/// may be used by several threads at once. Example:
///
///     const Regex address("https?://\\S+", Regex::Dialect::kPython, "[prompt]");
///     address.replaced("see http://a.org now", "");  // "see  now"
class Regex {
 public:
  enum class Dialect : uint8_t {
    /// Of Python's re: \w, \d, \s and \b know all scripts.
    kPython,
    /// Of Oniguruma (Ruby): \s is Unicode's White_Space, \w letters, marks, numbers and connectors,
    /// \h a hexadecimal digit, and ^ and $ match at every line. Classes within classes and && are
    /// refused.
    kOniguruma,
  };

  /// Error (kIo), which begins with `where`: the expression is malformed or not supported.
  Regex(std::string_view expression, Dialect dialect, std::string_view where);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// Sets `matches` to all matches, from left to right, in well-formed UTF-8; as in Oniguruma, no
  /// empty one right behind another. Error (kConfig): the search takes too many steps.
  void find(std::string_view text, std::vector<TextRange>& matches) const;

  /// `text` with each match replaced; $1 in the replacement is the first group, $$ a dollar. Error
  /// (kConfig): as find(), and for a text that is not UTF-8.
  [[nodiscard]] std::string replaced(std::string_view text, std::string_view replacement) const;

 private:
  struct Compiled;

  std::string expression_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kinora
