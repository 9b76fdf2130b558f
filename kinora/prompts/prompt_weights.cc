#include "kinora/prompts/prompt_weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::prompts {
namespace {

constexpr double kMore = 1.1;          // one round bracket, one plus
constexpr double kLess = 1.0 / kMore;  // one square bracket
constexpr double kMinus = 0.9;

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Bytes of other scripts count as letters.
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

double number_of(std::string_view text) {
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  double number = 0.0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  KINORA_CHECK(
      read.ec == std::errc() && read.ptr == digits.data() + digits.size() && std::isfinite(number),
      kConfig, "[prompt] a weight must be a number, got ", quote(text),
      ". Hint: (word:1.3), or \\( for a bracket that is text");
  return number;
}

void check_depth(size_t depth) {
  KINORA_CHECK(depth <= kMostBracketDepth, kConfig, "[prompt] brackets must be at most ",
               kMostBracketDepth, " deep, got more. Hint: \\( for a bracket that is text");
}

std::vector<WeightedText> merged(std::vector<WeightedText> pieces) {
  std::vector<WeightedText> result;
  for (WeightedText& piece : pieces) {
    if (!result.empty() && result.back().weight == piece.weight) {
      result.back().text += piece.text;
    } else {
      result.push_back(std::move(piece));
    }
  }
  if (result.empty()) {
    result.emplace_back();
  }
  return result;
}

/// What stands behind a colon up to the bracket that it closes: "1.3" of ":1.3)". Nothing if it is
/// not of digits, points and a sign.
std::optional<std::string_view> weight_behind(std::string_view text) {
  const size_t sign = !text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  size_t end = sign;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) {
    ++end;
  }
  if (end == sign || end == text.size() || text[end] != ')') {
    return std::nullopt;
  }
  return text.substr(0, end);
}

std::vector<WeightedText> parse_brackets(std::string_view prompt) {
  std::vector<WeightedText> pieces;
  std::vector<size_t> round;   // where each open one begins
  std::vector<size_t> square;  // likewise
  const auto close = [&pieces](std::vector<size_t>& open, double factor) {
    for (size_t i = open.back(); i < pieces.size(); ++i) {
      pieces[i].weight *= factor;
    }
    open.pop_back();
  };
  const auto add = [&pieces](std::string_view text) {
    pieces.push_back({.text = std::string(text), .weight = 1.0});
  };
  size_t at = 0;
  while (at < prompt.size()) {
    const char c = prompt[at];
    const std::string_view rest = prompt.substr(at + 1);
    if (c == '\\') {
      const bool escapes =
          !rest.empty() && std::string_view("()[]\\").find(rest[0]) != std::string_view::npos;
      add(rest.substr(0, escapes ? 1 : 0));
      at += escapes ? 2 : 1;
      continue;
    }
    const std::optional<std::string_view> weight =
        c == ':' ? weight_behind(rest) : std::optional<std::string_view>();
    if (weight && !round.empty()) {
      close(round, number_of(*weight));
      at += weight->size() + 2;
      continue;
    }
    if (c == '(' || c == '[') {
      (c == '(' ? round : square).push_back(pieces.size());
      check_depth(round.size() + square.size());
    } else if (c == ')' && !round.empty()) {
      close(round, kMore);
    } else if (c == ']' && !square.empty()) {
      close(square, kLess);
    } else {
      // Up to where something else may begin.
      const size_t end = std::min(prompt.find_first_of("\\()[]:", at + 1), prompt.size());
      add(prompt.substr(at, end - at));
      at = end;
      continue;
    }
    ++at;
  }
  // Those that are open count up to the end.
  while (!round.empty()) {
    close(round, kMore);
  }
  while (!square.empty()) {
    close(square, kLess);
  }
  return merged(std::move(pieces));
}

/// Signs behind a phrase or word: how long they are, and what they say.
struct Suffix {
  size_t size = 0;
  double factor = 1.0;
};

/// What may follow signs.
bool ends_word(std::string_view text, size_t at) {
  return at >= text.size() || is_space(text[at]) ||
         std::string_view(",.;:!?()").find(text[at]) != std::string_view::npos;
}

/// "++", "--" or, behind phrases, "1.3". size 0: there is none.
Suffix suffix_at(std::string_view text, size_t at, bool takes_number) {
  size_t end = at;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) {
    while (end < text.size() && text[end] == text[at]) {
      ++end;
    }
    const double base = text[at] == '+' ? kMore : kMinus;
    const Suffix suffix{.size = end - at, .factor = std::pow(base, static_cast<double>(end - at))};
    return ends_word(text, end) && std::isfinite(suffix.factor) ? suffix : Suffix{};
  }
  if (!takes_number) {
    return {};
  }
  bool has_point = false;
  while (end < text.size()) {
    const bool is_point =
        text[end] == '.' && !has_point && end + 1 < text.size() && is_digit(text[end + 1]);
    if (!is_digit(text[end]) && !is_point) {
      break;
    }
    has_point = has_point || is_point;
    ++end;
  }
  return end > at && ends_word(text, end)
             ? Suffix{.size = end - at, .factor = number_of(text.substr(at, end - at))}
             : Suffix{};
}

