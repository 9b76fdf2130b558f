#include "kinora/train/benchmark_sample.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <sstream>

#include "kinora/diffusion/sampler.h"
#include "kinora/models/model.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/device.h"
#include "kinora/train/benchmark.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

constexpr uint64_t kSeed = 1;

std::string kernels_of(const RunConfig& config, const ops::BlockKernels* kernels, bool graphs,
                       int64_t rows, at::Device device) {
  std::ostringstream text;
  if (kernels != nullptr) {
    text << "fast path: " << kernels->describe() << ", "
         << (graphs ? "the loop as a CUDA graph" : "no CUDA graphs");
    return text.str();
  }
  const models::ModelConfig& model = config.model;
  const at::Tensor qkv = at::empty({rows, model.num_tokens(), 3 * model.hidden},
                                   at::device(device).dtype(compute_type(config.train.precision)));
  text << "plain path: attention " << ops::attention_kernel(qkv, model.heads)
       << ", linears of libtorch";
  return text.str();
}

std::string describe(const diffusion::Sampler& sampler, const diffusion::Guidance& guidance) {
  std::ostringstream text;
  constexpr const char* kNames[] = {"ddpm", "ddim", "euler"};
  static_assert(std::variant_size_v<diffusion::Sampler> == std::size(kNames));
  text << kNames[sampler.index()] << ", " << diffusion::num_steps(sampler) << " steps, "
       << (guidance.scale == 1.0 ? "no guidance" : "guidance ");
  if (guidance.scale != 1.0) {
    text << guidance.scale;
  }
  return text.str();
}

/// Samples that the model sees in each step for an image, where that is always the same.
std::optional<int64_t> rows_per_image(const diffusion::Guidance& guidance) {
  if (guidance.scale == 1.0) {
    return 1;
  }
  return guidance.low <= 0.0 && guidance.high >= 1.0 ? std::optional<int64_t>(2) : std::nullopt;
}

}  // namespace

SampleBenchmark benchmark_sample(RunConfig config, const SampleBenchmarkOptions& options) {
  ops::configure_computation(config.train.threads, config.train.deterministic);
  const at::Device device = choose_device(config.train.device);
  start_memory_anew(device);
  config.model = resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  config.train.recompute = "none";  // concerns backward
  const pipelines::SamplingConfig& sampling = config.sample.sampling;
  diffusion::Objective objective =
      diffusion::make_objective(config.objective, config.model.learn_sigma);
  diffusion::move_to(objective, device);
  const diffusion::Sampler sampler = sampler_of(config, objective);
  const std::unique_ptr<models::Model> made = models::make_model(config.model);
  models::Model& model = *made;
  const std::shared_ptr<ops::BlockKernels> kernels = set_path(model, config, device);
  const bool graphs = use_graphs(config, kernels.get());
  optim::Arena arena(model.named_parameters(), model.buckets(),
                     {.device = device,
                      .compute_type = compute_type(config.train.precision),
                      .seed = kSeed,
                      .train = false,
                      .ema_decays = {}});
  model.to_device(device);
  randomise_zeros(model.named_parameters(), arena);

  diffusion::Guidance guidance{.scale = sampling.guidance,
                               .channels = sampling.guidance_channels,
                               .low = sampling.guidance_interval[0],
                               .high = sampling.guidance_interval[1]};
  guidance.null.labels =
      at::full({options.batch}, config.model.num_classes, at::device(device).dtype(at::kLong));
  const std::vector<int64_t> shape = {options.batch, config.model.in_channels, config.model.height,
                                      config.model.width};
  const at::Tensor sample_index = at::arange(options.batch, at::kLong);
  diffusion::Conditions conditions;
  conditions.labels = sample_index.remainder(config.model.num_classes).to(device);
  diffusion::RecordedSampler recorded(model, sampler, guidance, kSeed, device);
  const auto run = [&](int64_t /*call*/) {
    if (graphs) {
      (void)recorded.sample(shape, conditions, guidance.null, sample_index);
    } else {
      (void)diffusion::sample(model, sampler, shape, conditions, guidance,
                              {.seed = kSeed, .sample_index = sample_index}, device);
    }
  };
  // A run without a graph, and the recording.
  constexpr int64_t kGraphWarmup = 2;
  const int64_t warmup = graphs ? std::max(options.warmup, kGraphWarmup) : options.warmup;
  for (int64_t i = 0; i < warmup; ++i) {
    run(i);
  }
  SampleBenchmark result;
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.repeats; ++i) {
    seconds.push_back(median_call_seconds(device, 1, run));  // users wait for each run
  }
  result.seconds = median(std::move(seconds));
  result.images_per_s = static_cast<double>(options.batch) / result.seconds;
  result.device = ops::describe(device);
  result.steps = diffusion::num_steps(sampler);
  result.sampler = describe(sampler, guidance);
  result.peak_memory = ops::peak_memory(device);
  const std::optional<int64_t> rows = rows_per_image(guidance);
  result.kernels =
      kernels_of(config, kernels.get(), graphs, options.batch * rows.value_or(2), device);
  if (rows) {
    result.model_tflops = 2.0 * models::forward_macs(config.model) * result.images_per_s *
                          static_cast<double>(*rows * result.steps) / 1e12;
  }
  if (options.profile) {
    result.profile = profile_calls(device, 1, run);
  }
  return result;
}

}  // namespace kinora::train
