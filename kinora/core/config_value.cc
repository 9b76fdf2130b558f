#include "kinora/core/config_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/core/nearest_name.h"
#include "kinora/core/text.h"

namespace kinora::config_detail {
namespace {

using Kind = YamlNode::Kind;

// ---- from YAML ----

/// What was found, short enough for a message.
std::string got(const YamlNode& node) {
  constexpr size_t kLongest = 60;
  switch (node.kind) {
    case Kind::kNull:
      return "no value (null)";
    case Kind::kSequence:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
    case Kind::kScalar:
      break;
  }
  std::string text = node.text;
  if (text.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) {
      --end;  // not inside a character
    }
    text = text.substr(0, end) + "...";
  }
  return node.quoted ? "the string " + quote(text) : text;
}

/// from_chars of all of `text`, with an optional plus sign.
template <typename Number>
std::from_chars_result read_number(std::string_view text, Number& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') {
    text.remove_prefix(1);
  }
  const char* end = text.data() + text.size();
  std::from_chars_result result = std::from_chars(text.data(), end, value);
  if (result.ec == std::errc() && result.ptr != end) {
    result.ec = std::errc::invalid_argument;
  }
  return result;
}

/// Reads scalars; nothing if the text is not of the type. `hint` is set where there is one to give.
struct Reader {
  std::string hint;

  std::optional<bool> read(const YamlNode& node, bool*) {
    constexpr std::array<std::string_view, 3> kTrue = {"true", "True", "TRUE"};
    constexpr std::array<std::string_view, 3> kFalse = {"false", "False", "FALSE"};
    if (!node.quoted && std::find(kTrue.begin(), kTrue.end(), node.text) != kTrue.end()) {
      return true;
    }
    if (!node.quoted && std::find(kFalse.begin(), kFalse.end(), node.text) != kFalse.end()) {
      return false;
    }
    return std::nullopt;
  }

  std::optional<int64_t> read(const YamlNode& node, int64_t*) {
    int64_t value = 0;
    const std::errc error =
        node.quoted ? std::errc::invalid_argument : read_number(node.text, value).ec;
    if (error == std::errc()) {
      return value;
    }
    if (error == std::errc::result_out_of_range) {
      hint = "integers have 64 bits";
    }
    // 1e6 and 2.5e3, as long as a double holds every digit
    constexpr double kExact = 0x1p53;
    double real = 0.0;
    if (!node.quoted && node.text.find_first_of("eE") != std::string::npos &&
        read_number(node.text, real).ec == std::errc() && std::abs(real) <= kExact &&
        std::trunc(real) == real) {
      return static_cast<int64_t>(real);
    }
    explain_number(node);
    return std::nullopt;
  }

  std::optional<double> read(const YamlNode& node, double*) {
    double value = 0.0;
    const std::errc error =
        node.quoted ? std::errc::invalid_argument : read_number(node.text, value).ec;
    if (error == std::errc() && std::isfinite(value)) {
      return value;
    }
    if (error == std::errc::result_out_of_range) {
      hint = "that is outside the range of a 64-bit float";
    }
    explain_number(node);
    return std::nullopt;
  }

  std::optional<std::string> read(const YamlNode& node, std::string*) {
    if (node.text.find('\0') != std::string::npos) {
      hint = "it contains a NUL character";
      return std::nullopt;
    }
    return node.text;
  }

  void explain_number(const YamlNode& node) {
    if (node.quoted) {
      hint = "a value in quotes is a string";
    } else if (node.text.find('_') != std::string::npos) {
      hint = "write digits without underscores";
    }
  }
};

[[noreturn]] void refuse(const Field& field, const std::string& origin, const std::string& what,
                         const std::string& hint) {
  throw_error(ErrorKind::kConfig, "[config] ", origin, ": ", field.key, " must be ",
              expected(field), ", got ", what, hint.empty() ? "" : ". Hint: " + hint);
}

struct Assigner {
  const Field& field;
  const YamlNode& node;
  const std::string& origin;

  template <typename T>
  T scalar(const YamlNode& from) const {
    Reader reader;
    if (from.kind == Kind::kScalar) {
      if (std::optional<T> value = reader.read(from, static_cast<T*>(nullptr))) {
        return std::move(*value);
      }
    }
    if (from.kind == Kind::kNull && std::is_same_v<T, std::string>) {
      reader.hint = "write \"\" for an empty string, and quotes around null, ~ and #";
    }
    refuse(field, origin, got(from) + (&from == &node ? "" : " in the list"), reader.hint);
  }

