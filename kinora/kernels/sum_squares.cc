#include "kinora/kernels/sum_squares.h"

#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

// Partial sums side by side, wide enough for two AVX-512 registers; the same for every instruction
// set, so that all add in the same order.
constexpr int64_t kLanes = 16;

struct SumSquaresBody {
  [[gnu::always_inline]] static void run(const float* __restrict__ x, int64_t count,
                                         double* __restrict__ result) {
    double lanes[kLanes] = {};
    const int64_t whole = count - count % kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const double value = x[i + lane];
        lanes[lane] += value * value;
      }
    }
    for (int64_t i = whole; i < count; ++i) {
      const double value = x[i];
      lanes[i - whole] += value * value;
    }
    double total = 0.0;
    for (const double lane : lanes) {
      total += lane;
    }
    *result = total;
  }
};

}  // namespace

double sum_squares(const float* x, int64_t count) {
  double result = 0.0;
  run_simd<SumSquaresBody>(x, count, &result);
  return result;
}

}  // namespace kinora::kernels
