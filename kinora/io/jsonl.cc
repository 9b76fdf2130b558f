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

int64_t truncate_jsonl(const std::filesystem::path& path, int64_t last_step) {
  if (!std::filesystem::exists(path)) {
    return 0;
  }
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::string kept;
  int64_t num_removed = 0;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string_view line = text.substr(begin, end - begin);
    begin = end == std::string_view::npos ? text.size() : end + 1;
    ++line_number;
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) {
      KINORA_CHECK(begin == text.size(), kIo, "[jsonl] ", path.string(), ":", line_number,
                   ": each line must be a JSON object, got ", quoted(line),
                   ". Hint: mend or delete this line");
      ++num_removed;
      continue;
    }
    const auto step = value.find("step");
    if (step != value.end() && step->is_number_integer() && step->get<int64_t>() > last_step) {
      ++num_removed;
      continue;
    }
    kept += line;
    kept += '\n';
  }
  if (kept != text) {
    write_file_atomic(path, kept);
  }
  return num_removed;
}

}  // namespace kinora::io
