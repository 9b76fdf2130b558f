#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kinora/inference/drawing.h"
#include "kinora/optim/held_weights.h"
#include "tests/inference/family_models.h"
#include "tests/ops/tensors.h"

namespace kinora::inference {

/// `recipe`'s model with the weights of `from`.
inline TrainedModel with_weights_of(const TrainedModel& from, const ModelRecipe& recipe,
                                    const optim::HeldOptions& held) {
  TrainedModel model = initial_model(recipe, from.device, 1, held);
  for (const auto& [path, parameter] : model.model->named_parameters()) {
    model.arena->load_parameter(path, from.arena->export_parameter(path, optim::Role::compute()));
  }
  return model;
}

/// Whether weights of a family in few bits, or in the host's memory, draw the samples that what
/// they stand for draws: to the bit, where tolerance is 0. A GPU chooses kernels by timing, for
/// each model anew.
inline void expect_drawn_as_its_values(const std::string& family, at::Device device, Path path,
                                       Precision precision, double tolerance = 0.0) {
  const TrainedModel trained = tiny_model(family_named(family), device, Precision::kFp32);
  if (path == Path::kFast && !trained.model->has_fast_path()) {
    return;
  }
  ModelRecipe recipe = trained.recipe;
  recipe.path = path;
  recipe.precision = precision;
  const auto drawn = [&](TrainedModel& model) {
    return Drawing(model, requests_of_users(family_named(family)), {}).draw_each();
  };
  for (const optim::HeldOptions& held : {optim::HeldOptions{.format = kernels::WeightFormat::kNf4},
                                         {.offload = 1.0},
                                         {.format = kernels::WeightFormat::kFp8, .offload = 0.5}}) {
    SCOPED_TRACE(held.format ? std::string(kernels::name_of(*held.format)) : "full");
    SCOPED_TRACE(held.offload);
    TrainedModel quantised = with_weights_of(trained, recipe, held);
    ASSERT_NE(quantised.arena->held(), nullptr);
    TrainedModel full = with_weights_of(quantised, recipe, {});
    const std::vector<at::Tensor> got = drawn(quantised);
    const std::vector<at::Tensor> want = drawn(full);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(ops::relative_error(got[i], want[i]), tolerance) << i;
      EXPECT_TRUE(want[i].isfinite().all().item<bool>()) << i;
    }
  }
}

}  // namespace kinora::inference
