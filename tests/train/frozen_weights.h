#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <map>
#include <string>
#include <vector>

#include "kinora/optim/held_weights.h"
#include "tests/train/tiny_run.h"

/// Models whose frozen weights are in few bits, and those of the weights that these stand for.
namespace kinora::train {

/// Sets every frozen weight of `run` to a random one.
inline void load_random(TinyRun& run, double scale = 0.2) {
  int64_t number = 100;
  for (const auto& [path, parameter] : run.trainable.model().named_parameters()) {
    if (parameter->frozen && parameter->shape.size() > 1) {
      std::vector<int64_t> shape = parameter->shape;
      shape.insert(shape.begin(), 1);
      run.trainable.arena().load_parameter(
          path, (ops::random_normal(shape, at::arange(number, number + 1, at::kLong), 1, 0,
                                    RandomPurpose::kTest, at::kCPU) *
                 scale)
                    .squeeze(0));
    }
    ++number;
  }
}

/// Gives `run` the weights, frozen and not, that those of `from` stand for.
inline void load_values(const TinyRun& from, TinyRun& run) {
  for (const auto& [path, parameter] : run.trainable.model().named_parameters()) {
    run.trainable.arena().load_parameter(
        path, from.trainable.arena().export_parameter(path, optim::Role::master()));
  }
}

inline std::map<std::string, at::Tensor> gradients_of(TinyRun& run) {
  (void)run.forward_backward();
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [path, parameter] : run.trainable.model().named_parameters()) {
    if (!parameter->frozen) {
      gradients[path] = parameter->grad.clone();
    }
  }
  return gradients;
}

}  // namespace kinora::train