  template <typename T>
  void operator()(T* value) const {
    *value = scalar<T>(node);
  }

  template <typename T>
  void operator()(std::vector<T>* values) const {
    if (node.kind != Kind::kSequence) {
      refuse(field, origin, got(node), "write it as [a, b]");
    }
    values->clear();
    for (const YamlNode* item : node.items) {
      values->push_back(scalar<T>(*item));
    }
  }

  void operator()(ConfigTable* table) const {
    constexpr const char* kHint = "write it as {name: {number: [numbers]}}";
    table->clear();
    if (node.kind != Kind::kMapping) {
      refuse(field, origin, got(node), kHint);
    }
    for (const YamlNode::Entry& first : node.entries) {
      if (first.value->kind != Kind::kMapping) {
        refuse(field, origin, got(*first.value) + " for " + quote(first.key), kHint);
      }
      for (const YamlNode::Entry& second : first.value->entries) {
        YamlNode key;
        key.kind = Kind::kScalar;
        key.text = second.key;
        if (second.value->kind != Kind::kSequence) {
          refuse(field, origin, got(*second.value) + " for " + quote(second.key), kHint);
        }
        ConfigTableRow& row = table->emplace_back();
        row.first = first.key;
        row.second = scalar<int64_t>(key);
        add_numbers(*second.value, row.numbers);
      }
    }
  }

  // Nesting is bounded by parse_yaml.
  void add_numbers(const YamlNode& list, std::vector<double>& numbers) const {
    for (const YamlNode* item : list.items) {
      if (item->kind == Kind::kSequence) {
        add_numbers(*item, numbers);
      } else {
        numbers.push_back(scalar<double>(*item));
      }
    }
  }

  void operator()(const Field::EnumTarget& target) const {
    const auto& names = target.names;
    const auto found =
        node.kind == Kind::kScalar ? std::find(names.begin(), names.end(), node.text) : names.end();
    if (found == names.end()) {
      const std::string nearest = node.kind == Kind::kScalar ? nearest_name(node.text, names) : "";
      refuse(field, origin, got(node), nearest.empty() ? "" : "did you mean " + nearest + "?");
    }
    target.set(static_cast<size_t>(found - names.begin()));
  }
};

// ---- to YAML ----

bool is_plain(std::string_view text) {
  // read as other types by some YAML reader or other
  constexpr std::array<std::string_view, 11> kWords = {"null", "true", "false", "yes", "no", "on",
                                                       "off",  "y",    "n",     "inf", "nan"};
  std::string lower;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool other = (c >= '0' && c <= '9') || c == '.' || c == '-';
    if (!letter && c != '_' && c != '/' && (!other || lower.empty())) {
      return false;
    }
    lower.push_back(letter ? static_cast<char>(c | 0x20) : c);
  }
  return !text.empty() && std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

struct Formatter {
  const Field& field;

  [[nodiscard]] std::string operator()(const bool* value) const { return one(*value); }
  [[nodiscard]] std::string operator()(const int64_t* value) const { return one(*value); }
  [[nodiscard]] std::string operator()(const double* value) const { return one(*value); }
  [[nodiscard]] std::string operator()(const std::string* value) const { return one(*value); }

  template <typename T>
  std::string operator()(const std::vector<T>* values) const {
    std::string text = "[";
    for (const T& value : *values) {
      text += (text.size() > 1 ? ", " : "") + one(value);
    }
    return text + "]";
  }

  [[nodiscard]] std::string operator()(const ConfigTable* table) const {
    std::string text = "{";
    for (size_t i = 0; i < table->size(); ++i) {
      const ConfigTableRow& row = (*table)[i];
      const bool is_new = i == 0 || row.first != (*table)[i - 1].first;
      if (is_new) {
        text += (i == 0 ? "" : "}, ") + quote(row.first) + ": {";
      }
      text += (is_new ? "" : ", ") + one(row.second) + ": " + (*this)(&row.numbers);
    }
    return text + (table->empty() ? "}" : "}}");
  }

  [[nodiscard]] std::string operator()(const Field::EnumTarget& target) const {
    const size_t index = target.get();
    KINORA_CHECK(index < target.names.size(), kConfig, "[config] ", field.key, " must be ",
                 expected(field), ", got a value without a name");
    return one(target.names[index]);
  }

  [[nodiscard]] std::string one(bool value) const { return value ? "true" : "false"; }
  [[nodiscard]] std::string one(int64_t value) const { return std::to_string(value); }

