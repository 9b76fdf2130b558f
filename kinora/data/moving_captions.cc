#include "kinora/data/moving_captions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "kinora/core/text.h"
#include "kinora/data/caption_words.h"

namespace kinora::data {
namespace {

constexpr std::array<std::string_view, 3> kVerbs = {"moving", "going", "gliding"};
constexpr std::array<Words, 1> kMoving = {kVerbs};

// Synonyms, by the value of the enum.
constexpr std::array<std::string_view, 3> kLeftwards = {"to the left", "left", "leftwards"};
constexpr std::array<std::string_view, 3> kRightwards = {"to the right", "right", "rightwards"};
constexpr std::array<std::string_view, 2> kUpwards = {"up", "upwards"};
constexpr std::array<std::string_view, 2> kDownwards = {"down", "downwards"};
constexpr std::array<Words, kNumMotions> kMotions = {kLeftwards, kRightwards, kUpwards, kDownwards};

constexpr std::array<std::string_view, 4> kClipOpenings = {"", "", "there is ", "a clip of "};

// N is the object, V the verb, D the direction.
constexpr std::array<std::string_view, 3> kClipSentences = {"N V D", "N which is V D", "V D is N"};

// Of clips whose caption leaves open what moves.
constexpr std::array<std::string_view, 3> kMotionSentences = {"it is V D", "V D",
                                                              "there it is V D"};

// Of the sentences, beside what they say.
constexpr std::array<std::string_view, 2> kBetween = {"which", "is"};

std::string words_for(const MovingContent& content, Choice& choice) {
  const std::string before = article(choice);
  const std::string colour = choice.of(kColours[static_cast<size_t>(content.colour)]);
  const std::string shape = choice.of(kShapes[static_cast<size_t>(content.shape)]);
  return with_article(before,
                      choice.below(3) == 0 ? shape + " in " + colour : colour + " " + shape);
}

/// The sentence with words in the place of its symbols.
std::string filled(std::string_view sentence, const MovingContent& content, Choice& choice) {
  std::string text;
  for (const std::string_view symbol : kinora::split(sentence, ' ')) {
    text += text.empty() ? "" : " ";
    text += symbol == "N"   ? words_for(content, choice)
            : symbol == "V" ? choice.of(kVerbs)
            : symbol == "D" ? choice.of(kMotions[static_cast<size_t>(content.motion)])
                            : std::string(symbol);
  }
  return text;
}

// Sets `value` where it has none; whether it had none.
template <typename T>
bool set_once(std::optional<T>& value, T found) {
  const bool is_first = !value.has_value();
  value = found;
  return is_first;
}

}  // namespace

std::string caption(const MovingContent& content, const RandomStream& stream) {
  Choice choice(stream);
  const std::string sentence = choice.of(kClipSentences);
  const std::string opening = sentence.front() == 'N' ? choice.of(kClipOpenings) : "";
  return opening + filled(sentence, content, choice);
}

std::string motion_caption(Motion motion, const RandomStream& stream) {
  Choice choice(stream);
  const std::string sentence = choice.of(kMotionSentences);
  return filled(sentence, {.motion = motion}, choice);
}

std::optional<MovingContent> moving_content_of(std::string_view caption) {
  std::optional<Colour> colour;
  std::optional<Shape> shape;
  std::optional<Motion> motion;
  std::optional<size_t> verb;
  for (const std::string& word : words_in(caption)) {
    bool is_known = std::find(kBetween.begin(), kBetween.end(), word) != kBetween.end();
    if (const auto found = find<Colour>(kColours, word)) {
      is_known = set_once(colour, *found);
    } else if (const auto a_shape = find<Shape>(kShapes, word)) {
      is_known = set_once(shape, *a_shape);
    } else if (const auto a_motion = find<Motion>(kMotions, word)) {
      is_known = set_once(motion, *a_motion);
    } else if (const auto a_verb = find<size_t>(kMoving, word)) {
      is_known = set_once(verb, *a_verb);
    }
    if (!is_known) {
      return std::nullopt;
    }
  }
  if (!colour || !shape || !motion || !verb) {
    return std::nullopt;
  }
  return MovingContent{*shape, *colour, *motion};
}

}  // namespace kinora::data
