#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/guidance.h"
#include "kinora/diffusion/prediction.h"
#include "kinora/diffusion/schedule.h"
#include "kinora/diffusion/solver_plan.h"
#include "kinora/ops/random.h"

/// From noise to data with a denoiser. Samplers are values, compute in float32, and draw noise by
/// (seed, image index, step), so that the batch size does not matter.
namespace kinora::diffusion {

/// The variance of an ancestral step.
enum class Variance {
  kLearnedRange,  ///< the denoiser's second half of channels (Nichol and Dhariwal 2021, eq. 15)
  kFixedSmall,    ///< the posterior's (Ho et al. 2020, section 3.2)
  kFixedLarge,    ///< beta (Ho et al. 2020, section 3.2)
};

/// Ancestral sampling (Ho et al. 2020, algorithm 2). No noise is added in the last step.
struct DdpmSampler {
  DiscreteSchedule schedule;  ///< respaced to the steps to take
  Variance variance = Variance::kLearnedRange;
  bool clip_denoised = false;  ///< clip predicted x_0 to [-1, 1]: pixels, not latents
  Prediction prediction = Prediction::kEps;
};

/// DDIM (Song et al. 2021a, eq. 12 and 16); a learned variance is ignored.
struct DdimSampler {
  DiscreteSchedule schedule;   ///< respaced to the steps to take
  double eta = 0.0;            ///< 0 deterministic ... 1 as much noise as DDPM's fixed small
  bool clip_denoised = false;  ///< then eps is derived again from the clipped x_0
  Prediction prediction = Prediction::kEps;
};

/// Euler's method along a flow's velocity; further channels of the prediction are ignored.
struct FlowEulerSampler {
  std::vector<double> times;  ///< from 1 to 0 (euler_times)
  bool toward_data = false;   ///< what the denoiser predicts (RectifiedFlow)
  /// Given frames join the others at the first time that is not above it: they are noised to that
  /// time and drawn from there on (the edit ratio of Open-Sora 1.2's mask strategy). 0: they stay.
  double given_edit = 0.0;
  GivenWay given_way = GivenWay::kClean;  ///< how frames are given
  /// Given frames that are shown clean have this times t^2 times new noise in each step
  /// (image_cond_noise_scale of diffusers' LTXConditionPipeline), and end as they were given. Those
  /// with a level (Conditions::given_levels) have none.
  double given_noise = 0.0;
};

/// A SolverPlan is every other method: chain_solvers.h, deis.h, dpm_solver.h, sa_solver.h,
/// sigma_solvers.h, unipc.h.
using Sampler = std::variant<DdpmSampler, DdimSampler, FlowEulerSampler, SolverPlan>;

/// Steps, each of which asks the denoiser once; of a plan its evaluations.
[[nodiscard]] int64_t num_steps(const Sampler& sampler);

/// x after a step, and the clean data that the prediction stands for.
struct SamplerStep {
  at::Tensor x;
  at::Tensor x0;
};

/// One step at `index` of the schedule, which counts down to 0. x, noise [B, C, ...]; prediction
/// [B, 2 C, ...] for a learned variance, else at least C channels. Noise is not read at index 0.
/// Error kShape where a learned variance is asked of a prediction without.
[[nodiscard]] SamplerStep ddpm_step(const DdpmSampler& sampler, int64_t index, const at::Tensor& x,
                                    const at::Tensor& prediction, const at::Tensor& noise);

/// The same; noise is read where eta > 0 and index > 0. Error kConfig unless 0 <= eta <= 1.
[[nodiscard]] SamplerStep ddim_step(const DdimSampler& sampler, int64_t index, const at::Tensor& x,
                                    const at::Tensor& prediction, const at::Tensor& noise);

/// The step from times[index] to times[index + 1]; here the index counts up.
[[nodiscard]] SamplerStep flow_euler_step(const FlowEulerSampler& sampler, int64_t index,
                                          const at::Tensor& x, const at::Tensor& prediction);

/// Names the noise of a batch of images: that of image b is of its seed and number alone.
struct SampleKey {
  ops::RandomSeed seed = 0;  ///< of all, or of each
  at::Tensor sample_index;   ///< int64 [B] on the CPU: numbers of the images
};

/// What a run begins with. By itself: the initial noise of its key.
struct SampleStart {
  at::Tensor noise = {};  ///< float32 of the run's shape, in the place of the key's initial noise
  /// Data of the same shape, noised to where the sampler's steps begin: alpha * data + sigma *
  /// noise is x then. Undefined: pure noise.
  at::Tensor data = {};
  double alpha = 0.0;
  double sigma = 1.0;
  /// Which part of the data is drawn anew: float32 [B, 1, ...] of 0 and 1, of images. After each
  /// step the rest is the data again, noised by the initial noise to where the next step begins
  /// (Lugmayr et al. 2022, "RePaint", eq. 8a). Undefined: all.
  at::Tensor mask = {};
};

struct SampleProgress {
  int64_t step;  ///< steps done, 1..total
  int64_t total;
  const at::Tensor& x0;  ///< the current estimate of the clean data, on the device
};

/// Called after every step; may throw to stop.
using SampleCallback = std::function<void(const SampleProgress&)>;

/// The times at which `sampler` asks the denoiser, float32 [steps] on `device`.
[[nodiscard]] at::Tensor sampling_times(const Sampler& sampler, at::Device device);

/// Draws initial noise and runs all steps. shape [B, C, H, W] or [B, C, T, H, W]; conditions and
/// guidance.null on `device`. Frames that conditions.frame_mask calls given stay as
/// conditions.given has them, but for FlowEulerSampler::given_edit and those whose
/// conditions.given_levels a step reaches. Returns float32 of `shape` on
/// `device`. No gradients are recorded. (Not inference mode: buffers that a model computes lazily
/// must stay usable in training.) Error kShape where shape and sample_index disagree; the errors of
/// steps and guidance. Tensors of `start` are on `device`, kShape where they have another shape.
[[nodiscard]] at::Tensor sample(Denoiser& denoiser, const Sampler& sampler, at::IntArrayRef shape,
                                const Conditions& conditions, const Guidance& guidance,
                                const SampleKey& key, at::Device device,
                                const SampleCallback& callback = {}, const SampleStart& start = {});

/// The same for many batches, whose whole loop is recorded as a CUDA graph at the second one of a
/// size.
class RecordedSampler {
 public:
  /// Both are borrowed.
  RecordedSampler(Denoiser& denoiser, const Sampler& sampler, at::Device device);
  ~RecordedSampler();

  /// As diffusion::sample(). A batch of another size, seed or scale of all samples is recorded
  /// anew; seeds and scales of each sample may differ from batch to batch, all else of guidance may
  /// not.
  [[nodiscard]] at::Tensor sample(at::IntArrayRef shape, const Conditions& conditions,
                                  const Guidance& guidance, const SampleKey& key);

 private:
  struct Recorded;
  Denoiser& denoiser_;
  const Sampler& sampler_;
  at::Device device_;
  at::Tensor times_;
  std::unique_ptr<Recorded> recorded_;  // of the last size
};

}  // namespace kinora::diffusion
