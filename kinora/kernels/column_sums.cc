#include "kinora/kernels/column_sums.h"

#include "kinora/kernels/elements.h"

namespace kinora::kernels {

void column_sums(const ColumnSums& call) {
  for (int64_t column = 0; column < call.width; ++column) {
    double sum = 0.0;
    for (int64_t row = 0; row < call.rows; ++row) {
      sum += load_element(call.in, row * call.row_stride + column, call.type);
    }
    call.out[column] += static_cast<float>(sum);
  }
}

}  // namespace kinora::kernels
