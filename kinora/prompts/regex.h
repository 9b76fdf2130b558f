#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace kinora::prompts {

/// A regular expression over UTF-8, in which \w, \d, \s and \b know all scripts, as in Python.
class Regex {
 public:
  /// kInternal for a pattern that is none.
  explicit Regex(std::string_view pattern);
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  Regex(Regex&&) noexcept;
  ~Regex();

  /// `text` with each match replaced; $1 in the replacement is the first group, $$ a dollar.
  /// kConfig where matching takes too long.
  [[nodiscard]] std::string replaced(std::string_view text, std::string_view replacement) const;
  [[nodiscard]] int64_t count(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kinora::prompts
