#include "kinora/kernels/channel_norm.h"

#include <algorithm>
#include <cmath>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {

void channel_moments(const ChannelMoments& call) {
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t c = 0; c < call.channels; ++c) {
      double sum = 0.0;
      double squares = 0.0;
      for (int64_t p = 0; p < call.places; ++p) {
        const int64_t index = (b * call.places + p) * call.channels + c;
        const double value = load_element(call.in, index, call.type);
        sum += value;
        squares += value * value;
      }
      call.out[b * call.channels + c] = sum;
      call.out[(call.batch + b) * call.channels + c] = squares;
    }
  }
}

void channel_affine(const ChannelAffine& call) {
  for (int64_t row = 0; row < call.batch * call.places; ++row) {
    for (int64_t c = 0; c < call.channels; ++c) {
      const int64_t index = row * call.channels + c;
      const int64_t factor = row / call.places * call.channels + c;
      const float x =
          load_element(call.in, index, call.type) * call.scale[factor] + call.shift[factor];
      store_element(call.out, index, call.type, call.silu ? x / (1.0F + std::exp(-x)) : x);
    }
  }
}

void group_affine(const GroupAffine& call) {
  const auto count = static_cast<double>(call.elements);
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t c = 0; c < call.channels; ++c) {
      const int64_t group = b * call.groups + c / (call.channels / call.groups);
      const double mean = call.sums[group] / count;
      const double square = call.sums[call.batch * call.groups + group] / count;
      const double variance = std::max(square - mean * mean, 0.0);
      const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + call.epsilon));
      const float scale = rstd * load_element(call.weight, c, call.type);
      call.scale[b * call.channels + c] = scale;
      call.shift[b * call.channels + c] =
          load_element(call.bias, c, call.type) - static_cast<float>(mean) * scale;
    }
  }
}

}  // namespace kinora::kernels
