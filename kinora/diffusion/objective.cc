#include "kinora/diffusion/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/special_ndtri.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/diffusion/importance.h"
#include "kinora/diffusion/noise_levels.h"
#include "kinora/kernels/diffusion_loss.h"
#include "kinora/ops/diffusion_loss.h"
#include "kinora/ops/random.h"

namespace kinora::diffusion {
namespace {

/// Columns of Iddpm::table().
using Column = kernels::DiffusionColumn;
using enum kernels::DiffusionColumn;

/// The rows of `table` at t, [B, kNumDiffusionColumns].
at::Tensor rows_at(const at::Tensor& table, const at::Tensor& t) {
  return table.to(t.device()).index_select(0, t.to(at::kLong));
}

/// [B] -> [B, 1, ...] with `like`'s number of dims.
at::Tensor per_sample_view(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[0] = values.size(0);
  return values.reshape(shape);
}

at::Tensor column(const at::Tensor& rows, Column which, const at::Tensor& like) {
  return per_sample_view(rows.select(1, which), like);
}

/// bool [B, T] -> [B, 1, T, 1, ...] with `like`'s number of dims.
at::Tensor per_frame_view(const at::Tensor& mask, const at::Tensor& like) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[0] = mask.size(0);
  shape[2] = mask.size(1);
  return mask.reshape(shape);
}

/// Mean over all dims but the first; with a mask over the frames that it names.
at::Tensor mean_flat(const at::Tensor& x, const at::Tensor& frame_mask) {
  if (!frame_mask.defined()) {
    return x.flatten(1).mean(1);
  }
  const at::Tensor sum = at::where(per_frame_view(frame_mask, x), x, 0.0).flatten(1).sum(1);
  return sum *
         (static_cast<double>(frame_mask.size(1)) * static_cast<double>(x.size(0)) /
          static_cast<double>(x.numel())) /
         frame_mask.sum(1);
}

/// Whether every place of every frame counts alike.
bool counts_all(const NoisedBatch& batch) {
  return !batch.frame_mask.defined() && !batch.place_weights.defined();
}

/// [B]: the mean of what counts of x, whose places are weighted first.
at::Tensor mean_of(const at::Tensor& x, const NoisedBatch& batch) {
  return mean_flat(batch.place_weights.defined() ? x * batch.place_weights : x, batch.frame_mask);
}

/// The distribution function of N(0, 1) to 2e-4, by tanh, as improved-diffusion computes the
/// decoder likelihood: losses of published runs contain it.
at::Tensor approximate_normal_cdf(const at::Tensor& x) {
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * (1.0 + at::tanh(scale * (x + 0.044715 * x.pow(3))));
}

/// -log p(x0) in nats where p is a Gaussian over the 256 levels of an 8-bit image scaled to [-1, 1]
/// (Ho et al. 2020, eq. 13). centred = x0 - mean.
at::Tensor decoder_nll(const at::Tensor& x0, const at::Tensor& centred,
                       const at::Tensor& log_variance) {
  constexpr double kHalfLevel = 1.0 / 255.0;
  constexpr double kLeastProbability = 1e-12;
  const at::Tensor inverse_std = (-0.5 * log_variance).exp();
  const at::Tensor upper = approximate_normal_cdf(inverse_std * (centred + kHalfLevel));
  const at::Tensor lower = approximate_normal_cdf(inverse_std * (centred - kHalfLevel));
  // The outermost levels reach to infinity.
  const at::Tensor probability =
      at::where(x0 < -0.999, upper, at::where(x0 > 0.999, 1.0 - lower, upper - lower));
  return -probability.clamp_min(kLeastProbability).log();
}

/// L_t in bits a dimension, [B]: the decoder's at t = 0, KL(q(x_{t-1} | x_t, x_0) || p) above.
/// Differentiable in `variance` only, the model's output in [-1, 1] (not enforced). error = target
/// - prediction.
at::Tensor variational_bound(const at::Tensor& rows, const at::Tensor& t, const at::Tensor& x0,
                             const at::Tensor& error, const at::Tensor& variance,
                             const NoisedBatch& batch) {
  const at::Tensor fraction = (variance + 1.0) / 2.0;
  // log of the model's variance over the posterior's; eq. 15.
  const at::Tensor log_ratio = fraction * column(rows, kLogVarianceRange, x0);
  const at::Tensor log_variance = column(rows, kMinLogVariance, x0) + log_ratio;
  // Both means are linear in x_t and (predicted or true) x_0 with the same coefficients, so that
  // x_t cancels. Formed from the means, the difference would lose its digits at large t.
  const at::Tensor mean_error = column(rows, kPosteriorDeviation, x0) * error.detach();
  const at::Tensor kl =
      0.5 * (at::expm1(-log_ratio) + log_ratio + mean_error.square() * (-log_variance).exp());
  // At t = 0 the posterior mean is x_0 itself.
  const at::Tensor nll = decoder_nll(x0, -mean_error, log_variance);
  return at::where(t == 0, mean_of(nll, batch), mean_of(kl, batch)) / std::numbers::ln2;
}

void check_prediction(const at::Tensor& prediction, const NoisedBatch& batch, int64_t channels,
                      bool more_allowed) {
  const at::IntArrayRef want = batch.noise.sizes();
  const bool fits =
      prediction.dim() == batch.noise.dim() && prediction.size(0) == want[0] &&
      (more_allowed ? prediction.size(1) >= channels : prediction.size(1) == channels) &&
      prediction.sizes().slice(2) == want.slice(2);
  KINORA_CHECK(fits, kShape, "[objective] for x_t of shape ", want, " the prediction must have ",
               channels, " channels and otherwise that shape, got ", prediction.sizes(),
               ". Hint: a denoiser with learned sigma has twice the channels; the objective's "
               "learned variance must agree with it.");
}

/// total: what mse and vb come to.
Loss finish(const NoisedBatch& batch, const at::Tensor& total, const at::Tensor& mse,
            const at::Tensor& vb) {
  return {(batch.weights * total).mean(), total.detach(), mse.detach(),
          vb.defined() ? vb.detach() : at::Tensor()};
}

Loss finish(const ops::FusedLoss& loss) {
  return {loss.mean, loss.total, loss.mse, loss.vb};
}

kernels::Target target_of(Prediction prediction) {
  switch (prediction) {
    case Prediction::kEps:
      return kernels::Target::kNoise;
    case Prediction::kData:
      return kernels::Target::kData;
    case Prediction::kV:
      return kernels::Target::kV;
    case Prediction::kFlow:
      break;
  }
  KINORA_UNREACHABLE("[objective] a chain has no predictions of flows");
}

/// What a denoiser of a discrete chain should have predicted.
at::Tensor target_at(Prediction prediction, const at::Tensor& rows, const at::Tensor& noise,
                     const at::Tensor& x0) {
  switch (prediction) {
    case Prediction::kEps:
      return noise;
    case Prediction::kData:
      return x0;
    case Prediction::kV:
      return column(rows, kSignal, x0) * noise - column(rows, kNoise, x0) * x0;
    case Prediction::kFlow:
      break;
  }
  KINORA_UNREACHABLE("[objective] a chain has no predictions of flows");
}

Loss loss_of(const Iddpm& objective, const at::Tensor& prediction, const NoisedBatch& batch,
             const at::Tensor& x0) {
  const int64_t channels = batch.noise.size(1);
  const bool learned = objective.learned_variance();
  check_prediction(prediction, batch, learned ? 2 * channels : channels, false);
  // 0.001 T of L_hybrid.
  const double scale = static_cast<double>(objective.schedule().num_timesteps()) /
                       static_cast<double>(kDdpmTimesteps);
  const ops::DiffusionLossInputs inputs{.target = target_of(objective.prediction()),
                                        .learned_variance = learned,
                                        .prediction = prediction,
                                        .noise = batch.noise,
                                        .x0 = x0,
                                        .weights = batch.weights,
                                        .t = batch.t,
                                        .table = objective.table().to(prediction.device()),
                                        .bound_scale = scale};
  if (counts_all(batch) && ops::has_fused_loss(inputs)) {
    return finish(ops::fused_loss(inputs));
  }
  const at::Tensor rows = rows_at(objective.table(), batch.t);
  const at::Tensor error =
      target_at(objective.prediction(), rows, batch.noise, x0) - prediction.narrow(1, 0, channels);
  const at::Tensor mse = mean_of(error.square(), batch);
  const at::Tensor weighted = rows.select(1, kLossWeight) * mse;
  if (!learned) {
    return finish(batch, weighted, mse, {});
  }
  const at::Tensor bound =
      variational_bound(rows, batch.t, x0, error, prediction.narrow(1, channels, channels), batch) *
      scale;
  return finish(batch, weighted + bound, mse, bound);
}

Loss loss_of(const RectifiedFlow& objective, const at::Tensor& predicted, const NoisedBatch& batch,
             const at::Tensor& x0) {
  const int64_t channels = batch.noise.size(1);
  check_prediction(predicted, batch, channels, true);
  const at::Tensor prediction = objective.toward_data ? -predicted : predicted;
  const ops::DiffusionLossInputs inputs{.target = kernels::Target::kVelocity,
                                        .prediction = prediction,
                                        .noise = batch.noise,
                                        .x0 = x0,
                                        .weights = batch.weights};
  if (counts_all(batch) && ops::has_fused_loss(inputs)) {
    return finish(ops::fused_loss(inputs));
  }
  const at::Tensor error = prediction.narrow(1, 0, channels) - (batch.noise - x0);
  const at::Tensor mse = mean_of(error.square(), batch);
  return finish(batch, mse, mse, {});
}

/// Timesteps, int64 [B], by the sums of their probabilities, float64 [T] up to `total`: the inverse
/// of the distribution function at two uniform numbers put together, 46 bits, since the rarest
/// timesteps of importance sampling have p_t of about 1e-6.
at::Tensor draw_by(const at::Tensor& cumulative, double total, const NoiseKey& key,
                   at::Device device) {
  const at::Tensor u = ops::random_uniform({key.sample_index.size(0), 2}, key.sample_index,
                                           key.seed, key.step, key.timestep, device)
                           .to(at::kDouble);
  const at::Tensor fine = u.select(1, 0) + (u.select(1, 1) - 0.5) * 0x1p-23;
  return at::searchsorted(cumulative, fine * total).clamp_max(cumulative.size(0) - 1);
}

Timesteps draw_by_importance(const LossSecondMoment& importance, const NoiseKey& key,
                             at::Device device) {
  const std::vector<double> p = importance.probabilities();
  std::vector<double> cumulative(p.size());
  std::vector<float> weights(p.size());
  double sum = 0.0;
  for (size_t t = 0; t < p.size(); ++t) {
    sum += p[t];
    cumulative[t] = sum;
    weights[t] = static_cast<float>(1.0 / (static_cast<double>(p.size()) * p[t]));
  }
  const at::Tensor index =
      draw_by(at::tensor(cumulative, at::kDouble).to(device), sum, key, device);
  return {index.to(at::kFloat), at::tensor(weights, at::kFloat).to(device).index_select(0, index)};
}

at::Tensor draw(const Iddpm& objective, const NoiseKey& key, at::Device device,
                double /*size_shift*/) {
  if (objective.cumulative().defined()) {
    return draw_by(objective.cumulative().to(device), 1.0, key, device).to(at::kFloat);
  }
  const int64_t num_timesteps = objective.schedule().num_timesteps();
  const at::Tensor u = ops::random_uniform({key.sample_index.size(0), 1}, key.sample_index,
                                           key.seed, key.step, key.timestep, device);
  return (u.select(1, 0) * num_timesteps).floor().clamp_max(num_timesteps - 1);
}

at::Tensor shifted(const at::Tensor& t, double shift) {
  return shift * t / (1.0 + (shift - 1.0) * t);
}

constexpr double kLeastShare = 1e-9;

/// How much of the standard normal distribution lies below x.
double normal_below(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

/// Times before the shift, from uniform numbers: those of the objective's distribution that lie
/// between two.
at::Tensor drawn_between(const RectifiedFlow& objective, double first, double last,
                         const at::Tensor& uniform) {
  if (objective.times == RectifiedFlow::Times::kUniform) {
    return first + (last - first) * uniform;
  }
  // The logit of t is normal: by the inverse of its distribution.
  const auto below = [&](double t) {
    return normal_below((std::log(t / (1.0 - t)) - objective.logit_mean) / objective.logit_std);
  };
  const double from = below(first);
  const double share = below(last) - from;
  KINORA_CHECK(share > kLeastShare, kConfig,
               "[objective] objective.levels leaves next to none of the times that "
               "objective.times draws. Hint: objective.times=uniform, or other levels");
  const at::Tensor n = at::special_ndtri(from + share * uniform.to(at::kDouble));
  return (n * objective.logit_std + objective.logit_mean).sigmoid().to(at::kFloat);
}

at::Tensor draw(const RectifiedFlow& objective, const NoiseKey& key, at::Device device,
                double size_shift) {
  const double shift = objective.schedule.shift * size_shift;
  KINORA_CHECK(shift > 0.0 && std::isfinite(shift), kConfig,
               "[objective] the flow shift must be positive, got ", shift, ".");
  KINORA_CHECK(objective.logit_std >= 0.0 && std::isfinite(objective.logit_std) &&
                   std::isfinite(objective.logit_mean),
               kConfig, "[objective] logit-normal times need a finite mean and std >= 0, got ",
               objective.logit_mean, " and ", objective.logit_std, ".");
  const std::vector<int64_t> shape = {key.sample_index.size(0), 1};
  const bool trains_all = objective.levels == RectifiedFlow().levels;
  if (trains_all && objective.times == RectifiedFlow::Times::kLogitNormal) {
    const at::Tensor n =
        ops::random_normal(shape, key.sample_index, key.seed, key.step, key.timestep, device);
    return shifted((n.select(1, 0) * objective.logit_std + objective.logit_mean).sigmoid(), shift);
  }
  const at::Tensor u =
      ops::random_uniform(shape, key.sample_index, key.seed, key.step, key.timestep, device)
          .select(1, 0);
  if (trains_all) {
    return shifted(u, shift);
  }
  const auto& [first, last] = objective.levels;
  const FlowSchedule back{1.0 / shift};  // from a level to the time that is shifted to it
  return shifted(drawn_between(objective, back.shifted(first), back.shifted(last), u), shift)
      .clamp(first, last);
}

/// (predicted x_0 - x_0) / (target - prediction).
double data_error(const DiscreteSchedule& schedule, Prediction prediction, int64_t t) {
  switch (prediction) {
    case Prediction::kEps:
      return schedule.sqrt_recipm1_alphas_cumprod[t];
    case Prediction::kData:
      return -1.0;
    case Prediction::kV:
      return schedule.sqrt_one_minus_alphas_cumprod[t];
    case Prediction::kFlow:
      break;
  }
  KINORA_UNREACHABLE("[objective] a chain has no predictions of flows");
}

at::Tensor noised(const Iddpm& objective, const at::Tensor& x0, const at::Tensor& noise,
                  const at::Tensor& t) {
  const at::Tensor rows = rows_at(objective.table(), t);
  return column(rows, kSignal, x0) * x0 + column(rows, kNoise, x0) * noise;
}

at::Tensor noised(const RectifiedFlow& /*objective*/, const at::Tensor& x0, const at::Tensor& noise,
                  const at::Tensor& t) {
  const at::Tensor time = per_sample_view(t, x0);
  return (1.0 - time) * x0 + time * noise;
}

at::Tensor white_noise(const at::Tensor& x0, const Timesteps& timesteps, const NoiseKey& key) {
  KINORA_CHECK(x0.dim() >= 2 && key.sample_index.dim() == 1 &&
                   key.sample_index.size(0) == x0.size(0) && timesteps.t.dim() == 1 &&
                   timesteps.t.size(0) == x0.size(0),
               kShape, "[objective] x0 must be [B, C, ...] with B times and sample indices, got ",
               x0.sizes(), ", ", timesteps.t.sizes(), " and ", key.sample_index.sizes(), ".");
  return ops::random_normal(x0.sizes(), key.sample_index, key.seed, key.step, key.noise,
                            x0.device());
}

NoisedBatch noised_by(const Objective& objective, const at::Tensor& x0, const Timesteps& timesteps,
                      const at::Tensor& noise, const at::Tensor& frame_mask) {
  KINORA_CHECK(!frame_mask.defined() ||
                   (x0.dim() == 5 && frame_mask.dim() == 2 && frame_mask.size(0) == x0.size(0) &&
                    frame_mask.size(1) == x0.size(2)),
               kShape, "[objective] a frame mask must be [B, T] for x0 [B, C, T, H, W]");
  const auto at_time = [&](const at::Tensor& t) {
    return std::visit([&](const auto& value) { return noised(value, x0, noise, t); }, objective);
  };
  at::Tensor x_t = at_time(timesteps.t);
  if (frame_mask.defined()) {
    x_t = at::where(per_frame_view(frame_mask, x0), x_t, at_time(at::zeros_like(timesteps.t)));
  }
  return {x_t, timesteps.t, noise,
          timesteps.weights.defined() ? timesteps.weights : at::ones_like(timesteps.t), frame_mask};
}

}  // namespace

Iddpm::Iddpm(int64_t num_timesteps, bool learned_variance)
    : Iddpm(IddpmOptions{.betas = linear_betas(num_timesteps),
                         .learned_variance = learned_variance}) {}

Iddpm::Iddpm(const IddpmOptions& options)
    : schedule_(schedule_from_betas(options.betas)),
      prediction_(options.prediction),
      learned_variance_(options.learned_variance),
      noise_shape_(options.noise) {
  KINORA_CHECK(prediction_ != Prediction::kFlow, kConfig,
               "[objective] a chain has no predictions of flows");
  KINORA_CHECK(prediction_ != Prediction::kEps || schedule_.alphas_cumprod.back() > 0.0, kConfig,
               "[objective] predicted noise says nothing of the data where the signal is 0, at the "
               "end of a chain of zero terminal SNR. Hint: objective.prediction=v or sample");
  const int64_t num_timesteps = schedule_.num_timesteps();
  const std::vector<double> weights =
      loss_weights(options.weights, prediction_, schedule_.alphas_cumprod);
  std::vector<double> values;
  for (int64_t t = 0; t < num_timesteps; ++t) {
    const double min_log = schedule_.posterior_log_variance_clipped[t];
    const double row[kNumDiffusionColumns] = {
        schedule_.sqrt_alphas_cumprod[t],
        schedule_.sqrt_one_minus_alphas_cumprod[t],
        schedule_.posterior_mean_coef1[t] * data_error(schedule_, prediction_, t),
        min_log,
        schedule_.log_betas[t] - min_log,
        weights[t],
    };
    values.insert(values.end(), std::begin(row), std::end(row));
  }
  table_ =
      at::tensor(values, at::kDouble).to(at::kFloat).view({num_timesteps, kNumDiffusionColumns});
  if (!options.timestep_probabilities.empty()) {
    KINORA_CHECK(static_cast<int64_t>(options.timestep_probabilities.size()) == num_timesteps,
                 kConfig, "[objective] a chain of ", num_timesteps,
                 " timesteps needs as many probabilities, got ",
                 options.timestep_probabilities.size(), ".");
    cumulative_ = at::tensor(options.timestep_probabilities, at::kDouble).cumsum(0);
    cumulative_ = cumulative_ / cumulative_[num_timesteps - 1];
  }
}

void Iddpm::to(at::Device device) {
  table_ = table_.to(device);
  if (cumulative_.defined()) {
    cumulative_ = cumulative_.to(device);
  }
}

double size_shift(const Objective& objective, const ClipExtent& clip) {
  constexpr double kBaseSide = 512.0;
  const auto* flow = std::get_if<RectifiedFlow>(&objective);
  if (flow != nullptr && !flow->shift_by_tokens.empty()) {
    const double few = flow->shift_by_tokens.at(0);
    const double many = flow->shift_by_tokens.at(1);
    const int64_t few_tokens = flow->shift_tokens.at(0);
    const int64_t many_tokens = flow->shift_tokens.at(1);
    if (flow->token_shift == RectifiedFlow::TokenShift::kFlux) {
      return dynamic_shift(clip.tokens, few, many, few_tokens, many_tokens);
    }
    const auto frames = static_cast<int64_t>(clip.latent_frames);
    return linear_shift(clip.tokens / frames, few, many, few_tokens, many_tokens) *
           std::sqrt(clip.latent_frames);
  }
  if (flow == nullptr || !flow->shift_by_size) {
    return 1.0;
  }
  double counted = clip.latent_frames;
  if (flow->shift_chunk > 0 && counted > 1.0) {
    counted -= std::ceil(counted / static_cast<double>(flow->shift_chunk));
  }
  return std::sqrt(clip.height * clip.width) / kBaseSide * std::sqrt(counted);
}

void move_to(Objective& objective, at::Device device) {
  if (auto* iddpm = std::get_if<Iddpm>(&objective)) {
    iddpm->to(device);
  }
}

std::pair<double, double> time_range(const Objective& objective) {
  if (const auto* iddpm = std::get_if<Iddpm>(&objective)) {
    return {0.0, static_cast<double>(iddpm->schedule().num_timesteps())};
  }
  return std::get<RectifiedFlow>(objective).levels;
}

Timesteps draw_timesteps(const Objective& objective, const NoiseKey& key, at::Device device,
                         const LossSecondMoment* importance, double size_shift) {
  if (importance != nullptr) {
    KINORA_CHECK(
        std::holds_alternative<Iddpm>(objective) &&
            static_cast<double>(importance->num_timesteps()) == time_range(objective).second,
        kConfig, "[objective] importance sampling of ", importance->num_timesteps(),
        " timesteps needs a discrete schedule with as many. Hint: with a rectified flow "
        "choose uniform or logit-normal times.");
    return draw_by_importance(*importance, key, device);
  }
  const at::Tensor t = std::visit(
      [&](const auto& value) { return draw(value, key, device, size_shift); }, objective);
  return {t, {}};
}

NoisedBatch noise_at(const Objective& objective, const at::Tensor& x0, const Timesteps& timesteps,
                     const NoiseKey& key, const at::Tensor& frame_mask) {
  return noised_by(objective, x0, timesteps, white_noise(x0, timesteps, key), frame_mask);
}

NoisedBatch noise(const Objective& objective, const at::Tensor& x0, const NoiseKey& key,
                  const LossSecondMoment* importance, const ClipSettings& clip) {
  const Timesteps timesteps =
      draw_timesteps(objective, key, x0.device(), importance, clip.size_shift);
  at::Tensor noise = white_noise(x0, timesteps, key);
  if (const auto* chain = std::get_if<Iddpm>(&objective);
      chain != nullptr && !chain->noise_shape().is_white()) {
    noise = shaped_noise(noise, chain->noise_shape(), key.sample_index, key.seed, key.step);
  }
  return noised_by(objective, x0, timesteps, noise, clip.frame_mask);
}

Loss loss(const Objective& objective, const at::Tensor& prediction, const NoisedBatch& batch,
          const at::Tensor& x0) {
  return std::visit([&](const auto& value) { return loss_of(value, prediction, batch, x0); },
                    objective);
}

}  // namespace kinora::diffusion
