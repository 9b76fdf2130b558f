#include "kinora/pipelines/diffusers_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/file.h"

namespace kinora::pipelines {
namespace {

using nlohmann::json;

/// Python writes numbers that JSON lacks, such as "lambda_min_clipped": -Infinity of DPM-Solver's
/// schedulers. None of them is read: they become null.
std::string without_python_numbers(std::string_view text) {
  std::string result;
  bool in_string = false;
  while (!text.empty()) {
    size_t length = 1;
    if (in_string && text.front() == '\\') {
      length = std::min<size_t>(2, text.size());
    } else if (text.front() == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const std::string_view number : {"-Infinity", "Infinity", "NaN"}) {
        length = text.starts_with(number) ? number.size() : length;
      }
    }
    result += length > 2 ? "null" : text.substr(0, length);
    text.remove_prefix(length);
  }
  return result;
}

}  // namespace

struct DiffusersConfig::Values {
  json object;

  /// Null where the text is no object.
  static std::shared_ptr<const Values> parse(const std::string& text) {
    constexpr int kMostLevels = 16;
    const auto keep = [](int level, json::parse_event_t /*event*/, json& /*value*/) {
      return level <= kMostLevels;
    };
    json parsed = json::parse(without_python_numbers(text), keep, /*allow_exceptions=*/false);
    return parsed.is_object() ? std::make_shared<const Values>(Values{std::move(parsed)}) : nullptr;
  }
};

DiffusersConfig::DiffusersConfig(const std::filesystem::path& path)
    : DiffusersConfig(io::read_text(path, kMaxConfigBytes), "diffusers", path.string()) {
  path_ = path;
}

DiffusersConfig::DiffusersConfig(const std::string& text, std::string room, std::string where)
    : DiffusersConfig(Values::parse(text), std::move(room), std::move(where)) {
  KINORA_CHECK(values_ != nullptr, kIo, "[", room_, "] ", where_,
               " is not a JSON object. Hint: it may be damaged or cut off. Download it again");
}

DiffusersConfig::DiffusersConfig(std::shared_ptr<const Values> values, std::string room,
                                 std::string where)
    : path_(where), room_(std::move(room)), where_(std::move(where)), values_(std::move(values)) {}

std::optional<DiffusersConfig> DiffusersConfig::find(const std::string& text, std::string room,
                                                     std::string where) {
  auto values = Values::parse(text);
  if (values == nullptr) {
    return std::nullopt;
  }
  return DiffusersConfig(std::move(values), std::move(room), std::move(where));
}

bool DiffusersConfig::has(const char* key) const {
  const auto found = values_->object.find(key);
  return found != values_->object.end() && !found->is_null();
}

bool DiffusersConfig::is_null(const char* key) const {
  const auto found = values_->object.find(key);
  return found != values_->object.end() && found->is_null();
}

int64_t DiffusersConfig::size(const char* key, int64_t otherwise, int64_t most) const {
  KINORA_CHECK(!has(key) || values_->object[key].is_number_integer(), kIo, message(), key,
               " must be a whole number, got ", written(key));
  const auto value = get<int64_t>(key, otherwise);
  KINORA_CHECK(value >= 1 && value <= most, kConfig, message(), key, " must be from 1 to ", most,
               ", got ", value);
  return value;
}

bool DiffusersConfig::is_object(const char* key) const {
  return has(key) && values_->object[key].is_object();
}

bool DiffusersConfig::is_list(const char* key) const {
  return has(key) && values_->object[key].is_array();
}

bool DiffusersConfig::is(const char* key, std::string_view text) const {
  return has(key) && values_->object[key] == text;
}

std::string DiffusersConfig::written(const char* key) const {
  return has(key) ? values_->object[key].dump() : "null";
}

DiffusersConfig DiffusersConfig::within(const char* key) const {
  KINORA_CHECK(is_object(key), kIo, message(), "must have an object ", key, ", got ", written(key));
  return {std::make_shared<const Values>(Values{values_->object[key]}), room_, where_ + ": " + key};
}

template <typename T>
T DiffusersConfig::get(const char* key, const T& otherwise) const {
  if (!has(key)) {
    return otherwise;
  }
  try {
    return values_->object[key].get<T>();
  } catch (const json::exception&) {
    throw_error(ErrorKind::kIo, message(), key, " is of another kind than it must be, got ",
                written(key));
  }
}

template <typename T>
void DiffusersConfig::require(const char* key, const T& must, const T& otherwise) const {
  const T got = get<T>(key, otherwise);
  KINORA_CHECK(got == must, kConfig, message(), key, " must be ", json(must).dump(), ", got ",
               json(got).dump());
}

template bool DiffusersConfig::get(const char*, const bool&) const;
template int64_t DiffusersConfig::get(const char*, const int64_t&) const;
template double DiffusersConfig::get(const char*, const double&) const;
template std::string DiffusersConfig::get(const char*, const std::string&) const;
template std::vector<int64_t> DiffusersConfig::get(const char*, const std::vector<int64_t>&) const;
template std::vector<double> DiffusersConfig::get(const char*, const std::vector<double>&) const;
template std::vector<std::string> DiffusersConfig::get(const char*,
                                                       const std::vector<std::string>&) const;
template std::vector<std::vector<int64_t>> DiffusersConfig::get(
    const char*, const std::vector<std::vector<int64_t>>&) const;
template std::map<std::string, std::string> DiffusersConfig::get(
    const char*, const std::map<std::string, std::string>&) const;
template void DiffusersConfig::require(const char*, const bool&, const bool&) const;
template void DiffusersConfig::require(const char*, const int64_t&, const int64_t&) const;
template void DiffusersConfig::require(const char*, const std::string&, const std::string&) const;

}  // namespace kinora::pipelines
