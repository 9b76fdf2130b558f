#include "kinora/pipelines/diffusers_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

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
  explicit Values(const std::string& text)
      : object(json::parse(without_python_numbers(text), nullptr, /*allow_exceptions=*/false)) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  json object;
};

DiffusersConfig::DiffusersConfig(const std::filesystem::path& path)
    : path_(path), values_(std::make_unique<Values>(io::read_text(path, kMaxConfigBytes))) {
  KINORA_CHECK(values_->object.is_object(), kIo, "[diffusers] ", path, " must be a JSON object");
}
DiffusersConfig::~DiffusersConfig() = default;

bool DiffusersConfig::has(const char* key) const {
  return values_->object.contains(key) && !values_->object[key].is_null();
}

template <typename T>
T DiffusersConfig::get(const char* key, const T& otherwise) const {
  if (!has(key)) {
    return otherwise;
  }
  const json& value = values_->object[key];
  try {
    return value.get<T>();
  } catch (const json::exception&) {
    throw_error(ErrorKind::kIo, "[diffusers] ", path_, ": ", key,
                " is of another kind than it must be, got ", value.dump());
  }
}

template <typename T>
void DiffusersConfig::require(const char* key, const T& must, const T& otherwise) const {
  const T got = get<T>(key, otherwise);
  KINORA_CHECK(got == must, kConfig, "[diffusers] ", path_, ": ", key, " must be ",
               json(must).dump(), ", got ", json(got).dump());
}

template bool DiffusersConfig::get(const char*, const bool&) const;
template std::vector<int64_t> DiffusersConfig::get(const char*, const std::vector<int64_t>&) const;
template std::map<std::string, std::string> DiffusersConfig::get(
    const char*, const std::map<std::string, std::string>&) const;
template int64_t DiffusersConfig::get(const char*, const int64_t&) const;
template double DiffusersConfig::get(const char*, const double&) const;
template std::string DiffusersConfig::get(const char*, const std::string&) const;
template void DiffusersConfig::require(const char*, const bool&, const bool&) const;
template void DiffusersConfig::require(const char*, const std::string&, const std::string&) const;

}  // namespace kinora::pipelines
