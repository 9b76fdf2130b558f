#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include "kinora/models/transformers/dit.h"
#include "kinora/ops/random.h"
#include "kinora/optim/arena.h"

namespace kinora::train {

/// A DiT of two blocks on 16 x 16 pixels whose weights are all random, none zero.
struct TinyDit {
  TinyDit()
      : model(config()),
        arena(model.named_parameters(), model.buckets(),
              {.device = at::kCPU,
               .compute_type = at::kFloat,
               .seed = 5,
               .train = true,
               .ema_decays = {}}) {
    int64_t index = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      std::vector<int64_t> shape = parameter->shape;
      shape.insert(shape.begin(), 1);
      const at::Tensor values = ops::random_normal(shape, at::arange(index, index + 1, at::kLong),
                                                   7, 0, RandomPurpose::kTest, at::kCPU) *
                                0.05;
      arena.load_parameter(path, values.squeeze(0));
      ++index;
    }
  }

  static models::ModelConfig config() {
    models::ModelConfig config;
    config.transformer.depth = 2;
    config.transformer.hidden = 16;
    config.transformer.heads = 2;
    config.transformer.patch = 4;
    config.in_channels = 3;
    config.height = 16;
    config.width = 16;
    config.num_classes = 16;
    config.time_scale = 1.0;
    return models::resolved(config);
  }

  models::DiT model;
  optim::Arena arena;
};

}  // namespace kinora::train
