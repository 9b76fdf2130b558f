#include "kinora/data/caption_words.h"

namespace kinora::data {
namespace {

constexpr std::array<std::string_view, 2> kArticles = {"a ", "one "};

// Words that reading a caption passes over.
constexpr std::array<std::string_view, 11> kFillers = {"a",  "an", "one",     "the",  "to",   "on",
                                                       "of", "in", "picture", "clip", "there"};

}  // namespace

std::string article(Choice& choice) {
  return choice.of(kArticles);
}

std::string with_article(const std::string& article, const std::string& text) {
  const bool is_vowel = text.front() == 'a' || text.front() == 'e';
  return (article == "a " && is_vowel ? "an " : article) + text;
}

std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    const bool is_upper = c >= 'A' && c <= 'Z';
    if (is_upper || (c >= 'a' && c <= 'z')) {
      words.back() += is_upper ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  std::erase_if(words, [](const std::string& word) {
    return word.empty() || std::find(kFillers.begin(), kFillers.end(), word) != kFillers.end();
  });
  return words;
}

}  // namespace kinora::data