  /// The shortest text that gives the same double, with the point that other YAML readers want.
  [[nodiscard]] std::string one(double value) const {
    KINORA_CHECK(std::isfinite(value), kConfig, "[config] ", field.key, " must be ",
                 expected(field), ", got ", value);
    const double size = std::abs(value);
    const bool plain = size == 0.0 || (size >= 1e-4 && size < 1e15);
    std::array<char, 32> buffer;
    const auto result =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                      plain ? std::chars_format::fixed : std::chars_format::scientific);
    std::string text(buffer.data(), result.ptr);
    if (text.find('.') == std::string::npos) {
      text.insert(std::min(text.find('e'), text.size()), ".0");
    }
    return text;
  }

  [[nodiscard]] std::string one(const std::string& value) const {
    KINORA_CHECK(is_utf8(value) && value.find('\0') == std::string::npos, kConfig, "[config] ",
                 field.key, " must be UTF-8 text without NUL, got other bytes");
    return is_plain(value) ? value : quote(value);
  }
};

// ---- expectations ----

std::string bound(double value) {
  std::array<char, 32> buffer;
  const bool whole = std::trunc(value) == value && std::abs(value) < 1e15;
  const auto result = whole ? std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                            static_cast<int64_t>(value))
                            : std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

/// "1 or more", "from 0 to 1", "above 0", "0 or more and below 1"; empty where all are.
std::string bounds(const Range& range) {
  const bool low = std::isfinite(range.min);
  const bool high = std::isfinite(range.max);
  if (low && high && !range.min_open && !range.max_open) {
    return "from " + bound(range.min) + " to " + bound(range.max);
  }
  std::string text;
  if (low) {
    text = range.min_open ? "above " + bound(range.min) : bound(range.min) + " or more";
  }
  if (high) {
    text += (low ? " and " : "") + std::string(range.max_open ? "below " : "at most ") +
            bound(range.max);
  }
  return text;
}

struct Expectation {
  const Range& range;

  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const int64_t*) const { return integers_in(range); }
  std::string operator()(const double*) const { return numbers_in(range); }
  std::string operator()(const std::string*) const { return "a string"; }
  std::string operator()(const std::vector<int64_t>*) const { return list("integers"); }
  std::string operator()(const std::vector<double>*) const { return list("numbers"); }
  std::string operator()(const std::vector<std::string>*) const { return list("strings"); }
  std::string operator()(const ConfigTable*) const { return "{name: {number: [numbers]}}"; }
  std::string operator()(const Field::EnumTarget& target) const {
    std::string text = "one of ";
    for (const std::string& name : target.names) {
      text += (name == target.names.front() ? "" : ", ") + name;
    }
    return text;
  }

  [[nodiscard]] std::string list(const std::string& of) const {
    const std::string each = bounds(range);
    return "a list of " + of + (each.empty() ? "" : ", each " + each);
  }
};

struct RangeCheck {
  const Range& range;

  template <typename T>
  bool operator()(const T* value) const {
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      return contains(range, *value);
    }
    return true;
  }
  template <typename T>
  bool operator()(const std::vector<T>* values) const {
    return std::all_of(values->begin(), values->end(),
                       [this](const T& value) { return (*this)(&value); });
  }
  bool operator()(const ConfigTable*) const { return true; }
  bool operator()(const Field::EnumTarget&) const { return true; }
};

/// With what comes before: "an integer of 1 or more".
std::string within(const std::string& numbers, const Range& range) {
  const std::string text = bounds(range);
  const bool is_amount = text.find(" or more") != std::string::npos;
  return numbers + (text.empty() ? "" : is_amount ? " of " : " ") + text;
}

}  // namespace

std::string expected(const Field& field) {
  return std::visit(Expectation{field.range}, field.target);
}

std::string format(const Field& field) {
  return std::visit(Formatter{field}, field.target);
}

void assign(Field& field, const YamlNode& node, const std::string& origin) {
  std::visit(Assigner{field, node, origin}, field.target);
  field.origin = origin;
}

bool in_range(const Field& field) {
  return std::visit(RangeCheck{field.range}, field.target);
}

}  // namespace kinora::config_detail

namespace kinora {

// long double holds every int64_t.
bool contains(const Range& range, long double value) {
  return std::isfinite(value) && (range.min_open ? value > range.min : value >= range.min) &&
         (range.max_open ? value < range.max : value <= range.max);
}

std::string integers_in(const Range& range) {
  return config_detail::within("an integer", range);
}

std::string numbers_in(const Range& range) {
  return config_detail::within("a number", range);
}

}  // namespace kinora
