#include "kinora/kernels/channel_norm.h"

#include <algorithm>
#include <cmath>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

/// The place of `in` that a place of the result repeats.
int64_t repeated_place(const ChannelEdges& edges, int64_t place) {
  int64_t source = 0;
  int64_t places = edges.out_places();
  for (int d = 0; d < 3; ++d) {
    places /= edges.size(d);
    const int64_t at = place / places % edges.size(d) - edges.before[d];
    const int64_t inside = std::clamp<int64_t>(at, 0, edges.inner(d) - 1);
    source = source * edges.sizes[d] + ((inside + edges.left_out[d][0]) >> edges.doublings[d]);
  }
  return source;
}

}  // namespace

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

void channel_repeat(const ChannelRepeat& call) {
  const int64_t places = call.edges.out_places();
  const int64_t places_in = call.edges.sizes[0] * call.edges.sizes[1] * call.edges.sizes[2];
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t place = 0; place < places; ++place) {
      const int64_t from = b * places_in + repeated_place(call.edges, place);
      for (int64_t c = 0; c < call.channels; ++c) {
        store_element(call.out, (b * places + place) * call.channels + c, call.type,
                      load_element(call.in, from * call.channels + c, call.type));
      }
    }
  }
}

void channel_phases(const ChannelPhases& call) {
  int64_t to = 0;
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t frame = call.left_out; frame < call.times * call.frames; ++frame) {
      for (int64_t row = 0; row < 2 * call.rows; ++row) {
        for (int64_t column = 0; column < 2 * call.columns; ++column) {
          const int64_t phase = 4 * (frame % call.times) + 2 * (row % 2) + column % 2;
          const int64_t place =
              ((b * call.frames + frame / call.times) * (call.rows + 1) + row / 2 + row % 2) *
                  (call.columns + 1) +
              column / 2 + column % 2;
          const int64_t from = (place * 4 * call.times + phase) * call.channels;
          for (int64_t c = 0; c < call.channels; ++c) {
            const float bias = call.bias == nullptr ? 0.0F : load_element(call.bias, c, call.type);
            store_element(call.out, to++, call.type,
                          load_element(call.in, from + c, call.type) + bias);
          }
        }
      }
    }
  }
}

void channel_affine(const ChannelAffine& call) {
  const int64_t places = call.edges.is_empty() ? call.places : call.edges.out_places();
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t place = 0; place < places; ++place) {
      const int64_t source = call.edges.is_empty() ? place : repeated_place(call.edges, place);
      for (int64_t c = 0; c < call.channels; ++c) {
        const int64_t factor = b * call.channels + c;
        const int64_t from = (b * call.places + source) * call.channels + c;
        const float x =
            load_element(call.in, from, call.type) * call.scale[factor] + call.shift[factor];
        store_element(call.out, (b * places + place) * call.channels + c, call.type,
                      call.silu ? x / (1.0F + std::exp(-x)) : x);
      }
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

void channel_rms(const ChannelRms& call) {
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t p = 0; p < call.places; ++p) {
      const int64_t from = (b * call.places + p) * call.channels;
      const int64_t to = (b * call.out_places + p) * call.channels;
      double squares = 0.0;
      for (int64_t c = 0; c < call.channels; ++c) {
        const double value = load_element(call.in, from + c, call.type);
        squares += value * value;
      }
      const float length = std::max(static_cast<float>(std::sqrt(squares)), call.least);
      for (int64_t c = 0; c < call.channels; ++c) {
        const float x =
            load_element(call.in, from + c, call.type) / length * call.factor * call.weight[c];
        store_element(call.out, to + c, call.type, call.silu ? x / (1.0F + std::exp(-x)) : x);
      }
    }
  }
}

}  // namespace kinora::kernels
