#include "kinora/kernels/residual_sum.h"

#include "kinora/kernels/elements.h"

namespace kinora::kernels {

void residual_sum(const ResidualSum& call) {
  for (int64_t i = 0; i < call.rows * call.width; ++i) {
    const float y = call.y == nullptr ? 0.0F : load_element(call.y, i, call.type);
    const float more = y + load_element(call.bias, i % call.width, call.type);
    store_element(call.out, i, call.type, load_element(call.x, i, call.type) + more);
  }
}

}  // namespace kinora::kernels
