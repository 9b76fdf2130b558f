#include "kinora/nn/module.h"

#include <cmath>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::nn {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() || name.empty() ? prefix + name : prefix + "." + name;
}

}  // namespace

Init Init::xavier_uniform(int64_t fan_in, int64_t fan_out) {
  return {Kind::kUniform, std::sqrt(6.0 / static_cast<double>(fan_in + fan_out))};
}

int64_t Parameter::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return count;
}

std::vector<NamedParameter> Module::named_parameters() {
  Collected collected;
  collect("", collected);
  return std::move(collected.parameters);
}

std::vector<NamedBuffer> Module::named_buffers() {
  Collected collected;
  collect("", collected);
  return std::move(collected.buffers);
}

std::vector<NamedWeightLayer> Module::named_weight_layers() {
  Collected collected;
  collect("", collected);
  return std::move(collected.layers);
}

void Module::collect(const std::string& prefix, Collected& collected) {
  if (weight_layer_ != nullptr) {
    collected.layers.push_back({prefix, weight_layer_});
  }
  for (const auto& [name, parameter] : parameters_) {
    collected.parameters.push_back({join(prefix, name), parameter});
  }
  for (const auto& [name, buffer] : buffers_) {
    collected.buffers.push_back({join(prefix, name), buffer});
  }
  for (const auto& [name, child] : children_) {
    child->collect(join(prefix, name), collected);
  }
}

void Module::set_tap(const Tap& tap, const std::string& path) {
  tap_ = tap;
  tap_path_ = path;
  for (const auto& [name, child] : children_) {
    child->set_tap(tap, join(path, name));
  }
}

void Module::set_kernels(ops::BlockKernels* kernels) {
  kernels_ = kernels;
  for (const auto& [name, child] : children_) {
    child->set_kernels(kernels);
  }
}

void Module::set_layer(int64_t layer) {
  for (const auto& [name, parameter] : parameters_) {
    parameter->layer = layer;
  }
  for (const auto& [name, child] : children_) {
    child->set_layer(layer);
  }
}

void Module::add_child(std::string name, Module& child) {
  children_.push_back({std::move(name), &child});
}

void Module::add_parameter(std::string name, Parameter& parameter) {
  parameters_.push_back({std::move(name), &parameter});
}

void Module::add_buffer(std::string name, at::Tensor& buffer) {
  buffers_.push_back({std::move(name), &buffer});
}

at::Tensor Module::tapped(const at::Tensor& output) const {
  return tap_ ? tap_(tap_path_, output) : output;
}

}  // namespace kinora::nn
