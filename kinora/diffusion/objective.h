#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "kinora/core/philox.h"
#include "kinora/diffusion/loss_weights.h"
#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/prediction.h"
#include "kinora/diffusion/schedule.h"
#include "kinora/diffusion/shaped_noise.h"
#include "kinora/ops/random.h"

/// What a denoiser learns. The trainer calls noise(), the denoiser, then loss(). Everything is
/// float32 and stays on x0's device without synchronising it; nothing is random but by its key.
/// Shapes: x0 [B, C, ...]; [B] tensors are one value a sample.
namespace kinora::diffusion {

class LossSecondMoment;

/// What is learned of a discrete chain.
struct IddpmOptions {
  std::vector<double> betas;
  /// kEps, kData or kV.
  Prediction prediction = Prediction::kEps;
  bool learned_variance = true;
  LossWeights weights{};
  /// [T], how often each timestep is trained; empty: all alike. The loss does not make up for it.
  std::vector<double> timestep_probabilities{};
  /// Of noise(), not of noise_at().
  NoiseShape noise{};
};

/// Predict eps (Ho et al. 2020, eq. 14), x_0 or v (Salimans and Ho 2022, appendix D) on a discrete
/// chain and, with a learned variance, log variances between the posterior's and beta's in C more
/// channels (Nichol and Dhariwal 2021, eq. 15). Loss L_hybrid = L_simple + 0.001 L_vlb (section
/// 3.1), L_vlb = T L_t in bits a dimension: weight MSE + T / 1000 L_t, where L_t does not reach the
/// mean. With eps and without weights this is RESCALED_MSE of improved-diffusion, and at T = 1000
/// what DiT trains with.
class Iddpm {
 public:
  /// eps on the linear schedule of T timesteps. Error kConfig for T <= 20.
  explicit Iddpm(int64_t num_timesteps = kDdpmTimesteps, bool learned_variance = true);

  /// Errors kConfig: eps on a chain of zero terminal SNR, the prediction of a flow, those of betas
  /// and weights.
  explicit Iddpm(const IddpmOptions& options);

  /// Moves the lookup tables, so that noise() and loss() need not copy them.
  void to(at::Device device);

  [[nodiscard]] const DiscreteSchedule& schedule() const { return schedule_; }
  [[nodiscard]] Prediction prediction() const { return prediction_; }
  [[nodiscard]] bool learned_variance() const { return learned_variance_; }
  [[nodiscard]] const NoiseShape& noise_shape() const { return noise_shape_; }
  /// float32 [T, columns]; the columns are objective.cc's own.
  [[nodiscard]] const at::Tensor& table() const { return table_; }
  /// float64 [T]: sums of the timesteps' probabilities; undefined: all are drawn alike.
  [[nodiscard]] const at::Tensor& cumulative() const { return cumulative_; }

