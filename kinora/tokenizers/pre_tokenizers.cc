#include "kinora/tokenizers/pre_tokenizers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

/// A part between or on matches.
struct Segment {
  TextRange range;
  bool is_match = false;
};

/// All of a text, in order: matches, and what is between them.
void to_segments(const std::vector<TextRange>& matches, size_t size, bool invert,
                 std::vector<Segment>& segments) {
  segments.clear();
  size_t at = 0;
  for (const TextRange& match : matches) {
    if (at < match.begin) {
      segments.push_back({{at, match.begin}, invert});
    }
    segments.push_back({match, !invert});
    at = match.end;
  }
  if (at < size) {
    segments.push_back({{at, size}, invert});
  }
}

/// Joins neighbours as `behavior` says (NormalizedString::split in tokenizers).
void join(SplitBehavior behavior, std::vector<Segment>& segments) {
  std::vector<Segment> joined;
  joined.reserve(segments.size());
  bool was_match = false;
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
      if (segment->is_match && !was_match && !joined.empty()) {
        joined.back().range.begin = segment->range.begin;
      } else {
        joined.push_back(*segment);
      }
      was_match = segment->is_match;
    }
    segments.assign(joined.rbegin(), joined.rend());
    return;
  }
  for (const Segment& segment : segments) {
    const bool joins = behavior == SplitBehavior::kContiguous ? segment.is_match == was_match
                                                              : segment.is_match && !was_match;
    if (joins && !joined.empty()) {
      joined.back().range.end = segment.range.end;
    } else {
      joined.push_back(segment);
    }
    was_match = segment.is_match;
  }
  segments = std::move(joined);
}

/// Divides every piece of text where find(text, segments) says.
template <typename Find>
void divide(DividedText& text, SplitBehavior behavior, const Find& find) {
  std::vector<Piece> pieces;
  pieces.reserve(2 * text.pieces.size());
  std::vector<Segment> segments;
  for (const Piece& piece : text.pieces) {
    if (piece.token >= 0) {
      pieces.push_back(piece);
      continue;
    }
    const auto begin = piece.range.begin;
    find(std::string_view(text.text).substr(begin, piece.range.end - begin), segments);
    if (behavior != SplitBehavior::kRemoved && behavior != SplitBehavior::kIsolated) {
      join(behavior, segments);
    }
    for (const auto& [range, is_match] : segments) {
      const bool is_removed = is_match && behavior == SplitBehavior::kRemoved;
      if (range.begin < range.end && !is_removed) {
        pieces.push_back(
            {{begin + range.begin, begin + range.end}, -1, piece.at_start && range.begin == 0});
      }
    }
  }
  text.pieces = std::move(pieces);
}

/// Writes every piece anew: write(piece, its text, the text to append to).
template <typename Write>
void rewrite(DividedText& text, const Write& write) {
  std::string written;
  written.reserve(text.text.size() + text.text.size() / 2);
  for (Piece& piece : text.pieces) {
    const std::string_view old =
        std::string_view(text.text).substr(piece.range.begin, piece.range.end - piece.range.begin);
    const size_t begin = written.size();
    if (piece.token >= 0) {
      written += old;
    } else {
      write(piece, old, written);
    }
    piece.range = {begin, written.size()};
  }
  text.text = std::move(written);
}

void divide_by(DividedText& text, const Split& split) {
  std::vector<TextRange> matches;
  divide(text, split.behavior, [&](std::string_view piece, std::vector<Segment>& segments) {
    split.pattern.find(piece, matches);
    to_segments(matches, piece.size(), split.invert, segments);
  });
}

void apply(const Split& split, DividedText& text) {
  divide_by(text, split);
}

void apply(const CharacterSplit& split, DividedText& text) {
  std::vector<TextRange> matches;
  divide(text, split.behavior, [&](std::string_view piece, std::vector<Segment>& segments) {
    matches.clear();
    for (size_t at = 0; at < piece.size();) {
      const CodePoint point = code_point_at(piece, at);
      if (split.is_match(point.value)) {
        matches.push_back({at, at + point.size});
      }
      at += point.size;
    }
    to_segments(matches, piece.size(), false, segments);
  });
}

