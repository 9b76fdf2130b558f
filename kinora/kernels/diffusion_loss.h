#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// The losses of diffusion training with their gradients. The composed specification, with the
/// papers' equations, is diffusion/objective.cc. With n = elements of a sample:
///
///   mse = mean((target - prediction)^2)
///   vb = bound_scale * L_t of the log variances between the posterior's and beta's that the second
///        n channels choose; L_t does not reach the mean (Nichol and Dhariwal 2021)
///   total = kLossWeight of t * mse + vb;  mean = sum over samples of weights * total / batch
///
/// This header has the arguments and the CPU reference; kernels/cuda/diffusion_loss.h the
/// launchers.
namespace kinora::kernels {

/// Columns of DiffusionLoss::table, one row a timestep.
enum DiffusionColumn : int64_t {
  kSignal,              ///< sqrt(alpha-bar)
  kNoise,               ///< sqrt(1 - alpha-bar)
  kPosteriorDeviation,  ///< (model mean - posterior mean) / (target - prediction)
  kMinLogVariance,      ///< log of the posterior variance, clipped
  kLogVarianceRange,    ///< log(beta) - kMinLogVariance
  kLossWeight,          ///< of the mse
  kNumDiffusionColumns,
};

enum class Target : uint8_t {
  kNoise,
  kData,      ///< x0
  kV,         ///< kSignal * noise - kNoise * x0 (Salimans and Ho 2022); asks for a table
  kVelocity,  ///< noise - x0, of flows
};

/// All arrays contiguous, fp32 but where stated.
struct DiffusionLoss {
  Target target = Target::kNoise;
  /// The prediction has 2 n elements a sample. Asks for a table.
  bool learned_variance = false;
  int64_t batch = 0;
  int64_t sample_size = 0;  ///< n: elements of x0 a sample
  /// Elements of the prediction a sample, at least n (2 n with learned variance); those behind get
  /// the gradient zero.
  int64_t prediction_size = 0;
  DType type = DType::kF32;  ///< of prediction and d_prediction: kF32, kBF16, kF16

  const void* prediction = nullptr;  ///< [batch, prediction_size]
  const float* noise = nullptr;      ///< [batch, n]
  const float* x0 = nullptr;  ///< [batch, n]; not read for Target::kNoise without learned variance
  const float* weights = nullptr;  ///< [batch]; null: ones

  /// Of a discrete chain; null: every kLossWeight is 1, and t is not read.
  const float* table = nullptr;  ///< [num_timesteps, kNumDiffusionColumns]
  const float* t = nullptr;      ///< [batch], whole numbers in [0, num_timesteps); else NaN results
  int64_t num_timesteps = 0;
  double bound_scale = 1.0;

  float* mse = nullptr;     ///< [batch]; null: not written
  float* vb = nullptr;      ///< [batch]; null: not written
  float* total = nullptr;   ///< [batch]; null: not written
  float* mean = nullptr;    ///< one number, += mean_share * mean; null: not written
  double mean_share = 1.0;  ///< of a micro-batch in its batch
  /// grad_factor * *grad_scale * d mean / d prediction; may be prediction; null: not written.
  void* d_prediction = nullptr;
  double grad_factor = 1.0;
  const float* grad_scale = nullptr;  ///< one number, a loss scale; null: 1
};

/// The CPU reference: plain loops, in double.
void diffusion_loss(const DiffusionLoss& call);

}  // namespace kinora::kernels
