#include "kinora/kernels/low_rank.h"

#include "kinora/kernels/elements.h"

namespace kinora::kernels {

void low_rank_forward(const LowRankForward& call) {
  for (int64_t row = 0; row < call.rows && call.low != nullptr; ++row) {
    for (int64_t r = 0; r < call.rank; ++r) {
      double sum = 0.0;
      for (int64_t k = 0; k < call.in; ++k) {
        sum += static_cast<double>(load_element(call.x, row * call.x_stride + k, call.type)) *
               load_element(call.a, r * call.a_stride + k, call.type);
      }
      store_element(call.low, row * call.low_stride + r, call.type, static_cast<float>(sum));
    }
  }
  for (int64_t r = 0; r < call.rank; ++r) {
    for (int64_t n = 0; n < call.out && call.behind != nullptr; ++n) {
      store_element(call.behind, n * call.weight_stride + r, call.type,
                    call.scale * load_element(call.b, n * call.rank + r, call.type));
    }
    for (int64_t k = 0; k < call.in && call.below != nullptr; ++k) {
      store_element(call.below, r * call.weight_stride + k, call.type,
                    load_element(call.a, r * call.a_stride + k, call.type));
    }
  }
}

void low_rank_backward(const LowRankBackward& call) {
  const double scale = call.scale;
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t r = 0; r < call.rank; ++r) {
      double sum = 0.0;
      for (int64_t n = 0; n < call.out; ++n) {
        sum += static_cast<double>(load_element(call.dy, row * call.dy_stride + n, call.type)) *
               load_element(call.b, n * call.rank + r, call.type);
      }
      store_element(call.dlow, row * call.dlow_stride + r, call.type,
                    static_cast<float>(scale * sum));
    }
  }
  for (int64_t r = 0; r < call.rank; ++r) {
    for (int64_t n = 0; n < call.out; ++n) {
      double sum = 0.0;
      for (int64_t row = 0; row < call.rows; ++row) {
        sum += static_cast<double>(load_element(call.dy, row * call.dy_stride + n, call.type)) *
               load_element(call.low, row * call.low_stride + r, call.type);
      }
      call.b_grad[n * call.rank + r] += static_cast<float>(scale * sum);
    }
    for (int64_t k = 0; k < call.in; ++k) {
      double sum = 0.0;
      for (int64_t row = 0; row < call.rows; ++row) {
        sum += static_cast<double>(load_element(call.dlow, row * call.dlow_stride + r, call.type)) *
               load_element(call.x, row * call.x_stride + k, call.type);
      }
      call.a_grad[r * call.a_grad_stride + k] += static_cast<float>(sum);
    }
  }
}

}  // namespace kinora::kernels
