#include "kinora/inference/drawing_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/free_memory.h"
#include "kinora/diffusion/step_cache.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/trained_model.h"
#include "kinora/optim/held_weights.h"
#include "kinora/optim/weight_exchange.h"

namespace kinora::inference {

DrawingMemory drawing_memory(const ModelRecipe& recipe, const optim::HeldOptions& held,
                             int64_t rows, bool exchanges_experts) {
  const at::NoGradGuard no_grad;
  const device::DryRun run(c10::DeviceType::CUDA);
  const int64_t start = device::DryRun::live_bytes();
  const TrainedModel model = initial_model(recipe, at::kMeta, /*seed=*/0, held);
  const bool has_experts = recipe.sample.sampling.low_noise > 0.0;  // which are as large
  std::optional<TrainedModel> low_noise;
  std::optional<optim::WeightExchange> experts;
  if (has_experts && exchanges_experts) {
    experts.emplace(*model.arena);
  } else if (has_experts) {
    low_noise.emplace(initial_model(recipe, at::kMeta, /*seed=*/0, held));
  }
  DrawingMemory memory;
  memory.weights = device::DryRun::live_bytes() - start;
  if (const optim::HeldWeights* weights = model.arena->held()) {
    memory.at_host = (low_noise ? 2 : 1) * weights->host_bytes();
  }
  memory.at_host += experts ? experts->host_bytes() : 0;
  const models::ModelConfig& config = recipe.model;
  const diffusion::Conditions conditions = to_device(
      conditions_of(unseen_batch(config, unseen_samples(config, rows)), config), at::kMeta);
  std::vector<int64_t> shape = config.sample_shape();
  shape.insert(shape.begin(), rows);
  const auto fp32 = at::TensorOptions(at::kFloat).device(at::kMeta);
  const int64_t steps = recipe.sample.sampling.steps;
  const diffusion::Prepared prepared =
      model.model->prepare(at::zeros({std::max<int64_t>(steps, 1)}, fp32), conditions);
  const int64_t before = device::DryRun::live_bytes();
  device::DryRun::start_peak_anew();
  const std::unique_ptr<diffusion::StepCache> cache = model.model->make_cache();
  // So many evaluations as a step cache keeps, and the one that the first of them makes way for.
  const int64_t evaluations = cache != nullptr ? recipe.sample.sampling.cache.order + 2 : 1;
  for (int64_t i = 0; i < evaluations; ++i) {
    if (cache != nullptr) {
      cache->begin({.level = 1.0 - static_cast<double>(i) / static_cast<double>(evaluations)});
    }
    (void)model.model->forward(at::zeros(shape, fp32), at::zeros({rows}, fp32), conditions,
                               {.cache = cache.get()});
  }
  const int64_t evaluation = device::DryRun::peak_bytes() - before;
  // A graph's memory is its own, beside that of the evaluation before it was recorded.
  memory.beside =
      before - start - memory.weights + (model.graphs ? 2 : 1) * evaluation + device::kContextBytes;
  return memory;
}

FittingWeights fitting_weights(const ModelRecipe& recipe, optim::HeldOptions held, int64_t rows,
                               int64_t bytes, bool exchanges_experts) {
  constexpr int kParts = 10;
  held.offload = 0.0;
  DrawingMemory memory;
  if (recipe.sample.sampling.low_noise > 0.0 && !exchanges_experts) {
    memory = drawing_memory(recipe, held, rows);
    if (memory.needed() <= bytes) {
      return {held, false, memory};
    }
    exchanges_experts = true;
  }
  for (int part = 0; part <= kParts; ++part) {
    held.offload = static_cast<double>(part) / kParts;
    memory = drawing_memory(recipe, held, rows, exchanges_experts);
    if (memory.needed() <= bytes) {
      return {held, exchanges_experts, memory};
    }
  }
  throw_error(ErrorKind::kMemory, "[sample] drawing takes ", human_bytes(memory.needed()),
              " of the GPU with all weights of blocks in the host's memory, and there is room for ",
              human_bytes(bytes), ". Hint: a smaller --batch, or a size that needs less");
}

}  // namespace kinora::inference
