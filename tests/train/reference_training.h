#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kinora/models/transformers/dit.h"
#include "kinora/optim/arena.h"
#include "kinora/optim/optimizer.h"
#include "tests/models/transformers/fixture.h"

/// The 50 optimizer steps of tests/models/data/dit_latent.safetensors, as PyTorch took them.
namespace kinora::train {

/// How far from the reference, relative to each tensor's norm.
struct Distances {
  double loss = 0.0;
  double grad_norm = 0.0;
  double weights = 0.0;  ///< the worst parameter
  double average = 0.0;  ///< the worst average
  std::string worst;     ///< whose weights
};

struct Course {
  std::vector<float> losses;
  std::vector<float> grad_norms;
};

/// Puts the fixture's initial weights into the arena.
inline void load_initial(const models::Fixture& fixture, models::DiT& model, optim::Arena& arena) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    arena.load_parameter(path, fixture.tensor("weights." + path));
  }
  arena.reset_averages();
}

inline Distances train_like_the_reference(at::Device device, at::ScalarType compute_type,
                                          int64_t recomputed_blocks = 0) {
  const models::Fixture fixture("dit_latent.safetensors");
  const auto training = nlohmann::json::parse(fixture.metadata("training"));
  models::DiT model(fixture.config());
  model.set_recompute(recomputed_blocks);
  optim::Arena arena(model.named_parameters(), model.buckets(),
                     {.device = device,
                      .compute_type = compute_type,
                      .seed = 1,
                      .train = true,
                      .ema_decays = {training["ema_decay"].get<double>()}});
  model.to_device(device);
  load_initial(fixture, model, arena);
  optim::Optimizer optimizer({.beta1 = training["betas"][0],
                              .beta2 = training["betas"][1],
                              .eps = training["eps"],
                              .weight_decay = training["weight_decay"],
                              .max_grad_norm = training["clip"]},
                             arena);
  diffusion::Objective objective = fixture.objective();
  diffusion::move_to(objective, device);

  const at::Tensor x0_pool = fixture.tensor("train.x0_pool");
  const at::Tensor noise_pool = fixture.tensor("train.noise_pool");
  const at::Tensor x0_index = fixture.tensor("train.x0_index");
  const at::Tensor noise_index = fixture.tensor("train.noise_index");
  const at::Tensor t = fixture.tensor("train.t");
  const at::Tensor labels = fixture.tensor("train.labels");
  Course course;
  for (int64_t step = 0; step < training["steps"].get<int64_t>(); ++step) {
    const at::Tensor x0 = x0_pool.index_select(0, x0_index[step]).to(device);
    const at::Tensor noise = noise_pool.index_select(0, noise_index[step]).to(device);
    const diffusion::NoisedBatch batch = models::noised(objective, x0, noise, t[step].to(device));
    const at::Tensor prediction =
        model.forward(batch.x_t, batch.t, {.labels = labels[step].to(device)});
    const at::Tensor loss = diffusion::loss(objective, prediction, batch, x0).mean;
    torch::autograd::backward({loss * optimizer.loss_scale()}, {});
    course.losses.push_back(loss.item<float>());
    course.grad_norms.push_back(optimizer.step(arena, training["lr"]).grad_norm);
  }

  const auto as_tensor = [](std::vector<float>& values) {
    return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat).clone();
  };
  Distances far;
  far.loss = models::relative_error(as_tensor(course.losses), fixture.tensor("train.loss"));
  far.grad_norm =
      models::relative_error(as_tensor(course.grad_norms), fixture.tensor("train.grad_norm"));
  for (const nn::NamedParameter& named : model.named_parameters()) {
    const std::string& path = named.path;
    const auto distance = [&](optim::Role role, const std::string& kind) {
      const at::Tensor got = arena.export_parameter(path, role);
      const at::Tensor expected = fixture.tensor("train." + kind + "." + path);
      return models::relative_error(models::without_key_bias(path, got),
                                    models::without_key_bias(path, expected));
    };
    const double of_weights = distance(optim::Role::master(), "weights");
    if (of_weights > far.weights) {
      far.weights = of_weights;
      far.worst = path;
    }
    far.average = std::max(far.average, distance(optim::Role::average(0), "ema"));
  }
  return far;
}

}  // namespace kinora::train
