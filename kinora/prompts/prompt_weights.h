#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kinora::prompts {

/// A piece of a prompt, and how much it counts: 1 as it is.
struct WeightedText {
  std::string text;
  double weight = 1.0;

  bool operator==(const WeightedText&) const = default;
};

/// How weights are written.
enum class WeightSyntax {
  kNone,  ///< not at all: the prompt is one piece
  /// AUTOMATIC1111's: (word) counts 1.1 times, ((word)) 1.21 times, [word] 1 / 1.1 times,
  /// (word:1.3) 1.3 times; \( \) \[ \] \\ are the characters. A bracket that is not closed counts
  /// up to the end.
  kBrackets,
  /// Compel's: word+ counts 1.1 times, word++ 1.21 times, word- 0.9 times; (a phrase)+, (a
  /// phrase)1.3 and "a phrase"+ as a whole; \( \) \" \\ are the characters. Brackets and signs that
  /// are none of these stay text. Its .and(), .blend() and .swap() are not read.
  kSigns,
};

/// A prompt may be so long, and its brackets so deep.
inline constexpr size_t kMostPromptBytes = size_t{1} << 20;
inline constexpr int kMostBracketDepth = 64;

/// The pieces of a prompt, neighbours of one weight as one; an empty prompt is one empty piece.
/// Brackets and signs are left out of them. kConfig for a prompt that is too long or too deep, and
/// for a weight that is no number.
[[nodiscard]] std::vector<WeightedText> parse_weights(std::string_view prompt, WeightSyntax syntax);

}  // namespace kinora::prompts
