#include "kinora/train/bench/benchmark_sample.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "kinora/core/philox.h"
#include "kinora/device/device.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/trained_model.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/random.h"
#include "kinora/pipelines/cache_price.h"
#include "kinora/pipelines/draw.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/finetune.h"

namespace kinora::train {
namespace {

std::string kernels_of(const inference::ModelRecipe& recipe, const ops::BlockKernels* kernels,
                       bool graphs, int64_t rows, at::Device device) {
  std::ostringstream text;
  if (kernels != nullptr) {
    text << models::describe_fast_path(recipe.model, *kernels) << ", "
         << (graphs ? "the loop as a CUDA graph" : "no CUDA graphs");
    return text.str();
  }
  const models::ModelShape shape = models::shape_of(recipe.model);
  const at::Tensor qkv =
      at::empty({rows, shape.tokens_a_frame(), 3 * shape.width},
                at::device(device).dtype(inference::compute_type(recipe.precision)));
  text << "plain path: attention " << ops::attention_kernel(qkv, shape.heads)
       << ", linears of libtorch";
  return text.str();
}

std::string describe(const diffusion::Sampler& sampler, const diffusion::Guidance& guidance,
                     bool alone) {
  std::ostringstream text;
  constexpr const char* kNames[] = {"ddpm", "ddim", "euler", "solver"};
  static_assert(std::variant_size_v<diffusion::Sampler> == std::size(kNames));
  text << kNames[sampler.index()] << ", " << diffusion::num_steps(sampler) << " steps, "
       << (guidance.scale.any() ? "guidance " : "no guidance");
  if (guidance.scale.any()) {
    text << guidance.scale.value;
  }
  text << (alone ? ", samples one by one" : "");
  return text.str();
}

/// Rows that the model sees in each step for a sample, where that is always the same.
std::optional<int64_t> rows_per_sample(const diffusion::Guidance& guidance) {
  if (!guidance.scale.any()) {
    return 1;
  }
  const bool always = guidance.low <= 0.0 && guidance.high >= 1.0 && guidance.alternates_after == 0;
  return always ? std::optional<int64_t>(2) : std::nullopt;
}

/// Classes in turn, or random texts of full length, which cost most.
diffusion::Conditions conditions_in_turn(const models::ModelConfig& model,
                                         const at::Tensor& sample_index, at::Device device) {
  const int64_t size = sample_index.size(0);
  data::Batch batch{.images = inference::unseen_samples(model, size)};
  batch.labels = sample_index.remainder(model.num_classes);
  if (model.takes_text()) {
    if (model.text_encoder.any()) {
      batch.tokens = at::zeros({size, model.text_tokens}, at::kLong);
    } else {
      batch.text = ops::random_normal({size, model.text_tokens, model.text_channels}, sample_index,
                                      kBenchmarkSeed, 0, RandomPurpose::kTest, at::kCPU);
    }
    batch.pooled = ops::random_normal({size, model.pooled_width()}, sample_index, kBenchmarkSeed, 1,
                                      RandomPurpose::kTest, at::kCPU);
    batch.text_lengths = at::full({size}, model.text_tokens, at::kLong);
  }
  if (model.is_video()) {
    batch.fps = at::full({size}, 8.0, at::kFloat);
  }
  return inference::to_device(inference::conditions_of(batch, model), device);
}

/// The largest value of any rank.
double most(const comm::Group& world, double value) {
  const at::Tensor all = at::full({1}, value, at::kFloat);
  world.all_reduce(all, comm::Reduction::kMax);
  return all.item<double>();
}

int64_t most(const comm::Group& world, int64_t value) {
  const at::Tensor all = at::full({1}, value, at::kLong);
  world.all_reduce(all, comm::Reduction::kMax);
  return all.item<int64_t>();
}

/// Without SampleBenchmark::Cache's comparison. drawn: the last samples of this rank.
SampleBenchmark benchmark_drawing(RunConfig config, const SampleBenchmarkOptions& options,
                                  const comm::Group& world, at::Tensor& drawn) {
  device::configure_computation(config.train.threads, config.deterministic);
  const at::Device device = inference::choose_device(config.train.device);
  start_memory_anew(device);
  config.model = inference::resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  diffusion::Guidance guidance = config.sample.sampling.guidance_of();
  const bool guided = guidance.scale.any();
  const pipelines::SamplingShares shares =
      pipelines::share_ranks(options.ranks, world.size(), options.batch, guided);
  const parallel::Mesh mesh(world, shares.mesh());
  const pipelines::SampleRange own = pipelines::own_samples(options.batch, mesh);
  inference::TrainedModel initial = inference::initial_model(
      config, device, kBenchmarkSeed, {}, inference::ModelGroups::of(world, options.ranks));
  SampleBenchmark result;
  if (config.checkpoint.init_from.empty()) {
    randomise_zeros(initial.model->named_parameters(), *initial.arena);
    result.weights = "random weights";
  } else {
    const std::string others = initialise_from(config, *initial.model, *initial.arena);
    result.weights = config.checkpoint.init_from + (others.empty() ? "" : "; " + others);
  }
  const bool alone = config.sample.sampling.batch_invariant;
  const int64_t at_once = alone ? 1 : own.count;
  const int64_t rows = guided && shares.guidance == 1 ? 2 * at_once : at_once;
  const auto denoiser = share(initial, initial.recipe.model, mesh, options.ranks.scheme, rows);

  const models::ModelConfig& model = initial.recipe.model;
  const diffusion::Sampler sampler = sampler_of(initial.recipe, initial.objective);
  std::vector<int64_t> shape = model.sample_shape();
  shape.insert(shape.begin(), at_once);
  const at::Tensor sample_index = at::arange(own.first, own.first + own.count, at::kLong);
  const diffusion::Conditions conditions = conditions_in_turn(model, sample_index, device);
  const pipelines::DrawConditions all{.conditions = conditions,
                                      .null = inference::null_of(conditions, model.num_classes)};
  diffusion::RecordedSampler recorded(*denoiser, sampler, device);
  const auto run_rows = [&](int64_t first, const pipelines::DrawConditions& given) {
    guidance.null = given.null;
    const diffusion::SampleKey key{.seed = kBenchmarkSeed,
                                   .sample_index = sample_index.narrow(0, first, at_once)};
    return initial.graphs ? recorded.sample(shape, given.conditions, guidance, key)
                          : diffusion::sample(*denoiser, sampler, shape, given.conditions, guidance,
                                              key, device);
  };
  const auto run = [&](int64_t /*call*/) {
    for (int64_t first = 0; first < own.count; first += at_once) {
      drawn = run_rows(first, alone ? all.of_row(first) : all);
    }
  };
  // A run without a graph, and the recording.
  constexpr int64_t kGraphWarmup = 2;
  const int64_t warmup = initial.graphs ? std::max(options.warmup, kGraphWarmup) : options.warmup;
  for (int64_t i = 0; i < warmup; ++i) {
    run(i);
  }
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.repeats; ++i) {
    world.barrier();
    // Users wait for each run, and for all ranks.
    seconds.push_back(most(world, median_call_seconds(device, 1, run)));
  }
  result.seconds = median(std::move(seconds));
  result.samples_per_s = static_cast<double>(options.batch) / result.seconds;
  result.device = device::describe(device);
  result.unit = model.is_video() ? "clips" : "images";
  result.ranks = world.size() > 1 ? shares.reason : "";
  result.steps = diffusion::num_steps(sampler);
  result.sampler = describe(sampler, guidance, alone);
  result.peak_memory = most(world, device::peak_memory(device));
  result.kernels = kernels_of(initial.recipe, initial.kernels.get(), initial.graphs, rows, device);
  const diffusion::StepCacheConfig& cache = config.sample.sampling.cache;
  if (const std::optional<int64_t> each = rows_per_sample(guidance);
      each && (!cache.any() || cache.has_patches())) {
    result.model_tflops = 2.0 * models::forward_macs(model) * result.samples_per_s *
                          static_cast<double>(*each * result.steps) /
                          static_cast<double>(world.size()) / 1e12;
  }
  if (options.profile) {
    world.barrier();
    result.trace = trace_calls(device, 1, run);
  }
  if (cache.any()) {
    result.cache = {.key = cache.key(), .use = initial.model->step_cache_use().describe()};
  }
  return result;
}

}  // namespace

SampleBenchmark benchmark_sample(const RunConfig& config, const SampleBenchmarkOptions& options,
                                 const comm::Group& world) {
  at::Tensor drawn;
  SampleBenchmark result = benchmark_drawing(config, options, world, drawn);
  if (result.cache) {
    RunConfig whole = config;
    whole.sample.sampling.cache = {};
    SampleBenchmarkOptions timed = options;
    timed.profile = false;
    at::Tensor without;
    result.cache->seconds_without = benchmark_drawing(whole, timed, world, without).seconds;
    result.cache->relative_error = pipelines::relative_error(drawn, without);
  }
  return result;
}

}  // namespace kinora::train
