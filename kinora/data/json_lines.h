#pragma once

#include <algorithm>
#include <optional>
#include <string>

namespace kinora::data {

/// Several captions of a sample in JSON, each as a line; line ends within one become spaces.
/// Nothing for what is no list of texts. Json: nlohmann::json, which stays out of headers.
template <typename Json>
[[nodiscard]] std::optional<std::string> lines_of_list(const Json& value) {
  const auto is_text = [](const Json& each) { return each.is_string(); };
  if (!value.is_array() || value.empty() || !std::ranges::all_of(value, is_text)) {
    return std::nullopt;
  }
  std::string lines;
  for (const Json& each : value) {
    auto text = each.template get<std::string>();
    std::ranges::replace(text, '\n', ' ');
    lines += (lines.empty() ? "" : "\n") + text;
  }
  return lines;
}

}  // namespace kinora::data
