#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/models/formula_file.h"

/// Networks as files, with the weights of tools/make_eval_fixtures.py.
namespace kinora::eval {

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// uint8 in the whole range.
inline at::Tensor formula_pixels(const std::string& name, at::IntArrayRef shape) {
  return ((models::formula_values(name, shape) + 1.0) * 128.0).floor().clamp(0, 255).to(at::kByte);
}

/// Convolutions are 2^(1/2) times as large as the formula, variances near 1.
inline void write_weights(const std::filesystem::path& path, const Shapes& shapes) {
  models::NamedTensors values;
  for (const auto& [name, shape] : shapes) {
    if (name.ends_with("running_var")) {
      values[name] = models::formula_values(name, shape) / 4.0 + 1.0;
    } else {
      const double scale = shape.size() == 4 ? std::sqrt(2.0) : 1.0;
      values[name] = models::formula_weight(name, shape) * scale;
    }
  }
  models::write_tensors(path, values);
}

/// A convolution and the norm behind it.
inline void add_conv(Shapes& shapes, const std::string& conv, const std::string& norm,
                     const std::vector<int64_t>& shape) {
  shapes[conv + ".weight"] = shape;
  for (const char* part : {".weight", ".bias", ".running_mean", ".running_var"}) {
    shapes[norm + part] = {shape[0]};
  }
}

inline Shapes resnet_shapes() {
  Shapes shapes = {{"linear.weight", {10, 64}}, {"linear.bias", {10}}};
  add_conv(shapes, "conv1", "bn1", {16, 3, 3, 3});
  int64_t in = 16;
  for (int64_t layer = 1; layer <= 3; ++layer) {
    const int64_t out = int64_t{8} << layer;
    for (int64_t i = 0; i < 3; ++i) {
      const std::string place = "layer" + std::to_string(layer) + "." + std::to_string(i) + ".";
      add_conv(shapes, place + "conv1", place + "bn1", {out, in, 3, 3});
      add_conv(shapes, place + "conv2", place + "bn2", {out, out, 3, 3});
      in = out;
    }
  }
  return shapes;
}

/// Of the Inception of FID.
Shapes inception_shapes();

}  // namespace kinora::eval
