#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kinora/inference/drawing.h"
#include "kinora/models/families.h"
#include "kinora/ops/random.h"
#include "tests/models/small_network.h"
#include "tests/places.h"

/// Tiny models of every family, with what several users ask of them.
namespace kinora::inference {

inline const models::Family& family_named(const std::string& key) {
  return *std::ranges::find(models::families(), key, &models::Family::key);
}

inline std::vector<std::string> family_keys() {
  std::vector<std::string> keys;
  for (const models::Family& family : models::families()) {
    keys.push_back(family.key);
  }
  return keys;
}

/// A flow of random weights on 12 x 8 latents, of clips 4 frames of them.
inline TrainedModel tiny_model(const models::Family& family, at::Device device,
                               Precision precision = Precision::kFp32) {
  ModelRecipe recipe;
  recipe.model.architecture = family.key;
  models::set_small_network(recipe.model, 2, 96, 3);  // heads of 32, which our kernels take
  recipe.model.in_channels = 4;
  recipe.model.frames = family.is_video ? 4 : 1;
  recipe.model.height = 12;
  recipe.model.width = 8;
  recipe.model.compression = 8;
  recipe.model.learn_sigma = false;
  recipe.model.num_classes = family.conditions.labels ? 5 : 1;
  recipe.model.time_scale = 1000.0;
  if (!family.conditions.labels) {
    recipe.model.text_tokens = 10;
    recipe.model.text_encoder = {.layers = 1, .width = 8, .heads = 2, .mlp = 16, .vocab = 256};
    recipe.data.text = data::TextKind::kTokens;
    recipe.text.tokenizer = source_path("configs/captions/spiece.model");
  }
  recipe.model = models::resolved(recipe.model);
  recipe.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  recipe.precision = precision;
  recipe.sample.sampling.steps = 3;
  recipe.sample.sampling.guidance_rescale = 0.7;
  TrainedModel trained = initial_model(recipe, device, 1);
  // None zero, as initial ones are.
  int64_t index = 0;
  for (const auto& [path, parameter] : trained.model->named_parameters()) {
    std::vector<int64_t> shape = parameter->shape;
    shape.insert(shape.begin(), 1);
    const at::Tensor values = ops::random_normal(shape, at::arange(index, index + 1, at::kLong), 7,
                                                 0, RandomPurpose::kTest, at::kCPU);
    trained.arena->load_parameter(path, 0.05 * values.squeeze(0));
    ++index;
  }
  return trained;
}

/// Six samples of three users: seeds, scales (one without guidance) and conditions of their own.
inline std::vector<Request> requests_of_users(const models::Family& family) {
  std::vector<Request> requests = {{.count = 2, .seed = 5, .guidance = 4.0},
                                   {.count = 3, .seed = 8, .guidance = 1.0},
                                   {.count = 1, .seed = 5, .guidance = 2.5}};
  if (family.conditions.labels) {
    requests[0].classes = {1, 4};
    requests[1].classes = {3, 0};
    requests[2].classes = {2};
  } else {
    requests[0].captions = {"a red circle", "blue"};
    requests[1].captions = {"a cross moving to the left"};
    requests[2].captions = {"red circle moving up"};
  }
  return requests;
}

}  // namespace kinora::inference
