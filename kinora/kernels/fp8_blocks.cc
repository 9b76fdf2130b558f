#include "kinora/kernels/fp8_blocks.h"

#include "kinora/kernels/elements.h"
#include "kinora/kernels/fp8.h"

namespace kinora::kernels {

void block_sums(const BlockSums& call) {
  const auto* const data = static_cast<const uint8_t*>(call.data);
  for (int64_t sum = 0; sum < call.sums; ++sum) {
    for (int64_t i = 0; i < call.count; ++i) {
      float total = 0.0F;
      for (int64_t term = sum * call.terms; term < (sum + 1) * call.terms; ++term) {
        total += fp8_to_float(data[term * call.pitch + i], DType::kF8E4M3) *
                 call.factors[term * (call.pitch / kScaleBlock) + i / kScaleBlock];
      }
      store_element(call.out, sum * call.count + i, call.type, total * call.scale);
    }
  }
}

}  // namespace kinora::kernels
