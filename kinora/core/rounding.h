#pragma once

#include <concepts>

#include "kinora/core/host_device.h"

namespace kinora {

/// The least n with n * b >= a, in the type of a + b. a: not negative; b: positive.
template <std::integral A, std::integral B>
[[nodiscard]] KINORA_HOST_DEVICE constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

/// The least multiple of b that is not below a.
template <std::integral A, std::integral B>
[[nodiscard]] KINORA_HOST_DEVICE constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

}  // namespace kinora
