#pragma once

#include <cstdint>
#include <limits>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class Validator;
}

/// Which numbers an option takes: `->check(whole(1))`, `->check(real(0.0, 1.0))`. Others are
/// refused in one form of words, "--count: must be an integer of 1 or more, got 0", as keys of
/// recipes are: also those that CLI11 would bend into some other number, such as one of 20 digits,
/// nan, or 010, which is 8 to it.
namespace kinora::apps {

/// More than any benchmark has of steps, samples, pixels or tokens.
inline constexpr int64_t kMany = 1'000'000;

/// Whole numbers as they are written: no sign +, no leading zero.
[[nodiscard]] CLI::Validator whole(int64_t least,
                                   int64_t most = std::numeric_limits<int64_t>::max());

/// Finite numbers.
[[nodiscard]] CLI::Validator real(double least, double most = std::numeric_limits<double>::max());
[[nodiscard]] CLI::Validator above_zero();

}  // namespace kinora::apps
