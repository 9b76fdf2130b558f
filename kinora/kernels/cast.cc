#include "kinora/kernels/cast.h"

#include <cassert>

#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

struct CastBody {
  [[gnu::always_inline]] static void run(const float* __restrict__ in, int64_t count, DType type,
                                         uint16_t* __restrict__ out) {
    if (type == DType::kBF16) {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = float_to_bf16(in[i]);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = float_to_f16(in[i]);
      }
    }
  }
};

}  // namespace

void cast(const float* in, int64_t count, DType type, void* out) {
  assert(type == DType::kBF16 || type == DType::kF16);
  run_simd<CastBody>(in, count, type, static_cast<uint16_t*>(out));
}

}  // namespace kinora::kernels
