#include "kinora/prompts/caption_cleaning.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kinora/core/regex.h"
#include "kinora/prompts/fixed_text.h"
#include "kinora/prompts/html_text.h"

namespace kinora::prompts {
namespace {

struct Rule {
  Regex what;
  const char* replacement;
};

using Rules = std::vector<Rule>;

Rules rules_of(std::initializer_list<std::pair<const char*, const char*>> texts) {
  Rules rules;
  for (const auto& [pattern, replacement] : texts) {
    rules.push_back({Regex(pattern, Regex::Dialect::kPython, "[prompt]"), replacement});
  }
  return rules;
}

std::string applied(const Rules& rules, std::string text) {
  for (const Rule& rule : rules) {
    text = rule.what.replaced(text, rule.replacement);
  }
  return text;
}

/// What is left out before tags are.
const Rules& addresses() {
  static const Rules kRules = rules_of({
      {"<person>", "person"},
      {R"(\b((?:https?:(?:\/{1,3}|[a-zA-Z0-9%])|[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b\/?(?!@))))",
       ""},
      {R"(\b((?:www:(?:\/{1,3}|[a-zA-Z0-9%])|[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b\/?(?!@))))",
       ""},
  });
  return kRules;
}

const Rules& characters_and_numbers() {
  static const Rules kRules = rules_of({
      {R"(@[\w\d]+\b)", ""},
      // Strokes, extensions of Katakana, what is enclosed, compatibility, ideographs, hexagrams.
      {R"([\x{31c0}-\x{31ef}]+)", ""},
      {R"([\x{31f0}-\x{31ff}]+)", ""},
      {R"([\x{3200}-\x{32ff}]+)", ""},
      {R"([\x{3300}-\x{33ff}]+)", ""},
      {R"([\x{3400}-\x{4dbf}]+)", ""},
      {R"([\x{4dc0}-\x{4dff}]+)", ""},
      {R"([\x{4e00}-\x{9fff}]+)", ""},
      // Every dash, and every quote.
      {R"([\x{002D}\x{058A}\x{05BE}\x{1400}\x{1806}\x{2010}-\x{2015}\x{2E17}\x{2E1A}\x{2E3A}\x{2E3B}\x{2E40}\x{301C}\x{3030}\x{30A0}\x{FE31}\x{FE32}\x{FE58}\x{FE63}\x{FF0D}]+)",
       "-"},
      {R"([`\x{b4}\x{ab}\x{bb}\x{201c}\x{201d}\x{a8}])", "\""},
      {R"([\x{2018}\x{2019}])", "'"},
      {R"(&quot;?)", ""},
      {R"(&amp)", ""},
      {R"(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})", " "},  // addresses of machines
      {R"(\d:\d\d\s+$)", ""},                          // numbers of articles
      {R"(\\n)", " "},
      {R"(#\d{1,3}\b)", ""},
      {R"(#\d{5,}\b)", ""},
      {R"(\b\d{6,}\b)", ""},
      {R"([\S]+\.(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4))", ""},
      {R"(["']{2,})", "\""},
      {R"([\.]{2,})", " "},
      {R"([#\x{ae}\x{2022}\x{a9}\x{2122}&@\x{b7}\x{ba}\x{bd}\x{be}\x{bf}\x{a1}\x{a7}~\)\(\]\[\}\{\|\\/\*]{1,})",
       " "},
      {R"(\s+\.\s+)", " "},
  });
  return kRules;
}

/// Of names such as this-is-my-cute-cat, from the fourth on.
std::string without_joints(std::string text) {
  constexpr int64_t kMostJoints = 3;
  const auto is_joint = [](char character) { return character == '-' || character == '_'; };
  if (std::ranges::count_if(text, is_joint) > kMostJoints) {
    std::ranges::replace_if(text, is_joint, ' ');
  }
  return text;
}

const Rules& words() {
  static const Rules kRules = rules_of({
      {R"(\b[a-zA-Z]{1,3}\d{3,15}\b)", ""},
      {R"(\b[a-zA-Z]+\d+[a-zA-Z]+\b)", ""},
      {R"(\b\d+[a-zA-Z]+\d+\b)", ""},
      {R"((worldwide\s+)?(free\s+)?shipping)", ""},
      {R"((free\s)?download(\sfree)?)", ""},
      {R"(\bclick\b\s(?:for|on)\s\w+)", ""},
      {R"(\b(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)(\simage[s]?)?)", ""},
      {R"(\bpage\s+\d+\b)", ""},
      {R"(\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b)", " "},
      {R"(\b\d+\.?\d*[x\x{445}\x{d7}]\d+\.?\d*\b)", ""},
      {R"(\b\s+\:\s+)", ": "},
      {R"((\D[,\./])\b)", "$1 "},
      {R"(\s+)", " "},
      {R"(^["']([\w\W]+)["']$)", "$1"},
      {R"(^['\_,\-\:;])", ""},
      {R"(['\_,\-\:\-\+]$)", ""},
      {R"(^\.\S+$)", ""},
  });
  return kRules;
}

/// Bytes of the caption that are cleaned: up to the end of a word or, in a long one, of a
/// character.
size_t bytes_to_clean(std::string_view caption) {
  if (caption.size() <= kMostCaptionBytes) {
    return caption.size();
  }
  const size_t space = caption.find_last_of(" \t\n\r", kMostCaptionBytes);
  if (space != std::string_view::npos && space > kMostCaptionBytes / 2) {
    return space;
  }
  constexpr size_t kMostContinuations = 3;
  size_t end = kMostCaptionBytes;
  while (end > kMostCaptionBytes - kMostContinuations &&
         (static_cast<uint8_t>(caption[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return end;
}

std::string lowered(std::string_view caption) {
  return strip(lower_case(valid_utf8(caption)));
}

}  // namespace

std::string clean_caption(std::string_view caption) {
  const size_t end = bytes_to_clean(caption);
  std::string text = lower_case(strip(unquote_plus(valid_utf8(caption.substr(0, end)))));
  text = text_of_html(applied(addresses(), std::move(text)));
  text = without_joints(applied(characters_and_numbers(), std::move(text)));
  text = unescape_html(unescape_html(fixed_text(text)));
  text = strip(applied(words(), std::move(text)));
  return end < caption.size() ? text + ' ' + lowered(caption.substr(end)) : text;
}

std::string preprocess_caption(std::string_view caption, bool cleans) {
  return cleans ? clean_caption(clean_caption(caption)) : lowered(caption);
}

std::string tidied_caption(std::string_view caption) {
  static const Regex kSpaces(R"(\s+)", Regex::Dialect::kPython, "[prompt]");
  const std::string text = unescape_html(unescape_html(fixed_text(valid_utf8(caption))));
  return strip(kSpaces.replaced(text, " "));
}

}  // namespace kinora::prompts
