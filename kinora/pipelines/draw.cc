#include "kinora/pipelines/draw.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace {

/// Ends the loop of a batch.
struct Stopped {};

diffusion::SampleKey key_of(std::span<const SampleToDraw> samples, bool one_seed,
                            int64_t index_offset) {
  std::vector<int64_t> seeds;
  std::vector<int64_t> indices;
  for (const SampleToDraw& sample : samples) {
    seeds.push_back(static_cast<int64_t>(sample.seed));
    indices.push_back(sample.index + index_offset);
  }
  return {.seed = one_seed ? ops::RandomSeed(samples.front().seed)
                           : ops::RandomSeed(at::tensor(seeds, at::kLong)),
          .sample_index = at::tensor(indices, at::kLong)};
}

diffusion::GuidanceScale scale_of(std::span<const SampleToDraw> samples, bool one_scale,
                                  at::Device device) {
  if (one_scale) {
    return samples.front().guidance;
  }
  std::vector<float> scales;
  for (const SampleToDraw& sample : samples) {
    scales.push_back(static_cast<float>(sample.guidance));
  }
  return diffusion::GuidanceScale(at::tensor(scales, at::kFloat).to(device));
}

/// Rows of a DrawRequest's start in turn, on the device.
diffusion::SampleStart rows_of(const diffusion::SampleStart& start,
                               std::span<const SampleToDraw> samples, at::Device device) {
  const auto rows = [&](const at::Tensor& all) {
    if (!all.defined()) {
      return at::Tensor();
    }
    std::vector<int64_t> numbers;
    for (const SampleToDraw& sample : samples) {
      numbers.push_back(sample.index % all.size(0));
    }
    return all.index_select(0, at::tensor(numbers, at::kLong)).to(device);
  };
  return {.noise = rows(start.noise),
          .data = rows(start.data),
          .alpha = start.alpha,
          .sigma = start.sigma,
          .mask = rows(start.mask)};
}

}  // namespace

DrawConditions DrawConditions::of_row(int64_t row) const {
  const auto copy = [row](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, row, 1).clone() : at::Tensor();
  };
  DrawConditions one;
  for (const auto& [name, tensor] : diffusion::kConditions) {
    one.conditions.*tensor = copy(conditions.*tensor);
    one.null.*tensor = copy(null.*tensor);
  }
  return one;
}

std::vector<SampleToDraw> numbered_samples(int64_t first, int64_t count, uint64_t seed,
                                           double guidance) {
  std::vector<SampleToDraw> samples;
  for (int64_t index = first; index < first + count; ++index) {
    samples.push_back({.seed = seed, .index = index, .guidance = guidance});
  }
  return samples;
}

bool for_each_batch(const DrawRequest& request, const DrawEvents& events,
                    const std::function<at::Tensor(int64_t first, int64_t size,
                                                   const StepReport& report)>& draw_batch) {
  const auto count = static_cast<int64_t>(request.samples.size());
  KINORA_CHECK(count > 0 && request.batch > 0, kConfig, "[sample] count and batch must not be 0");
  std::vector<int64_t> wanted;
  int64_t total = 0;
  for (int64_t first = 0; first < count; first += request.batch) {
    const int64_t size = std::min(request.batch, count - first);
    if (!request.wants || request.wants(first, size)) {
      wanted.push_back(first);
      total += size;
    }
  }
  const auto stops = [&events] { return events.stops && events.stops(); };
  int64_t drawn = 0;
  for (const int64_t first : wanted) {
    const int64_t size = std::min(request.batch, count - first);
    const auto report = [&](const StepDone& done) {
      if (events.progress) {
        const double now = static_cast<double>(drawn) +
                           static_cast<double>(size * done.step) / static_cast<double>(done.steps);
        events.progress({.first = first,
                         .size = size,
                         .step = done.step,
                         .steps = done.steps,
                         .part = now / static_cast<double>(total)});
      }
      if (events.preview && done.x0.defined() && done.step < done.steps) {
        events.preview(
            {.first = first + done.row, .step = done.step, .steps = done.steps, .x0 = done.x0});
      }
      if (done.step < done.steps && stops()) {
        throw Stopped();
      }
    };
    try {
      events.done(first, draw_batch(first, size, report));
    } catch (const Stopped&) {
      return false;
    }
    drawn += size;
    if (drawn < total && stops()) {
      return false;
    }
  }
  return true;
}

