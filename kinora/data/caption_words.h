#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/philox.h"
#include "kinora/data/shapes.h"

/// Words that the captions of generated scenes (data/scene_captions.h) and of generated clips
/// (data/moving_captions.h) have in common, and how they are drawn and found again.
namespace kinora::data {

/// Wordings of one thing.
using Words = std::span<const std::string_view>;

// Synonyms, by the value of the enum.
inline constexpr std::array<std::string_view, 2> kRed = {"red", "crimson"};
inline constexpr std::array<std::string_view, 2> kGreen = {"green", "emerald"};
inline constexpr std::array<std::string_view, 2> kBlue = {"blue", "azure"};
inline constexpr std::array<std::string_view, 2> kYellow = {"yellow", "golden"};
inline constexpr std::array<std::string_view, 2> kCircle = {"circle", "disc"};
inline constexpr std::array<std::string_view, 2> kSquare = {"square", "box"};
inline constexpr std::array<std::string_view, 2> kTriangle = {"triangle", "wedge"};
inline constexpr std::array<std::string_view, 2> kCross = {"cross", "plus"};
inline constexpr std::array<Words, kNumColours> kColours = {kRed, kGreen, kBlue, kYellow};
inline constexpr std::array<Words, kNumShapes> kShapes = {kCircle, kSquare, kTriangle, kCross};

/// One random choice after the other.
class Choice {
 public:
  explicit Choice(const RandomStream& stream) : stream_(stream) {}
  size_t below(size_t count) {
    return random_index(stream_, next_++, static_cast<uint32_t>(count));
  }
  std::string of(Words words) { return std::string(words[below(words.size())]); }

 private:
  RandomStream stream_;
  uint64_t next_ = 0;
};

/// "a " or "one " to stand before a word.
[[nodiscard]] std::string article(Choice& choice);

/// `text` behind the article, which becomes "an " before a vowel.
[[nodiscard]] std::string with_article(const std::string& article, const std::string& text);

/// The words of a caption that count, in lower case: runs of letters without "the", "of" and such.
[[nodiscard]] std::vector<std::string> words_in(std::string_view text);

/// The value of the enum for which `word` is one of the synonyms, or the word that counts of one
/// ("left" of "to the left of").
template <typename Enum>
[[nodiscard]] std::optional<Enum> find(std::span<const Words> synonyms, std::string_view word) {
  for (size_t i = 0; i < synonyms.size(); ++i) {
    for (const std::string_view synonym : synonyms[i]) {
      const std::vector<std::string> counting = words_in(synonym);
      if (std::find(counting.begin(), counting.end(), word) != counting.end()) {
        return static_cast<Enum>(i);
      }
    }
  }
  return std::nullopt;
}

}  // namespace kinora::data
