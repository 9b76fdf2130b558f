#include "kinora/tokenizers/normalizers.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "kinora/core/error.h"
#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581
// A longer grapheme cluster is taken character by character (normalizers/precompiled.rs).
constexpr size_t kMaxClusterBytes = 5;

void check_normalized_size(size_t size) {
  KINORA_CHECK(size <= kMaxNormalizedBytes, kConfig,
               "[tokenizer] a normalised text must have at most ", kMaxNormalizedBytes,
               " bytes, got ", size);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char byte) { return static_cast<signed char>(byte) >= 0; });
}

/// Decomposed text with its marks in canonical order; sorting keeps long runs of marks cheap.
std::vector<utf8proc_int32_t> decomposed(std::string_view text, utf8proc_option_t options) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  int boundary = 0;
  std::array<utf8proc_int32_t, 64> parts = {};
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value),
                                               parts.data(), parts.size(), options, &boundary);
    KINORA_CHECK(count >= 0 && static_cast<size_t>(count) <= parts.size(), kInternal,
                 "[tokenizer] U+", std::hex, static_cast<uint32_t>(point.value),
                 " must have a decomposition");
    points.insert(points.end(), parts.begin(), parts.begin() + count);
    at += point.size;
  }
  const auto combining = [](utf8proc_int32_t point) {
    return utf8proc_get_property(point)->combining_class;
  };
  for (auto begin = points.begin(); begin != points.end();) {
    if (*begin < 0x300 || combining(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(),
                                  [&](utf8proc_int32_t point) { return combining(point) == 0; });
    std::stable_sort(begin, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining(a) < combining(b);
    });
    begin = end;
  }
  return points;
}

