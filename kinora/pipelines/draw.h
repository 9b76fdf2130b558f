#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora::pipelines {

/// A sample to draw: its noise is that of (seed, index), so that neither the samples beside it nor
/// their count change what it looks like.
struct SampleToDraw {
  uint64_t seed = 0;
  int64_t index = 0;
  double guidance = 1.0;  ///< scale; 1: none
};

/// Samples first, first + 1, ... of one seed and scale.
[[nodiscard]] std::vector<SampleToDraw> numbered_samples(int64_t first, int64_t count,
                                                         uint64_t seed, double guidance);

/// Samples to draw. They share the sampler, and of guidance all but its scale.
struct DrawRequest {
  std::vector<SampleToDraw> samples;
  int64_t batch = 64;  ///< samples computed at once
  /// Record the sampling loop as a CUDA graph where several batches of a size follow each other.
  bool graphs = false;
  /// Whether the batch of samples first, ..., first + size - 1 is drawn; empty: all are.
  std::function<bool(int64_t first, int64_t size)> wants = {};
  /// What they begin with; its tensors are [N, *sample_shape] on the CPU (the mask has one
  /// channel), of which sample i takes row i modulo N. Such batches are no CUDA graph.
  diffusion::SampleStart start = {};
};

/// Conditions of a batch, on the device, and what is different in its unconditional prediction.
struct DrawConditions {
  diffusion::Conditions conditions;
  diffusion::Conditions null;

  /// Those of sample `row` alone, in memory of their own.
  [[nodiscard]] DrawConditions of_row(int64_t row) const;
};

/// Those of samples first, ..., first + size - 1.
using ConditionsOf = std::function<DrawConditions(int64_t first, int64_t size)>;

/// How far drawing is: at step `step` of `steps` of the samples first, ..., first + size - 1.
struct DrawProgress {
  int64_t first = 0;
  int64_t size = 0;
  int64_t step = 0;
  int64_t steps = 1;
  double part = 0.0;  ///< done of all that is drawn, 0 to 1
};

/// A picture on its way: the estimate of the clean data of samples first, first + 1, ... behind a
/// step.
struct DrawPreview {
  int64_t first = 0;
  int64_t step = 0;  ///< as in DrawProgress
  int64_t steps = 1;
  at::Tensor x0;  ///< float32 [samples, *sample_shape] on the device
};

/// Whom drawing tells of what it does.
struct DrawEvents {
  /// A batch is done: samples first, first + 1, ..., float32 [size, *sample_shape] on the CPU.
  std::function<void(int64_t first, const at::Tensor& samples)> done;
  /// Told before anything is drawn which ranks draw each sample together: then done() comes on all
  /// of them. Empty: on the first of them alone.
  std::function<void(const comm::Group& ranks)> shared = {};
  /// After each step, or after a batch where its loop is a CUDA graph.
  std::function<void(const DrawProgress& progress)> progress = {};
  /// Asked as often; true: the batch is given up, and no other is drawn.
  std::function<bool()> stops = {};
  /// After each step but the last, where DrawRequest::graphs is off.
  std::function<void(const DrawPreview& preview)> preview = {};
};

/// What was done of a batch: step `step` of `steps`, which gave x0 of its samples from row `row`
/// on; undefined where the steps are a CUDA graph.
struct StepDone {
  int64_t step = 0;
  int64_t steps = 1;
  at::Tensor x0 = {};
  int64_t row = 0;
};
using StepReport = std::function<void(const StepDone& done)>;

/// Goes through the batches of a request and tells of them: all that draws is a loop of this. False
/// where it was stopped. kConfig for an empty request.
bool for_each_batch(const DrawRequest& request, const DrawEvents& events,
                    const std::function<at::Tensor(int64_t first, int64_t size,
                                                   const StepReport& report)>& draw_batch);

/// Draws batches of one request by one sampler.
class BatchDrawer {
 public:
  /// All but the sampler is borrowed. kConfig for a scale beyond kMostGuidance.
  BatchDrawer(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
              const SamplingConfig& config, const DrawRequest& request,
              at::IntArrayRef sample_shape, at::Device device);

  /// Samples first, ..., first + size - 1: float32 [size, *sample_shape] on the CPU, with the noise
  /// of samples whose index is greater by `index_offset`. With config.batch_invariant one by one:
  /// then no tensor that any of them is computed with has rows of another.
  [[nodiscard]] at::Tensor draw(int64_t first, int64_t size, const DrawConditions& given,
                                int64_t index_offset, const StepReport& report);

 private:
  [[nodiscard]] at::Tensor draw_together(int64_t first, int64_t size, const DrawConditions& given,
                                         int64_t index_offset, const StepReport& report);

  diffusion::Denoiser& denoiser_;
  const diffusion::Sampler sampler_;
  const SamplingConfig& config_;
  const DrawRequest& request_;
  std::vector<int64_t> sample_shape_;
  at::Device device_;
  bool one_seed_ = true;
  bool one_scale_ = true;
  diffusion::RecordedSampler recorded_;
  diffusion::RecordedSampler recorded_unguided_;  // of samples drawn by themselves
};

/// Draws samples [*sample_shape], batch by batch. False where it was stopped. kConfig as the
/// BatchDrawer, and for an empty request.
bool draw_batches(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                  const SamplingConfig& config, const DrawRequest& request,
                  at::IntArrayRef sample_shape, const ConditionsOf& conditions_of,
                  at::Device device, const DrawEvents& events);

/// The same, all in one tensor: float32 [samples, *sample_shape] on the CPU.
[[nodiscard]] at::Tensor draw(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                              const SamplingConfig& config, const DrawRequest& request,
                              at::IntArrayRef sample_shape, const ConditionsOf& conditions_of,
                              at::Device device);

/// Keeps what is drawn.
class DrawnSamples {
 public:
  [[nodiscard]] DrawEvents events();
  [[nodiscard]] at::Tensor all() const;

 private:
  std::vector<at::Tensor> batches_;
};

}  // namespace kinora::pipelines
