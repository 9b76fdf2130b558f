#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "tests/models/formula_values.h"

namespace kinora::models {

using NamedTensors = std::map<std::string, at::Tensor>;

/// The formula's value of every parameter of `module`.
inline NamedTensors formula_weights(nn::Module& module) {
  NamedTensors values;
  for (const auto& [path, parameter] : module.named_parameters()) {
    values[path] = formula_weight(path, parameter->shape);
  }
  return values;
}

/// As a safetensors file.
inline void write_tensors(const std::filesystem::path& path, const NamedTensors& values) {
  std::vector<io::SafetensorsTensor> tensors;
  for (const auto& [name, value] : values) {
    tensors.push_back({.name = name,
                       .dtype = device::dtype_of(value.scalar_type()),
                       .shape = value.sizes().vec(),
                       .data = device::bytes_of(value)});
  }
  io::write_safetensors(path, tensors);
}

}  // namespace kinora::models