void apply(const UnicodeForm& form, NormalizedText& text) {
  if (is_ascii(text.text)) {
    return;
  }
  auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (form.composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (form.compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points = decomposed(text.text, options);
  auto size = static_cast<utf8proc_ssize_t>(points.size());
  if (form.composed) {
    size = utf8proc_normalize_utf32(points.data(), size, options);
  }
  text.text.clear();
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    append_utf8(text.text, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  }
}

void apply(const Lowercase& /*stage*/, NormalizedText& text) {
  std::string lower;
  lower.reserve(text.text.size());
  for (size_t at = 0; at < text.text.size();) {
    const CodePoint point = code_point_at(text.text, at);
    if (point.value < 0x80) {
      const char c = text.text[at];
      lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    } else if (point.value == 0x130) {
      lower += "i\xCC\x87";  // the only one whose lower case is longer
    } else {
      append_utf8(lower, static_cast<char32_t>(
                             utf8proc_tolower(static_cast<utf8proc_int32_t>(point.value))));
    }
    at += point.size;
  }
  text.text = std::move(lower);
}

void apply(const Replace& stage, NormalizedText& text) {
  std::vector<TextRange> matches;
  stage.pattern.find(text.text, matches);
  if (matches.empty()) {
    return;
  }
  // What replaces several characters counts as the last of them.
  const TextRange& first = matches.front();
  if (first.begin == 0 && first.end > 0 &&
      (stage.content.empty() || first.end > code_point_at(text.text, 0).size)) {
    text.at_start = false;
  }
  // The product fits: a file has at most 64 MiB, and a text 2^30 matches.
  check_normalized_size(text.text.size() + matches.size() * stage.content.size());
  std::string replaced;
  size_t at = 0;
  for (const TextRange& match : matches) {
    replaced.append(text.text, at, match.begin - at);
    replaced += stage.content;
    at = match.end;
  }
  replaced.append(text.text, at);
  text.text = std::move(replaced);
}

void apply(const Prepend& stage, NormalizedText& text) {
  if (!text.text.empty()) {
    text.text.insert(0, stage.text);
  }
}

void apply(const Strip& stage, NormalizedText& text) {
  std::string_view rest = text.text;
  while (stage.left && !rest.empty() && is_whitespace(code_point_at(rest, 0).value)) {
    rest.remove_prefix(code_point_at(rest, 0).size);
    text.at_start = false;
  }
  while (stage.right && !rest.empty()) {
    const size_t last = last_character(rest);
    if (!is_whitespace(code_point_at(rest, last).value)) {
      break;
    }
    rest = rest.substr(0, last);
  }
  text.text = std::string(rest);
}

/// Where the grapheme cluster that begins at `at` ends (Unicode standard annex 29).
size_t cluster_end(std::string_view text, size_t at) {
  CodePoint point = code_point_at(text, at);
  at += point.size;
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    const CodePoint next = code_point_at(text, at);
    const bool both_ascii = point.value < 0x80 && next.value < 0x80;
    const bool breaks = both_ascii ? point.value != '\r' || next.value != '\n'
                                   : utf8proc_grapheme_break_stateful(
                                         static_cast<utf8proc_int32_t>(point.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state);
    if (breaks) {
      break;
    }
    at += next.size;
    point = next;
  }
  return at;
}

void apply(const Precompiled& stage, NormalizedText& text) {
  const std::string_view from = text.text;
  std::string to;
  to.reserve(from.size());
  for (size_t at = 0; at < from.size();) {
    check_normalized_size(to.size());
    const size_t end = cluster_end(from, at);
    if (end - at <= kMaxClusterBytes) {
      const std::string_view cluster = from.substr(at, end - at);
      if (const auto replacement = stage.map.shortest(cluster)) {
        to += replacement->text;
        at = end;
        continue;
      }
    }
    while (at < end) {
      const std::string_view character = from.substr(at, code_point_at(from, at).size);
      const auto replacement = stage.map.shortest(character);
      to += replacement ? replacement->text : character;
      at += character.size();
    }
  }
  text.text = std::move(to);
}

/// Appends what `use` makes of each character.
template <typename Use>
void rewrite(NormalizedText& text, const Use& use) {
  std::string to;
  to.reserve(text.text.size());
  for (size_t at = 0; at < text.text.size();) {
    const CodePoint point = code_point_at(text.text, at);
    use(point.value, std::string_view(text.text).substr(at, point.size), to);
    at += point.size;
  }
  text.text = std::move(to);
}

/// The blocks of ideographs that BERT knows (normalizers/bert.rs).
bool is_ideograph(char32_t point) {
  constexpr std::array<std::pair<char32_t, char32_t>, 7> kBlocks = {{{0x3400, 0x4DBF},
                                                                     {0x4E00, 0x9FFF},
                                                                     {0xF900, 0xFAFF},
                                                                     {0x20000, 0x2A6DF},
                                                                     {0x2A700, 0x2B81F},
                                                                     {0x2B920, 0x2CEAF},
                                                                     {0x2F800, 0x2FA1F}}};
  return std::ranges::any_of(kBlocks, [point](const auto& block) {
    return point >= block.first && point <= block.second;
  });
}

void apply(const BertRules& rules, NormalizedText& text) {
  if (rules.clean_text) {
    rewrite(text, [](char32_t point, std::string_view character, std::string& to) {
      if (point == '\t' || point == '\n' || point == '\r') {
        to += ' ';
      } else if (!is_control(point) && point != 0xFFFD) {
        to += is_whitespace(point) ? " " : character;
      }
    });
  }
  if (rules.handle_chinese_chars) {
    rewrite(text, [](char32_t point, std::string_view character, std::string& to) {
      const std::string_view around = is_ideograph(point) ? " " : "";
      to.append(around).append(character).append(around);
    });
  }
  if (rules.strip_accents) {
    apply(UnicodeForm{.composed = false}, text);
    rewrite(text, [](char32_t point, std::string_view character, std::string& to) {
      to += is_nonspacing_mark(point) ? "" : character;
    });
  }
  if (rules.lowercase) {
    apply(Lowercase{}, text);
  }
}

/// What SentencePiece puts for the start of `text`.
CharMap::Replacement sentence_piece_start(const SentencePieceRules& rules, std::string_view text) {
  if (const auto kept = rules.kept.longest_prefix(text)) {
    return {kept->size, text.substr(0, kept->size)};
  }
  if (rules.map) {
    if (const auto replacement = rules.map->longest(text)) {
      return *replacement;
    }
  }
  const size_t size = code_point_at(text, 0).size;
  return {size, text.substr(0, size)};
}

void apply(const SentencePieceRules& rules, NormalizedText& text) {
  std::string_view rest = text.text;
  const std::string_view space = rules.escape_whitespaces ? kMetaSpace : " ";
  while (rules.remove_extra_whitespaces && !rest.empty()) {
    const CharMap::Replacement start = sentence_piece_start(rules, rest);
    if (start.text != " ") {
      break;
    }
    rest.remove_prefix(start.size);
  }
  std::string to;
  if (!rest.empty()) {
    to.reserve(rest.size() + rest.size() / 2 + space.size());
    const bool prefixed = rules.add_dummy_prefix && !rules.whitespace_as_suffix;
    to += prefixed ? space : "";
    bool after_space = rules.remove_extra_whitespaces;
    while (!rest.empty()) {
      check_normalized_size(to.size());
      CharMap::Replacement start = sentence_piece_start(rules, rest);
      rest.remove_prefix(start.size);
      while (after_space && start.text.starts_with(' ')) {
        start.text.remove_prefix(1);
      }
      if (!start.text.empty()) {
        for (const char c : start.text) {
          c == ' ' ? to += space : to += c;
        }
        after_space = rules.remove_extra_whitespaces && start.text.ends_with(' ');
      }
    }
    while (rules.remove_extra_whitespaces && to.ends_with(space)) {
      to.resize(to.size() - space.size());
    }
    to += rules.add_dummy_prefix && rules.whitespace_as_suffix ? space : "";
  }
  text.text = std::move(to);
}

}  // namespace

void normalize(const std::vector<Normalizer>& stages, NormalizedText& text) {
  for (const Normalizer& stage : stages) {
    std::visit([&text](const auto& each) { apply(each, text); }, stage);
  }
}

}  // namespace kinora::tokenizers