/// Reads one prompt with Compel's signs.
class SignParser {
 public:
  explicit SignParser(std::string_view prompt) : prompt_(prompt), closing_(prompt.size(), 0) {
    find_closing();
  }

  std::vector<WeightedText> parse() {
    add(0, prompt_.size(), 1.0, 0);
    return merged(std::move(pieces_));
  }

 private:
  /// Where each bracket and quote that has a partner ends.
  void find_closing() {
    std::vector<size_t> open;
    size_t quote_at = prompt_.size();
    for (size_t i = 0; i < prompt_.size(); ++i) {
      const char c = prompt_[i];
      if (c == '\\') {
        ++i;
      } else if (c == '(') {
        open.push_back(i);
      } else if (c == ')' && !open.empty()) {
        closing_[open.back()] = i;
        open.pop_back();
      } else if (c == '"') {
        if (quote_at < prompt_.size()) {
          closing_[quote_at] = i;
          quote_at = prompt_.size();
        } else {
          quote_at = i;
        }
      }
    }
  }

  void add(size_t begin, size_t end, double weight, size_t depth) {
    check_depth(depth);
    bool in_word = false;  // a bracket within a word is text
    size_t at = begin;
    while (at < end) {
      const char c = prompt_[at];
      const size_t close = closing_[at];
      if (c == '\\' && at + 1 < end &&
          std::string_view("()\"\\").find(prompt_[at + 1]) != std::string_view::npos) {
        put(prompt_.substr(at + 1, 1), weight);
        at += 2;
        in_word = true;
      } else if (close > at && close < end && !in_word) {
        const Suffix suffix = suffix_at(prompt_.substr(0, end), close + 1, c == '(');
        if (c == '"' && suffix.size == 0) {
          put(prompt_.substr(at, 1), weight);  // quotes that are text
          ++at;
          continue;
        }
        add(at + 1, close, weight * suffix.factor, depth + 1);
        at = close + 1 + suffix.size;
      } else if (is_letter(c) || is_digit(c)) {
        at = add_word(at, end, weight);
        in_word = true;
      } else {
        put(prompt_.substr(at, 1), weight);
        in_word = c == '+' || c == '-' ? in_word : false;
        ++at;
      }
    }
  }

  /// Letters, digits and what lies between them, with the signs behind. Returns where it ends.
  size_t add_word(size_t begin, size_t end, double weight) {
    size_t stop = begin;
    bool has_letter = false;
    for (size_t i = begin; i < end; ++i) {
      if (is_letter(prompt_[i]) || is_digit(prompt_[i])) {
        has_letter = has_letter || is_letter(prompt_[i]);
        stop = i + 1;
      } else if (std::string_view("+-_'.").find(prompt_[i]) == std::string_view::npos) {
        break;
      }
    }
    const Suffix suffix =
        has_letter ? suffix_at(prompt_.substr(0, end), stop, /*takes_number=*/false) : Suffix{};
    put(prompt_.substr(begin, stop - begin), weight * suffix.factor);
    return stop + suffix.size;
  }

  void put(std::string_view text, double weight) {
    if (!pieces_.empty() && pieces_.back().weight == weight) {
      pieces_.back().text += text;
    } else {
      pieces_.push_back({.text = std::string(text), .weight = weight});
    }
  }

  std::string_view prompt_;
  std::vector<size_t> closing_;
  std::vector<WeightedText> pieces_;
};

}  // namespace

std::vector<WeightedText> parse_weights(std::string_view prompt, WeightSyntax syntax) {
  KINORA_CHECK(prompt.size() <= kMostPromptBytes, kConfig, "[prompt] a prompt must be at most ",
               human_bytes(kMostPromptBytes), " long, got ",
               human_bytes(static_cast<int64_t>(prompt.size())));
  switch (syntax) {
    case WeightSyntax::kNone:
      return {{.text = std::string(prompt), .weight = 1.0}};
    case WeightSyntax::kBrackets:
      return parse_brackets(prompt);
    case WeightSyntax::kSigns:
      return SignParser(prompt).parse();
  }
  KINORA_UNREACHABLE("[prompt] unknown syntax");
}

}  // namespace kinora::prompts
