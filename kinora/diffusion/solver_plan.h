#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

/// Samplers as data. Every solver of this folder is a list of evaluations of the denoiser, each
/// followed by sums of tensors whose coefficients are known before the first one. They are computed
/// on the host in double; running a plan neither waits for the device nor depends on its values, so
/// that the whole loop can be recorded as a CUDA graph.
namespace kinora::diffusion {

/// What is done to each estimate of the clean data.
struct Limit {
  enum class Kind {
    kNone,
    kClip,       ///< to [-max, max]
    kThreshold,  ///< to its `ratio` quantile of absolute values, between 1 and max, and divided by
                 ///< it, sample by sample (Saharia et al. 2022, section 2.3)
  };
  Kind kind = Kind::kNone;
  double max = 1.0;
  double ratio = 0.995;
};

/// x0 [B, C, ...] within the limit.
[[nodiscard]] at::Tensor limited(const Limit& limit, const at::Tensor& x0);

/// What is kept of an evaluation: x * x_t + x0 * x_0 + prediction * output.
struct Kept {
  double x = 0.0;
  double x0 = 0.0;
  double prediction = 0.0;
};

/// A part of a noise that is a sum: `weight` times the standard normal of `number`.
struct NoiseShare {
  uint32_t number = 0;
  double weight = 0.0;
};

/// A new x, as a sum of what the solver has at hand.
struct Update {
  double x = 0.0;
  double x0 = 0.0;                ///< of the last evaluation
  double anchor = 0.0;            ///< x as it was at the last evaluation that says keep_anchor
  std::vector<double> history{};  ///< [j]: of what was kept j evaluations ago, 0 the last
  double noise = 0.0;             ///< of this evaluation's noise
  double last_noise = 0.0;        ///< of that of the evaluation before
};

/// The deviation of the noise is the denoiser's second half of channels.
struct PredictedNoise {
  bool range = true;     ///< its place between the logs of two variances, else the variance itself
  double min_log = 0.0;  ///< range: where the output is -1
  double max_log = 0.0;  ///< range: where the output is 1
};

/// An evaluation at x, and what follows.
struct SolverStep {
  double t = 0.0;      ///< as the denoiser takes it
  double level = 0.0;  ///< fraction of the schedule, 1 = pure noise
  double input_scale = 1.0;
  double alpha = 1.0;  ///< x is alpha x_0 + sigma noise
  double sigma = 0.0;
  double x0_from_x = 0.0;  ///< x_0 = x0_from_x x + x0_from_prediction output
  double x0_from_prediction = 1.0;
  Kept kept{};
  std::optional<Update> corrector{};  ///< first of all; later sums see its result as x
  bool keep_anchor = false;
  Update next{};
  std::optional<PredictedNoise> predicted_noise{};  ///< added to what `next` says
  /// The noise of this evaluation; empty: the standard normal of its own number in the plan. Their
  /// squares sum to 1.
  std::vector<NoiseShare> noise_shares{};
};

struct SolverPlan {
  std::vector<SolverStep> steps;
  double initial_scale = 1.0;  ///< x begins as this times noise
  Limit limit{};
};

/// Whether the step reads fresh noise.
[[nodiscard]] bool needs_noise(const SolverStep& step);

/// What a run of a plan holds between evaluations.
class SolverState {
 public:
  /// `plan` is borrowed.
  explicit SolverState(const SolverPlan& plan);

  /// x after evaluation `index` (0, 1, ... in order), and the clean data that it stands for. x,
  /// noise [B, C, ...] float32; prediction [B, C or more, ...], of which a predicted variance takes
  /// 2 C. Error kShape where there are fewer channels.
  struct Result {
    at::Tensor x;
    at::Tensor x0;
  };
  [[nodiscard]] Result step(int64_t index, const at::Tensor& x, const at::Tensor& prediction,
                            const at::Tensor& noise);

 private:
  [[nodiscard]] at::Tensor updated(const Update& update, const at::Tensor& x, const at::Tensor& x0,
                                   const at::Tensor& noise) const;

  const SolverPlan& plan_;
  size_t depth_ = 0;  // the longest history
  std::deque<at::Tensor> history_;
  at::Tensor anchor_;
  at::Tensor last_noise_;
};

}  // namespace kinora::diffusion
