#include "apps/kinora/options/numbers.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <sstream>
#include <string>
#include <system_error>

namespace kinora::apps {
namespace {

template <typename Number>
std::string shown(Number number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

constexpr double kAboveZero = std::numeric_limits<double>::denorm_min();

/// "1 or more", "between 0 and 1".
template <typename Number>
std::string bounds(Number least, Number most) {
  if (static_cast<double>(least) == kAboveZero) {
    return "above 0";
  }
  return most == std::numeric_limits<Number>::max()
             ? shown(least) + " or more"
             : "between " + shown(least) + " and " + shown(most);
}

/// Whether the text is no other number's: 1e3 and 0.10 are reals, but 010 is no whole number.
bool is_exact(const std::string& text, int64_t number) {
  return text == std::to_string(number);
}
bool is_exact(const std::string& /*text*/, double number) {
  return std::isfinite(number);
}

/// What is wrong with `text`; empty: nothing.
template <typename Number>
std::string fault(const std::string& text, Number least, Number most, const char* kind) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range && rest == end) {
    return "must be at most " + shown(most) + ", got " + text;
  }
  if (error != std::errc() || rest != end || !is_exact(text, number)) {
    return "must be a " + std::string(kind) + ", got " + text;
  }
  return number >= least && number <= most ? ""
                                           : "must be " + bounds(least, most) + ", got " + text;
}

template <typename Number>
CLI::Validator number_check(Number least, Number most, const char* kind) {
  return {[least, most, kind](std::string& text) { return fault(text, least, most, kind); },
          bounds(least, most)};
}

}  // namespace

CLI::Validator whole(int64_t least, int64_t most) {
  return number_check(least, most, "whole number");
}

CLI::Validator real(double least, double most) {
  return number_check(least, most, "finite number");
}

CLI::Validator above_zero() {
  return real(kAboveZero);
}

}  // namespace kinora::apps
