#include "kinora/train/non_finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/zeros.h>

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

std::vector<std::string> non_finite_gradients(const std::vector<nn::NamedParameter>& parameters,
                                              const optim::Arena& arena) {
  at::Tensor is_bad = at::zeros({static_cast<int64_t>(parameters.size())}, at::kLong);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor own = arena.own_part(parameters[i].path, optim::Role::grad()).values;
    is_bad.mutable_data_ptr<int64_t>()[i] = at::isfinite(own).all().item<bool>() ? 0 : 1;
  }
  arena.options().sharding.group.all_reduce(is_bad, comm::Reduction::kMax);
  std::vector<std::string> paths;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_bad.const_data_ptr<int64_t>()[i] != 0) {
      paths.push_back(parameters[i].path);
    }
  }
  return paths;
}

}  // namespace kinora::train
