#include "kinora/io/jsonl.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/io/file.h"

namespace kinora::io {
namespace {

std::string quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <typename T>
std::string number(T value) {
  if (std::isnan(value)) {
    return "\"nan\"";
  }
  if (std::isinf(value)) {
    return value > 0 ? "\"inf\"" : "\"-inf\"";
  }
  std::array<char, 32> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  std::string text(digits.data(), result.ptr);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

}  // namespace

JsonObject& JsonObject::add_raw(std::string_view key, std::string_view value) {
  if (!members_.empty()) {
    members_ += ", ";
  }
  members_ += quote(key);
  members_ += ": ";
  members_ += value;
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, std::string_view value) {
  return add_raw(key, quote(value));
}

JsonObject& JsonObject::add(std::string_view key, bool value) {
  return add_raw(key, value ? "true" : "false");
}

JsonObject& JsonObject::add(std::string_view key, double value) {
  return add_raw(key, number(value));
}

JsonObject& JsonObject::add(std::string_view key, float value) {
  return add_raw(key, number(value));
}

JsonObject& JsonObject::add_integer(std::string_view key, int64_t value) {
  return add_raw(key, std::to_string(value));
}

Truncated truncate_jsonl(const std::filesystem::path& path, int64_t last_step) {
  Truncated result;
  if (!std::filesystem::exists(path)) {
    return result;
  }
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::string kept;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string_view line = text.substr(begin, end - begin);
    begin = end == std::string_view::npos ? text.size() : end + 1;
    ++line_number;
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) {
      if (end == std::string_view::npos) {
        ++result.num_removed;
      } else if (result.num_damaged++ == 0) {
        result.first_damaged = line_number;
      }
      continue;
    }
    const auto step = value.find("step");
    if (step != value.end() && step->is_number_integer() && step->get<int64_t>() > last_step) {
      ++result.num_removed;
      continue;
    }
    kept += line;
    kept += '\n';
  }
  if (result.num_damaged > 0) {
    result.set_aside = damaged_name(path);
    write_file_atomic(result.set_aside, text);
  }
  if (kept != text) {
    write_file_atomic(path, kept);
  }
  return result;
}

}  // namespace kinora::io
