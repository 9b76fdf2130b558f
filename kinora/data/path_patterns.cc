#include "kinora/data/path_patterns.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::data {
namespace {

constexpr size_t kMaxPaths = 1'000'000;

std::optional<int64_t> number_of(std::string_view digits) {
  int64_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
  return is_number && value >= 0 ? std::optional(value) : std::nullopt;
}

void check_count(size_t count, std::string_view pattern) {
  KINORA_CHECK(count <= kMaxPaths, kConfig, "[data] a pattern must stand for at most ", kMaxPaths,
               " paths, got more in ", pattern);
}

// What stands between a pair of braces; empty for anything else.
std::vector<std::string> choices(std::string_view inner, std::string_view pattern) {
  std::vector<std::string> all;
  const size_t dots = inner.find("..");
  if (dots != std::string_view::npos) {
    const std::optional<int64_t> first = number_of(inner.substr(0, dots));
    const std::optional<int64_t> last = number_of(inner.substr(dots + 2));
    if (!first || !last) {
      return {};
    }
    KINORA_CHECK(*first <= *last, kConfig, "[data] a range of paths must rise, got {", inner,
                 "} in ", pattern);
    check_count(static_cast<size_t>(*last - *first), pattern);
    for (int64_t number = *first; number <= *last; ++number) {
      const std::string digits = std::to_string(number);
      all.push_back(std::string(dots > digits.size() ? dots - digits.size() : 0, '0') + digits);
    }
  } else if (inner.find(',') != std::string_view::npos) {
    for (const std::string_view choice : split(inner, ',')) {
      all.emplace_back(choice);
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern) {
  std::vector<std::string> paths = {""};
  for (size_t begin = 0; begin < pattern.size();) {
    const size_t open = pattern.find('{', begin);
    const size_t close = pattern.find('}', open);
    std::vector<std::string> found;
    size_t end = pattern.size();
    if (close != std::string_view::npos) {
      found = choices(pattern.substr(open + 1, close - open - 1), pattern);
      end = found.empty() ? open + 1 : close + 1;
    }
    const std::string_view before = pattern.substr(begin, (found.empty() ? end : open) - begin);
    if (found.empty()) {
      found = {""};
    }
    check_count(paths.size() * found.size(), pattern);
    std::vector<std::string> longer;
    for (const std::string& path : paths) {
      for (const std::string& choice : found) {
        longer.push_back(path + std::string(before) + choice);
      }
    }
    paths = std::move(longer);
    begin = end;
  }
  return paths;
}

}  // namespace kinora::data
