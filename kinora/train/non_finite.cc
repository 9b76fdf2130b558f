#include "kinora/train/non_finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/masked_select.h>

#include <sstream>

namespace kinora::train {
namespace {

std::optional<NonFiniteOutput> examine(const std::string& path, const at::Tensor& output) {
  const at::Tensor finite = at::isfinite(output);
  const int64_t num_finite = finite.sum().item<int64_t>();
  if (num_finite == output.numel()) {
    return std::nullopt;
  }
  NonFiniteOutput found{.module = path.empty() ? "the model's output" : path,
                        .count = output.numel() - num_finite,
                        .numel = output.numel()};
  if (num_finite > 0) {
    const at::Tensor values = at::masked_select(output, finite);
    found.finite_min = values.min().item<double>();
    found.finite_max = values.max().item<double>();
  }
  return found;
}

}  // namespace

std::optional<NonFiniteOutput> find_non_finite_output(nn::Module& model,
                                                      const std::function<void()>& forward) {
  std::optional<NonFiniteOutput> first;
  model.set_tap([&first](const std::string& path, const at::Tensor& output) {
    if (!first) {
      first = examine(path, output);
    }
    return output;
  });
  struct RemoveTap {
    nn::Module& model;
    ~RemoveTap() { model.set_tap({}); }
  } remove_tap{model};
  at::NoGradGuard no_grad;
  forward();
  return first;
}

std::string to_string(const NonFiniteOutput& output) {
  std::ostringstream text;
  text << output.module << ": " << output.count << " of " << output.numel
       << " values are not finite";
  if (output.count < output.numel) {
    text << ", the others lie in [" << output.finite_min << ", " << output.finite_max << "]";
  }
  return text.str();
}

std::vector<std::string> non_finite_gradients(const std::vector<nn::NamedParameter>& parameters) {
  std::vector<std::string> paths;
  for (const nn::NamedParameter& named : parameters) {
    if (!at::isfinite(named.parameter->grad).all().item<bool>()) {
      paths.push_back(named.path);
    }
  }
  return paths;
}

}  // namespace kinora::train
