#include "kinora/data/scene_captions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/caption_words.h"

namespace kinora::data {
namespace {

// Synonyms, by the value of the enum.
constexpr std::array<std::string_view, 3> kSmall = {"small", "little", "tiny"};
constexpr std::array<std::string_view, 3> kLarge = {"large", "big", "huge"};
constexpr std::array<Words, kNumSizes> kSizes = {kSmall, kLarge};

constexpr std::array<std::string_view, 4> kOpenings = {"", "", "there is ", "a picture of "};

// "A is ... B", and "B with A ...".
constexpr std::array<std::string_view, 3> kLeftOf = {"to the left of", "left of", "on the left of"};
constexpr std::array<std::string_view, 3> kRightOf = {"to the right of", "right of",
                                                      "on the right of"};
constexpr std::array<std::string_view, 2> kAbove = {"above", "over"};
constexpr std::array<std::string_view, 3> kBelow = {"below", "under", "beneath"};
constexpr std::array<Words, kNumRelations> kRelations = {kLeftOf, kRightOf, kAbove, kBelow};
constexpr std::array<std::string_view, 2> kItsLeft = {"on its left", "to its left"};
constexpr std::array<std::string_view, 2> kItsRight = {"on its right", "to its right"};
constexpr std::array<std::string_view, 2> kAboveIt = {"above it", "over it"};
constexpr std::array<std::string_view, 3> kBelowIt = {"below it", "under it", "beneath it"};
constexpr std::array<Words, kNumRelations> kRelationsToIt = {kItsLeft, kItsRight, kAboveIt,
                                                             kBelowIt};

// How the objects of a scene become a sentence: N0 is the first object, R1 what the second is of
// the first, O1 the opposite, S1 the same as R1 with "it" for the first.
constexpr std::array<std::string_view, 1> kOfOne = {"N0"};
constexpr std::array<std::string_view, 3> kOfTwo = {"N1 R1 N0", "N0 with N1 S1", "R1 N0 is N1"};
constexpr std::array<std::string_view, 3> kOfThree = {
    "N0 O1 N1 and O2 N2", "N0 with N1 S1 and N2 S2", "N1 R1 N0 which is O2 N2"};
constexpr std::array<Words, kMostObjects> kSentences = {kOfOne, kOfTwo, kOfThree};

std::string words_for(const ObjectKind& kind, Choice& choice) {
  const std::string before = article(choice);
  const std::string size = choice.of(kSizes[static_cast<size_t>(kind.size)]);
  const std::string colour = choice.of(kColours[static_cast<size_t>(kind.colour)]);
  const std::string shape = choice.of(kShapes[static_cast<size_t>(kind.shape)]);
  const size_t order = choice.below(4);
  const std::string words = order == 0   ? colour + " " + size + " " + shape
                            : order == 1 ? size + " " + shape + " in " + colour
                                         : size + " " + colour + " " + shape;
  return with_article(before, words);
}

bool is_symbol(std::string_view word) {
  return word.size() == 2 && word[1] >= '0' && word[1] <= '2';
}

size_t object_of(std::string_view symbol) {
  return static_cast<size_t>(symbol[1] - '0');
}

// ---- back ----

// A word of a caption that counts. Only one of both is there beside the letter.
struct Item {
  std::string word;  // 'N', 'R' and 'S' as in sentences, else the word itself
  ObjectKind kind;
  Relation relation = Relation::kLeftOf;
};

// Objects are runs of words for size, colour and shape, each once; nothing for other runs.
std::optional<std::vector<Item>> items_in(const std::vector<std::string>& words) {
  std::vector<Item> items;
  for (size_t i = 0; i < words.size();) {
    std::optional<ObjectSize> size;
    std::optional<Colour> colour;
    std::optional<Shape> shape;
    const size_t begin = i;
    for (; i < words.size() && i < begin + 3; ++i) {
      const auto a_size = find<ObjectSize>(kSizes, words[i]);
      const auto a_colour = find<Colour>(kColours, words[i]);
      const auto a_shape = find<Shape>(kShapes, words[i]);
      if (!a_size && !a_colour && !a_shape) {
        break;
      }
      size = a_size ? a_size : size;
      colour = a_colour ? a_colour : colour;
      shape = a_shape ? a_shape : shape;
    }
    if (i > begin) {
      if (!size || !colour || !shape) {
        return std::nullopt;
      }
      items.push_back({.word = "N", .kind = {*size, *colour, *shape}});
      continue;
    }
    const bool is_its = words[i] == "its" && i + 1 < words.size();
    if (const auto relation = find<Relation>(kRelations, words[i + (is_its ? 1 : 0)])) {
      i += is_its ? 2 : 1;
      const bool is_it = !is_its && i < words.size() && words[i] == "it";
      i += is_it ? 1 : 0;
      items.push_back({.word = is_its || is_it ? "S" : "R", .kind = {}, .relation = *relation});
      continue;
    }
    items.push_back({.word = words[i++], .kind = {}});
  }
  if (!items.empty() && items.front().word == "is") {  // "there is"
    items.erase(items.begin());
  }
  return items;
}

// What `items` say if they are worded as `sentence`.
std::optional<SceneContent> read_as(std::string_view sentence, size_t num_objects,
                                    const std::vector<Item>& items) {
  const std::vector<std::string_view> symbols = kinora::split(sentence, ' ');
  if (symbols.size() != items.size()) {
    return std::nullopt;
  }
  SceneContent content;
  content.objects.resize(num_objects);
  content.relations.resize(num_objects - 1);
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (!is_symbol(symbols[i])) {
      if (item.word != symbols[i]) {
        return std::nullopt;
      }
      continue;
    }
    const char letter = symbols[i][0];
    if (item.word.size() != 1 || item.word[0] != (letter == 'O' ? 'R' : letter)) {
      return std::nullopt;
    }
    const size_t object = object_of(symbols[i]);
    if (letter == 'N') {
      content.objects[object] = item.kind;
    } else {
      content.relations[object - 1] = letter == 'O' ? opposite(item.relation) : item.relation;
    }
  }
  return content;
}

bool are_different(const std::vector<ObjectKind>& kinds) {
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (std::count(kinds.begin(), kinds.end(), kinds[i]) > 1) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string caption(const SceneContent& content, const RandomStream& stream) {
  KINORA_CHECK(!content.objects.empty() && content.objects.size() <= kSentences.size() &&
                   content.relations.size() + 1 == content.objects.size(),
               kInternal, "[scenes] there is no caption for ", content.objects.size(),
               " objects and ", content.relations.size(), " relations");
  Choice choice(stream);
  const std::string sentence = choice.of(kSentences[content.objects.size() - 1]);
  std::string text = sentence.front() == 'N' ? choice.of(kOpenings) : "";
  for (const std::string_view symbol : kinora::split(sentence, ' ')) {
    text += text.empty() || text.back() == ' ' ? "" : " ";
    if (!is_symbol(symbol)) {
      text += symbol;
    } else if (symbol[0] == 'N') {
      text += words_for(content.objects[object_of(symbol)], choice);
    } else {
      const Relation relation = content.relations[object_of(symbol) - 1];
      const Relation said = symbol[0] == 'O' ? opposite(relation) : relation;
      text +=
          choice.of((symbol[0] == 'S' ? kRelationsToIt : kRelations)[static_cast<size_t>(said)]);
    }
  }
  return text;
}

std::optional<SceneContent> content_of(std::string_view caption) {
  const std::optional<std::vector<Item>> items = items_in(words_in(caption));
  if (!items) {
    return std::nullopt;
  }
  for (size_t count = 1; count <= kSentences.size(); ++count) {
    for (const std::string_view sentence : kSentences[count - 1]) {
      std::optional<SceneContent> content = read_as(sentence, count, *items);
      if (content && are_different(content->objects)) {
        return content;
      }
    }
  }
  return std::nullopt;
}

}  // namespace kinora::data