void apply(const WordSplit& /*split*/, DividedText& text) {
  const auto kind_of = [](char32_t point) {
    return is_word_character(point) ? 1 : is_whitespace(point) ? 0 : 2;
  };
  divide(text, SplitBehavior::kIsolated,
         [&](std::string_view piece, std::vector<Segment>& segments) {
           segments.clear();
           int last = 0;
           for (size_t at = 0; at < piece.size();) {
             const CodePoint point = code_point_at(piece, at);
             const int kind = kind_of(point.value);
             if (kind != 0 && kind == last) {
               segments.back().range.end = at + point.size;
             } else if (kind != 0) {
               segments.push_back({{at, at + point.size}});
             }
             last = kind;
             at += point.size;
           }
         });
}

/// GPT-2's (pre_tokenizers/byte_level.rs).
const Split& word_split() {
  static const Split kSplit{
      Pattern::of_regex(
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
          "[tokenizer] ByteLevel"),
      SplitBehavior::kIsolated, false};
  return kSplit;
}

/// The character of each byte: itself where it is printable, else U+0100 and on, in order.
constexpr auto kByteCharacters = [] {
  std::array<char16_t, 256> characters = {};
  char16_t next = 256;
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    characters[byte] = is_printable ? static_cast<char16_t>(byte) : next++;
  }
  return characters;
}();

void apply(const ByteLevel& stage, DividedText& text) {
  if (stage.add_prefix_space) {
    rewrite(text, [](const Piece& /*piece*/, std::string_view old, std::string& written) {
      written += old.starts_with(' ') ? "" : " ";
      written += old;
    });
  }
  if (stage.use_regex) {
    divide_by(text, word_split());
  }
  rewrite(text, [](const Piece& /*piece*/, std::string_view old, std::string& written) {
    append_byte_level(old, written);
  });
}

void apply(const Metaspace& stage, DividedText& text) {
  rewrite(text, [&](const Piece& piece, std::string_view old, std::string& written) {
    const bool wants = stage.prepend == Metaspace::Prepend::kAlways ||
                       (stage.prepend == Metaspace::Prepend::kFirst && piece.at_start);
    if (wants && !old.starts_with(' ') && !old.starts_with(stage.replacement)) {
      written += stage.replacement;
    }
    for (const char c : old) {
      c == ' ' ? written += stage.replacement : written += c;
    }
  });
  if (stage.split) {
    const std::string_view mark = stage.replacement;
    divide(text, SplitBehavior::kIsolated,
           [&](std::string_view piece, std::vector<Segment>& segments) {
             segments.clear();
             size_t begin = 0;
             while (begin < piece.size()) {
               const size_t end = std::min(piece.find(mark, begin + 1), piece.size());
               segments.push_back({{begin, end}});
               begin = end;
             }
           });
  }
}

}  // namespace

void pre_tokenize(const std::vector<PreTokenizer>& stages, DividedText& text) {
  for (const PreTokenizer& stage : stages) {
    std::visit([&text](const auto& each) { apply(each, text); }, stage);
  }
}

void append_byte_level(std::string_view bytes, std::string& text) {
  for (const char byte : bytes) {
    const char16_t character = kByteCharacters[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
}

bool from_byte_level(std::string_view text, std::string& bytes) {
  static const auto kBytes = [] {
    std::array<int, 512> values = {};
    values.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) {
      values[kByteCharacters[byte]] = static_cast<int>(byte);
    }
    return values;
  }();
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value >= kBytes.size() || kBytes[point.value] < 0) {
      return false;
    }
    bytes += static_cast<char>(kBytes[point.value]);
    at += point.size;
  }
  return true;
}

}  // namespace kinora::tokenizers
