#include "kinora/kernels/group_norm.h"

#include <cmath>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

double value_at(const ChannelValues& values, int64_t index) {
  return values.data == nullptr ? 0.0 : load_element(values.data, index, values.type);
}

void store(const ChannelGradient& gradient, const std::vector<double>& values) {
  if (gradient.data != nullptr) {
    for (size_t i = 0; i < values.size(); ++i) {
      store_element(gradient.data, static_cast<int64_t>(i), gradient.type,
                    static_cast<float>(values[i]));
    }
  }
}

/// visit(place, channel, element of x) for a group of an image.
template <typename Visit>
void visit_group(const GroupNormShape& shape, int64_t image, int64_t group, const Visit& visit) {
  const int64_t width = shape.group_channels();
  for (int64_t p = 0; p < shape.places; ++p) {
    for (int64_t c = group * width; c < (group + 1) * width; ++c) {
      visit(c, (image * shape.places + p) * shape.channels + c);
    }
  }
}

}  // namespace

void group_norm_forward(const GroupNormForward& call) {
  const GroupNormShape& shape = call.shape;
  const auto count = static_cast<double>(shape.places * shape.group_channels());
  const int64_t stride = shape.batch * shape.channels;  // of the factors
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t group = 0; group < shape.groups; ++group) {
      const auto term = [&](int64_t c) {
        return value_at(call.channel_bias, c) + value_at(call.offset, b * shape.channels + c);
      };
      const auto z = [&](int64_t c, int64_t index) {
        return load_element(call.x, index, shape.type) + term(c);
      };
      double mean = 0.0;
      std::vector<double> channel_means(static_cast<size_t>(shape.channels));
      visit_group(shape, b, group, [&](int64_t c, int64_t index) {
        mean += z(c, index) / count;
        channel_means[static_cast<size_t>(c)] += z(c, index) / static_cast<double>(shape.places);
      });
      double variance = 0.0;
      visit_group(shape, b, group, [&](int64_t c, int64_t index) {
        variance += (z(c, index) - mean) * (z(c, index) - mean) / count;
      });
      const double rstd = 1.0 / std::sqrt(variance + call.epsilon);
      visit_group(shape, b, group, [&](int64_t c, int64_t index) {
        const double u =
            (z(c, index) - mean) * rstd * value_at(call.weight, c) + value_at(call.bias, c);
        store_element(call.y, index, shape.type,
                      static_cast<float>(call.silu ? u / (1.0 + std::exp(-u)) : u));
      });
      if (call.statistics.factors == nullptr) {
        continue;
      }
      call.statistics.rstd[b * shape.groups + group] = static_cast<float>(rstd);
      const int64_t width = shape.group_channels();
      for (int64_t c = group * width; c < (group + 1) * width; ++c) {
        float* factors = call.statistics.factors + b * shape.channels + c;
        const double scale = rstd * value_at(call.weight, c);
        factors[0] = static_cast<float>(scale);
        factors[stride] = static_cast<float>(value_at(call.bias, c) + (term(c) - mean) * scale);
        factors[2 * stride] = static_cast<float>(mean - term(c));
        factors[3 * stride] = static_cast<float>(channel_means[static_cast<size_t>(c)] - mean);
      }
    }
  }
}

// With g = du * scale, where du = dy * f'(u), and xhat = (z - mean) * rstd:
//   dx = g - mean(g) - xhat * mean(g * xhat), means over the group
//   doffset = sum of dx over places; dweight, dbias = sums of du * xhat, du over images and places
void group_norm_backward(const GroupNormBackward& call) {
  const GroupNormShape& shape = call.shape;
  const auto count = static_cast<double>(shape.places * shape.group_channels());
  const int64_t stride = shape.batch * shape.channels;
  const auto channels = static_cast<size_t>(shape.channels);
  std::vector<double> dweight(channels);
  std::vector<double> dbias(channels);
  std::vector<double> dchannel_bias(channels);
  std::vector<double> doffset(static_cast<size_t>(stride));
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t group = 0; group < shape.groups; ++group) {
      const double rstd = call.statistics.rstd[b * shape.groups + group];
      const auto factor = [&](int64_t which, int64_t c) {
        return call.statistics.factors[which * stride + b * shape.channels + c];
      };
      const auto normed = [&](int64_t c, int64_t index) {
        return (load_element(call.x, index, shape.type) - double{factor(2, c)}) * rstd;
      };
      const auto slope = [&](int64_t c, int64_t index) {  // du
        const double dy = load_element(call.dy, index, shape.type);
        const double u =
            load_element(call.x, index, shape.type) * double{factor(0, c)} + double{factor(1, c)};
        const double sigmoid = 1.0 / (1.0 + std::exp(-u));
        return call.silu ? dy * sigmoid * (1.0 + u * (1.0 - sigmoid)) : dy;
      };
      double mean = 0.0;
      double product = 0.0;
      visit_group(shape, b, group, [&](int64_t c, int64_t index) {
        const double du = slope(c, index);
        mean += du * factor(0, c) / count;
        product += du * factor(0, c) * normed(c, index) / count;
        dweight[static_cast<size_t>(c)] += du * normed(c, index);
        dbias[static_cast<size_t>(c)] += du;
      });
      visit_group(shape, b, group, [&](int64_t c, int64_t index) {
        const double dx = slope(c, index) * factor(0, c) - mean - normed(c, index) * product;
        if (call.dx != nullptr) {
          store_element(call.dx, index, shape.type, static_cast<float>(dx));
        }
        dchannel_bias[static_cast<size_t>(c)] += dx;
        doffset[static_cast<size_t>(b * shape.channels + c)] += dx;
      });
    }
  }
  store(call.dweight, dweight);
  store(call.dbias, dbias);
  store(call.dchannel_bias, dchannel_bias);
  store(call.doffset, doffset);
}

}  // namespace kinora::kernels
