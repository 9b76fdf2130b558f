#pragma once

#include <cstdint>

/// The squared norm of a gradient bucket, in double (a finite fp32 gradient has a finite sum) and
/// in an order that depends neither on threads nor on the machine.
namespace kinora::kernels {

/// Elements behind one partial sum on the CPU.
inline constexpr int64_t kSumSquaresChunk = 65536;

/// sum of x[i]^2, i in [0, count). Callers keep to chunks of kSumSquaresChunk and add those in
/// order.
[[nodiscard]] double sum_squares(const float* x, int64_t count);

}  // namespace kinora::kernels
