#include "kinora/prompts/html_text.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kinora/prompts/fixed_text.h"
#include "kinora/prompts/html_entities.h"

namespace kinora::prompts {
namespace {

constexpr size_t kLongestName = 32;

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// -1: none.
int digit_of(char c, int base) {
  const int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
  return value < base ? value : -1;
}

bool is_alphanumeric(char c) {
  return is_ascii_letter(c) || digit_of(c, 10) >= 0;
}

/// Nothing, as the standard calls these numbers an error.
bool is_nothing(uint32_t number) {
  return (number >= 0x1 && number <= 0x8) || number == 0xB || (number >= 0xE && number <= 0x1F) ||
         (number >= 0x7F && number <= 0x9F) || (number >= 0xFDD0 && number <= 0xFDEF) ||
         (number & 0xFFFE) == 0xFFFE;
}

std::string character(uint32_t number) {
  if (number >= 0x80 && number <= 0x9F) {
    return utf8(windows_1252(number));
  }
  if (number == 0 || (number >= 0xD800 && number <= 0xDFFF) || number > 0x10FFFF) {
    return utf8(kReplacementCharacter);
  }
  return is_nothing(number) ? "" : utf8(number);
}

struct Reference {
  size_t size;  // of "&...;"
  std::string text;
};

/// "&#228;" at the start of `text`; the semicolon may lack.
std::optional<Reference> number_at(std::string_view text) {
  const bool is_hex = text.size() > 2 && (text[2] == 'x' || text[2] == 'X');
  const int base = is_hex ? 16 : 10;
  const size_t begin = is_hex ? 3 : 2;
  size_t end = begin;
  uint32_t number = 0;
  while (end < text.size() && digit_of(text[end], base) >= 0) {
    constexpr uint32_t kBeyond = 0x110000;
    number = std::min(
        number * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit_of(text[end], base)),
        kBeyond);
    ++end;
  }
  if (end == begin) {
    return std::nullopt;
  }
  return Reference{.size = end + (end < text.size() && text[end] == ';' ? 1 : 0),
                   .text = character(number)};
}

/// "&auml;" at the start of `text`; without a semicolon the longest name that there is.
std::optional<Reference> name_at(std::string_view text) {
  size_t end = 1;
  while (end < text.size() && end <= kLongestName &&
         std::string_view("\t\n\f <&#;").find(text[end]) == std::string_view::npos) {
    ++end;
  }
  const size_t whole = end + (end < text.size() && text[end] == ';' ? 1 : 0);
  for (size_t size = whole; size > 1; --size) {
    if (const std::string_view found = find_html_entity(text.substr(1, size - 1)); !found.empty()) {
      return Reference{.size = size, .text = std::string(found)};
    }
  }
  return std::nullopt;
}

/// As html.parser finds them and BeautifulSoup reads them: a name is of letters, digits, points and
/// hyphens, and one that there is not stays, without its semicolon.
std::optional<Reference> reference_in_page(std::string_view text) {
  if (text.size() > 1 && text[1] == '#') {
    return number_at(text);
  }
  size_t end = 1;
  while (end < text.size() &&
         (is_alphanumeric(text[end]) || (end > 1 && (text[end] == '.' || text[end] == '-')))) {
    ++end;
  }
  if (end == 1 || !is_ascii_letter(text[1])) {
    return std::nullopt;
  }
  const size_t size = end + (end < text.size() && text[end] == ';' ? 1 : 0);
  const std::string_view found = find_html_entity(std::string(text.substr(1, end - 1)) + ";");
  return Reference{.size = size, .text = std::string(found.empty() ? text.substr(0, end) : found)};
}

/// Where the tag that begins at `at` ends, behind its ">"; npos if it does not.
size_t end_of_tag(std::string_view html, size_t at) {
  char quote = 0;
  for (size_t i = at; i < html.size(); ++i) {
    const char c = html[i];
    if (quote != 0) {
      quote = c == quote ? 0 : quote;
    } else if ((c == '"' || c == '\'') && html[i - 1] == '=') {
      quote = c;
    } else if (c == '>') {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char expected, char c) {
           return expected == (c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
         });
}

/// Where the text of an element goes on that has no tags in it, before its end tag.
size_t end_of_raw(std::string_view html, size_t at, std::string_view end_tag) {
  for (size_t i = html.find("</", at); i != std::string_view::npos; i = html.find("</", i + 1)) {
    if (starts_with_word(html.substr(i), end_tag)) {
      return i;
    }
  }
  return html.size();
}

/// Where what begins with the "<" at `at` ends, if it is no text; `at` if it is.
size_t end_of_markup(std::string_view html, size_t at) {
  const std::string_view rest = html.substr(at);
  const auto behind = [&](std::string_view what) {
    const size_t found = html.find(what, at);
    return found == std::string_view::npos ? at : found + what.size();
  };
  if (rest.starts_with("<!--")) {
    return behind("-->");
  }
  if (rest.starts_with("<!") || rest.starts_with("<?")) {
    return behind(">");
  }
  const bool is_end = rest.starts_with("</");
  if (rest.size() <= (is_end ? 2U : 1U)) {
    return at;
  }
  if (!is_ascii_letter(rest[is_end ? 2 : 1])) {
    return is_end ? behind(">") : at;
  }
  const size_t end = end_of_tag(html, at + 1);
  if (end == std::string_view::npos) {
    return at;
  }
  for (const auto& [start, end_tag] :
       {std::pair<std::string_view, std::string_view>{"<script", "</script"},
        {"<style", "</style"}}) {
    if (starts_with_word(rest, start) && !is_alphanumeric(rest[start.size()])) {
      return end_of_raw(html, end, end_tag);
    }
  }
  return end;
}

}  // namespace

std::string unescape_html(std::string_view text) {
  std::string result;
  size_t at = 0;
  while (at < text.size()) {
    const size_t begin = std::min(text.find('&', at), text.size());
    result += text.substr(at, begin - at);
    at = begin;
    if (at == text.size()) {
      break;
    }
    const std::string_view rest = text.substr(at);
    const std::optional<Reference> found =
        rest.size() > 1 && rest[1] == '#' ? number_at(rest) : name_at(rest);
    result += found ? found->text : "&";
    at += found ? found->size : 1;
  }
  return result;
}

std::string text_of_html(std::string_view html) {
  std::string result;
  size_t at = 0;
  bool has_end = true;  // whether there is any ">" behind
  while (at < html.size()) {
    const size_t begin = std::min(html.find_first_of("<&", at), html.size());
    result += html.substr(at, begin - at);
    at = begin;
    if (at == html.size()) {
      break;
    }
    if (html[at] == '&') {
      const std::optional<Reference> found = reference_in_page(html.substr(at));
      result += found ? found->text : "&";
      at += found ? found->size : 1;
      continue;
    }
    has_end = has_end && html.find('>', at) != std::string_view::npos;
    const size_t end = has_end ? end_of_markup(html, at) : at;
    if (end == at) {
      result += '<';
      ++at;
    } else {
      at = end;
    }
  }
  return result;
}

}  // namespace kinora::prompts
