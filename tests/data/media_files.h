#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kinora/data/source.h"

namespace kinora::data {

[[nodiscard]] inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Reads all samples; gives of each the red of its first pixel and its caption: "1 a red cat".
[[nodiscard]] inline std::vector<std::string> contents(const Source& source) {
  std::vector<std::string> all;
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    all.push_back(std::to_string(sample.image.pixels.front()) + " " + sample.caption);
  }
  return all;
}

/// "name: cause" of what is passed over, "name! cause" of what is rejected; names less `folder`.
[[nodiscard]] inline std::vector<std::string> passed_over(const Source& source,
                                                          const std::string& folder) {
  std::vector<std::string> all;
  for (const PassedOver& one : source.passed_over()) {
    const size_t at = one.name.find(folder);
    const std::string name = at == 0 ? one.name.substr(folder.size() + 1) : one.name;
    all.push_back(name + (one.is_rejected ? "! " : ": ") + one.cause);
  }
  return all;
}

}  // namespace kinora::data