BatchDrawer::BatchDrawer(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                         const SamplingConfig& config, const DrawRequest& request,
                         at::IntArrayRef sample_shape, at::Device device)
    : denoiser_(denoiser),
      sampler_(sampler),
      config_(config),
      request_(request),
      sample_shape_(sample_shape.vec()),
      device_(device),
      one_seed_(!config.batch_invariant),  // one graph for all of them
      recorded_(denoiser, sampler_, device),
      recorded_unguided_(denoiser, sampler_, device) {
  for (const SampleToDraw& sample : request.samples) {
    KINORA_CHECK(sample.guidance >= 0.0 && sample.guidance <= kMostGuidance, kConfig,
                 "[sample] a scale of guidance must be between 0 and ", kMostGuidance, ", got ",
                 sample.guidance);
    one_seed_ = one_seed_ && sample.seed == request.samples.front().seed;
    one_scale_ = one_scale_ && sample.guidance == request.samples.front().guidance;
  }
}

at::Tensor BatchDrawer::draw(int64_t first, int64_t size, const DrawConditions& given,
                             int64_t index_offset, const StepReport& report) {
  if (!config_.batch_invariant) {
    return draw_together(first, size, given, index_offset, report);
  }
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < size; ++i) {
    samples.push_back(
        draw_together(first + i, 1, given.of_row(i), index_offset, [&](const StepDone& done) {
          report({.step = i * done.steps + done.step,
                  .steps = size * done.steps,
                  .x0 = done.x0,
                  .row = i});
        }));
  }
  return at::cat(samples);
}

at::Tensor BatchDrawer::draw_together(int64_t first, int64_t size, const DrawConditions& given,
                                      int64_t index_offset, const StepReport& report) {
  const std::span<const SampleToDraw> samples(request_.samples.data() + first,
                                              static_cast<size_t>(size));
  std::vector<int64_t> shape = {size};
  shape.insert(shape.end(), sample_shape_.begin(), sample_shape_.end());
  const diffusion::SampleKey key = key_of(samples, one_seed_, index_offset);
  const bool alone = config_.batch_invariant;
  const bool unguided = alone && samples.front().guidance == 1.0;
  diffusion::Guidance guidance = config_.guidance_of();
  guidance.scale = scale_of(samples, alone ? unguided : one_scale_, device_);
  if (config_.low_noise_guidance == 0.0) {
    guidance.low_noise_scale = guidance.scale;
  }
  guidance.null = given.null;
  const int64_t at_once = alone ? 1 : request_.batch;
  const bool repeats = std::ssize(request_.samples) >= 2 * at_once;
  const bool is_given = request_.start.noise.defined() || request_.start.data.defined();
  if (request_.graphs && repeats && size == at_once && !is_given) {
    diffusion::RecordedSampler& recorded = unguided ? recorded_unguided_ : recorded_;
    const at::Tensor drawn = recorded.sample(shape, given.conditions, guidance, key).cpu();
    const int64_t steps = diffusion::num_steps(sampler_);
    report({.step = steps, .steps = steps});
    return drawn;
  }
  return diffusion::sample(
             denoiser_, sampler_, shape, given.conditions, guidance, key, device_,
             [&](const diffusion::SampleProgress& done) {
               report({.step = done.step, .steps = done.total, .x0 = done.x0});
             },
             rows_of(request_.start, samples, device_))
      .cpu();
}

bool draw_batches(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                  const SamplingConfig& config, const DrawRequest& request,
                  at::IntArrayRef sample_shape, const ConditionsOf& conditions_of,
                  at::Device device, const DrawEvents& events) {
  BatchDrawer drawer(denoiser, sampler, config, request, sample_shape, device);
  return for_each_batch(
      request, events, [&](int64_t first, int64_t size, const StepReport& report) {
        return drawer.draw(first, size, conditions_of(first, size), /*index_offset=*/0, report);
      });
}

at::Tensor draw(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                const SamplingConfig& config, const DrawRequest& request,
                at::IntArrayRef sample_shape, const ConditionsOf& conditions_of,
                at::Device device) {
  DrawnSamples drawn;
  (void)draw_batches(denoiser, sampler, config, request, sample_shape, conditions_of, device,
                     drawn.events());
  return drawn.all();
}

DrawEvents DrawnSamples::events() {
  return {.done = [this](int64_t /*first*/, const at::Tensor& samples) {
    batches_.push_back(samples);
  }};
}

at::Tensor DrawnSamples::all() const {
  return at::cat(batches_);
}

}  // namespace kinora::pipelines
