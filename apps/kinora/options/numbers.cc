#include "apps/kinora/options/numbers.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <system_error>

#include "kinora/core/config.h"

namespace kinora::apps {
namespace {

/// Whether the text is no other number's: 1e3 and 0.10 are reals, but 010 is no whole number.
bool is_exact(const std::string& text, int64_t number) {
  return text == std::to_string(number);
}
bool is_exact(const std::string& /*text*/, double number) {
  return std::isfinite(number);
}

template <typename Number>
CLI::Validator number_check(const std::string& expected, const Range& range) {
  const auto fault = [expected, range](const std::string& text) -> std::string {
    Number number{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    const bool holds =
        error == std::errc() && rest == end && is_exact(text, number) && contains(range, number);
    const bool is_beyond = error == std::errc::result_out_of_range;
    return holds ? ""
                 : "must be " + expected + ", got " + text +
                       (is_beyond ? ". Hint: numbers have 64 bits" : "");
  };
  return {fault, expected};
}

}  // namespace

CLI::Validator whole(int64_t least, int64_t most) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const auto min = static_cast<double>(least);
  const Range range = most == kLargest ? at_least(min) : between(min, static_cast<double>(most));
  return number_check<int64_t>(integers_in(range), range);
}

CLI::Validator real(double least, double most) {
  const Range range =
      most == std::numeric_limits<double>::max() ? at_least(least) : between(least, most);
  return number_check<double>(numbers_in(range), range);
}

CLI::Validator above_zero() {
  return number_check<double>(numbers_in(above(0)), above(0));
}

}  // namespace kinora::apps
