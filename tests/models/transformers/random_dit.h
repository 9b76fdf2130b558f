#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/transformers/dit.h"
#include "tests/models/transformers/random_model.h"

namespace kinora::models {

/// A DiT of two blocks, and a batch for it.
struct Geometry {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t batch = 0;
  int64_t rows = 0;     ///< of tokens
  int64_t columns = 0;  ///< of tokens
  bool tuned = false;   ///< by updates of linears, some frozen
  int64_t rank = 0;     ///< of adapt_blocks(); 0: it is not adapted

  [[nodiscard]] ModelConfig config() const {
    constexpr int64_t kPatch = 2;
    ModelConfig config;
    config.transformer.depth = 2;
    config.transformer.hidden = hidden;
    config.transformer.heads = heads;
    config.transformer.patch = kPatch;
    config.in_channels = 4;
    config.height = rows * kPatch;
    config.width = columns * kPatch;
    config.num_classes = 10;
    config.time_scale = 1000.0;
    return resolved(config);
  }

  /// Of ops::expect_as_near.
  [[nodiscard]] double slack() const { return tuned || rank > 0 ? kTunedSlack : 1.0; }

  [[nodiscard]] std::string name() const {
    return "D" + std::to_string(hidden / heads) + "_B" + std::to_string(batch) + "_N" +
           std::to_string(rows * columns) + (tuned ? "_tuned" : "") +
           (rank > 0 ? "_rank" + std::to_string(rank) : "");
  }
};

/// A DiT, its batch, and steps with it.
class RandomDiT : public RandomModel {
 public:
  RandomDiT(const Geometry& geometry, at::Device device, at::ScalarType type)
      : RandomModel(made(geometry), device, type, start_of) {
    const ModelConfig& config = model().config();
    const at::Tensor x_t =
        ops::normal({geometry.batch, config.in_channels, config.height, config.width}, kInputs);
    const at::Tensor weighting = ops::normal(
        {geometry.batch, config.out_channels(), config.height, config.width}, kInputs + 1);
    const at::Tensor sample = at::arange(geometry.batch, at::kLong);
    set_inputs(x_t.to(device), ((sample * 37).remainder(101).to(at::kFloat) / 101.0).to(device),
               {.labels = sample.remainder(config.num_classes + 1).to(device)},
               weighting.to(device));
  }

  /// The output without gradients, all samples at the time of the first.
  [[nodiscard]] ops::NamedResults sample() {
    const at::NoGradGuard no_grad;
    const at::Tensor times = t().narrow(0, 0, 1).repeat({t().size(0)});
    return {{"output", model().forward(x_t(), times, conditions())}};
  }

  /// The same by vectors made in advance, as samplers do; the fast path only.
  [[nodiscard]] ops::NamedResults sample_prepared() {
    const at::NoGradGuard no_grad;
    const diffusion::Prepared vectors = model().prepare(t().narrow(0, 0, 1), conditions());
    return {
        {"output", model().forward(x_t(), t(), conditions(), {.prepared = vectors.at_time(0)})}};
  }

 private:
  static std::unique_ptr<Model> made(const Geometry& geometry) {
    auto model = std::make_unique<DiT>(geometry.config());
    if (geometry.tuned) {
      tune(*model);
    }
    if (geometry.rank > 0) {
      adapt_blocks(*model, geometry.rank);
    }
    return model;
  }

  /// Activations, gates and logits of about 1.
  static Start start_of(const std::string& path, const std::vector<int64_t>& shape) {
    if (path.ends_with("bias")) {
      return {.deviation = 0.3};
    }
    const bool is_matrix = shape.size() > 1 && !path.starts_with("y_embedder");
    return {.deviation = is_matrix ? by_inputs(shape) : 1.0};
  }
};

/// What a block keeps, and how many blocks only their input.
struct Recomputation {
  const char* name;
  ops::Recompute level = ops::Recompute::kNone;
  int64_t blocks = 0;
  int64_t offloaded = 0;  ///< blocks that keep it at the host
};

inline constexpr Recomputation kRecomputations[] = {
    {"none", ops::Recompute::kNone},
    {"elementwise", ops::Recompute::kElementwise},
    {"mlp", ops::Recompute::kMlp},
    {"block", ops::Recompute::kBlock},
    {"mlp, one block wholly", ops::Recompute::kMlp, 1},
    {"offload", ops::Recompute::kNone, 0, 2},
    {"offload, block", ops::Recompute::kNone, 2, 2},
};

/// One step of the plain path.
inline ops::NamedResults plain_results(const Geometry& geometry, at::Device device,
                                       at::ScalarType type) {
  RandomDiT dit(geometry, device, type);
  dit.step();
  return dit.results();
}

/// The same weights on the fast path.
inline std::unique_ptr<RandomDiT> fast_dit(const Geometry& geometry, at::Device device,
                                           at::ScalarType type,
                                           const std::shared_ptr<ops::BlockKernels>& kernels,
                                           const Recomputation& recomputation) {
  auto dit = std::make_unique<RandomDiT>(geometry, device, type);
  dit->model().set_recompute(recomputation.blocks);
  dit->model().use_fast_path(kernels, recomputation.level);
  dit->model().offload_activations(recomputation.offloaded, device);
  return dit;
}

/// One step of the fast path.
inline ops::NamedResults fast_results(const Geometry& geometry, at::Device device,
                                      at::ScalarType type,
                                      const std::shared_ptr<ops::BlockKernels>& kernels,
                                      const Recomputation& recomputation = kRecomputations[0]) {
  const auto dit = fast_dit(geometry, device, type, kernels, recomputation);
  dit->step();
  return dit->results();
}

}  // namespace kinora::models