 private:
  DiscreteSchedule schedule_;
  Prediction prediction_;
  bool learned_variance_;
  NoiseShape noise_shape_;
  at::Tensor table_;
  at::Tensor cumulative_;
};

/// Predict the velocity noise - x0 (see FlowSchedule). Further channels of a prediction (a model
/// built with learned variance) are ignored.
struct RectifiedFlow {
  enum class Times {
    kUniform,
    kLogitNormal,  ///< sigmoid(logit_mean + logit_std n), n ~ N(0, 1) (Esser et al. 2024, eq. 19)
  };
  Times times = Times::kUniform;
  double logit_mean = 0.0;
  double logit_std = 1.0;
  FlowSchedule schedule;  ///< its shift is applied to the drawn times
  /// Noise levels from `first` to `second` alone are trained, each as often as the others of them
  /// as without this.
  std::pair<double, double> levels = {0.0, 1.0};
  /// The prediction is x0 - noise, as Liu et al. 2023 and Open-Sora 1.2 train it.
  bool toward_data = false;
  bool shift_by_size = false;  ///< see size_shift()
  enum class TokenShift {
    kFlux,       ///< numbers are logarithms, tokens all of them
    kOpenSora2,  ///< numbers are shifts, tokens those of a frame; times sqrt(frames)
  };
  /// Two numbers, at shift_tokens, see size_shift(); []: none.
  std::vector<double> shift_by_tokens = {};
  std::vector<int64_t> shift_tokens = {kFewTokens, kManyTokens};
  TokenShift token_shift = TokenShift::kFlux;
  /// Latent frames of the chunks that a clip is encoded in, of which size_shift() counts all but
  /// the first (Open-Sora 1.3); 0: it counts all.
  int64_t shift_chunk = 0;
};

using Objective = std::variant<Iddpm, RectifiedFlow>;

/// Moves lookup tables to `device`.
void move_to(Objective& objective, at::Device device);

/// Times that are trained lie from the first up to the second, in the schedule's unit: 0 and T for
/// a discrete chain, the levels of a flow.
[[nodiscard]] std::pair<double, double> time_range(const Objective& objective);

/// How large a clip is.
struct ClipExtent {
  double height = 0.0;  ///< in pixels
  double width = 0.0;
  double latent_frames = 1.0;
  int64_t tokens = 0;  ///< of the model
};

/// A shift of times by the size of a clip, on top of FlowSchedule::shift. shift_by_size is
/// Open-Sora 1.2's: sqrt(height width / 512^2) sqrt(frames), of which shift_chunk leaves some out.
/// shift_by_tokens is Flux', dynamic_shift() of the tokens, or Open-Sora 2's, linear_shift() of
/// those of a latent frame times sqrt(latent frames). 1 where the objective has neither.
[[nodiscard]] double size_shift(const Objective& objective, const ClipExtent& clip);

/// What is known of a batch of clips besides its contents.
struct ClipSettings {
  double size_shift = 1.0;  ///< of a flow's times
  /// bool [B, T]: whether a frame is noised; the others are shown at t = 0, and the loss does not
  /// count them. Every sample has one at least. Undefined: all are.
  at::Tensor frame_mask{};
};

/// Names the random numbers of a batch.
struct NoiseKey {
  uint64_t seed = 0;
  ops::RandomStep step = 0;
  at::Tensor sample_index;  ///< int64 [B] on the CPU or x0's device
  RandomPurpose noise = RandomPurpose::kNoise;
  RandomPurpose timestep = RandomPurpose::kTimestep;
};

/// Drawn times.
struct Timesteps {
  at::Tensor t;        ///< float32 [B] in the schedule's unit
  at::Tensor weights;  ///< float32 [B]: 1 / (T p_t); undefined = ones
};

/// What the denoiser is shown, and what loss() needs.
struct NoisedBatch {
  at::Tensor x_t;           ///< float32, x0's shape
  at::Tensor t;             ///< float32 [B] in the schedule's unit
  at::Tensor noise;         ///< float32, x0's shape
  at::Tensor weights;       ///< float32 [B]
  at::Tensor frame_mask{};  ///< as ClipSettings has it
  /// Of images, what the loss of a place is multiplied by: float32 [B, 1, H, W]. Undefined: ones.
  at::Tensor place_weights{};
};

/// Draws times: of `importance` where given (Iddpm only: error kConfig otherwise), else as the
/// objective says. Error kConfig for unusable settings of the objective.
[[nodiscard]] Timesteps draw_timesteps(const Objective& objective, const NoiseKey& key,
                                       at::Device device,
                                       const LossSecondMoment* importance = nullptr,
                                       double size_shift = 1.0);

/// Noises x0 by white noise at the given times, such as a validation set's: t float32 [B] on x0's
/// device, for a discrete chain whole numbers in 0..T-1.
[[nodiscard]] NoisedBatch noise_at(const Objective& objective, const at::Tensor& x0,
                                   const Timesteps& timesteps, const NoiseKey& key,
                                   const at::Tensor& frame_mask = {});

/// draw_timesteps and noise_at, by noise of the objective's shape.
[[nodiscard]] NoisedBatch noise(const Objective& objective, const at::Tensor& x0,
                                const NoiseKey& key, const LossSecondMoment* importance = nullptr,
                                const ClipSettings& clip = {});

struct Loss {
  at::Tensor mean;        ///< scalar: mean of weights * loss; differentiable in the prediction
  at::Tensor per_sample;  ///< [B], detached, without NoisedBatch::weights: LossWeights * mse + vb
  at::Tensor mse;         ///< [B], detached, unweighted
  at::Tensor vb;          ///< [B], detached, T / 1000 L_t; undefined without learned variance
};

/// `prediction`: the denoiser's, [B, C, ...] or, with learned variance, [B, 2 C, ...]. Error kShape
/// for other shapes.
[[nodiscard]] Loss loss(const Objective& objective, const at::Tensor& prediction,
                        const NoisedBatch& batch, const at::Tensor& x0);

}  // namespace kinora::diffusion
