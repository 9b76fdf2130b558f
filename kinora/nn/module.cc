#include "kinora/nn/module.h"

#include <cmath>

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
  std::vector<NamedParameter> result;
  collect("", &result, nullptr);
  return result;
}

std::vector<NamedBuffer> Module::named_buffers() {
  std::vector<NamedBuffer> result;
  collect("", nullptr, &result);
  return result;
}

void Module::collect(const std::string& prefix, std::vector<NamedParameter>* parameters,
                     std::vector<NamedBuffer>* buffers) {
  if (parameters != nullptr) {
    for (const auto& [name, parameter] : parameters_) {
      parameters->push_back({join(prefix, name), parameter});
    }
  }
  if (buffers != nullptr) {
    for (const auto& [name, buffer] : buffers_) {
      buffers->push_back({join(prefix, name), buffer});
    }
  }
  for (const auto& [name, child] : children_) {
    child->collect(join(prefix, name), parameters, buffers);
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
