#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/kernels/group_norm.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {

/// Random inputs of a shape.
struct GroupNormCase {
  GroupNormCase(const GroupNormShape& of, DType vectors, bool with_silu, bool with_terms)
      : shape(of), vector_type(vectors), silu(with_silu), terms(with_terms) {
    const int64_t count = shape.batch * shape.places * shape.channels;
    x = encode(random_values(count, 1, 2.0F), shape.type);
    dy = encode(random_values(count, 2), shape.type);
    weight = encode(random_values(shape.channels, 3), vector_type);
    bias = encode(random_values(shape.channels, 4), vector_type);
    channel_bias = encode(random_values(shape.channels, 5), vector_type);
    offset = encode(random_values(shape.batch * shape.channels, 6), shape.type);
  }

  [[nodiscard]] std::string name() const {
    return std::string(to_string(shape.type)) + "_" + std::string(to_string(vector_type)) + "_B" +
           std::to_string(shape.batch) + "_P" + std::to_string(shape.places) + "_C" +
           std::to_string(shape.channels) + "_G" + std::to_string(shape.groups) +
           (silu ? "_silu" : "") + (terms ? "_terms" : "");
  }

  GroupNormShape shape;
  DType vector_type;
  bool silu;
  bool terms;  ///< with channel_bias and offset
  double epsilon = 1e-5;
  std::vector<uint8_t> x, dy, weight, bias, channel_bias, offset;
};

/// What both ways give.
struct GroupNormResults {
  explicit GroupNormResults(const GroupNormCase& of)
      : y(of.x.size()),
        factors(static_cast<size_t>(4 * of.shape.batch * of.shape.channels)),
        rstd(static_cast<size_t>(of.shape.batch * of.shape.groups)),
        dx(of.x.size()),
        dweight(of.weight.size()),
        dbias(of.weight.size()),
        dchannel_bias(of.weight.size()),
        doffset(of.offset.size()) {}

  std::vector<uint8_t> y;
  std::vector<float> factors, rstd;
  std::vector<uint8_t> dx, dweight, dbias, dchannel_bias, doffset;
};

/// The CPU reference's.
inline GroupNormResults reference_results(const GroupNormCase& of) {
  GroupNormResults results(of);
  GroupNormForward forward;
  forward.shape = of.shape;
  forward.epsilon = of.epsilon;
  forward.silu = of.silu;
  forward.x = of.x.data();
  forward.weight = {of.weight.data(), of.vector_type};
  forward.bias = {of.bias.data(), of.vector_type};
  if (of.terms) {
    forward.channel_bias = {of.channel_bias.data(), of.vector_type};
    forward.offset = {of.offset.data(), of.shape.type};
  }
  forward.y = results.y.data();
  forward.statistics = {results.factors.data(), results.rstd.data()};
  group_norm_forward(forward);
  GroupNormBackward backward;
  backward.shape = of.shape;
  backward.silu = of.silu;
  backward.dy = of.dy.data();
  backward.x = of.x.data();
  backward.statistics = forward.statistics;
  backward.dx = results.dx.data();
  backward.dweight = {results.dweight.data(), of.vector_type};
  backward.dbias = {results.dbias.data(), of.vector_type};
  backward.dchannel_bias = {results.dchannel_bias.data(), of.vector_type};
  backward.doffset = {results.doffset.data(), of.shape.type};
  group_norm_backward(backward);
  return results;
}

}  // namespace kinora::kernels
