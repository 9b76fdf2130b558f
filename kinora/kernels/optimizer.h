#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include "kinora/core/dtype.h"
#include "kinora/core/host_device.h"
#include "kinora/core/philox.h"
#include "kinora/kernels/instruction_set.h"

/// The optimizer step on flat buckets: an update rule (UpdateRule) with clipping by global norm, a
/// dynamic loss scale (Micikevicius et al., "Mixed precision training", ICLR 2018) and exponential
/// moving averages of the weights. One step is: sum_squares over every bucket, prepare_update once,
/// update_weights over every bucket, publish_report. The decisions (skip, clip) are taken beside
/// the data, and what changes from step to step (the learning rate, and back the outcome) goes
/// through memory that host and device share: neither waits for the other, and the same launches,
/// recorded once, serve every step. Where updates go on during backward, prepare_update comes
/// first, then sum_squares and update_weights bucket by bucket, then conclude_update.
///
/// This header has what CPU and GPU share and the CPU kernels; kernels/cuda/optimizer.h the
/// launchers. They give the same bits.
namespace kinora::kernels {

/// How a weight follows its gradient.
enum class UpdateRule : uint8_t {
  /// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, Algorithm 2.
  kAdamW,
  /// Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, Program 1: the
  /// sign
  /// of a mean of momentum and gradient. It keeps one moment. Learning rates are 3 to 10 times
  /// smaller than AdamW's, and weight decays as much larger (section 5).
  kLion,
  /// torch.optim.SGD with momentum beta1, no dampening; weight decay is added to the gradient.
  kSgd,
  /// Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, in the form of
  /// torch.optim.Muon: matrices follow their momentum (decay beta1, Nesterov's) made orthogonal,
  /// times 0.2 sqrt(max(rows, columns)) (Liu et al., "Muon is scalable for LLM training", 2025), so
  /// that rates and weight decay are AdamW's. Here of matrices alone: others take kAdamW.
  /// Its passes are make_directions and update_weights, and between them directions become
  /// orthogonal (ops/orthogonal.h).
  kMuon,
  /// Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", ICML 2018,
  /// Algorithms 4 and 5 with a given learning rate: no first moment, and of a matrix's second
  /// moments the means of rows and columns. Gradients have become directions before update_weights
  /// (optim/factored.h).
  kAdafactor,
  /// Luo et al., "CAME: confidence-guided adaptive memory efficient optimization", ACL 2023,
  /// Algorithm 2: a mean of Adafactor's directions, divided by the root of how far these are from
  /// it (its instability), which is kept as means of rows and columns, too. Gradients have become
  /// directions before update_weights (optim/factored.h).
  kCame,
  /// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR
  /// 2020, Algorithm 2 with phi(z) = z: AdamW's direction and the weight decay together, times the
  /// norm of the parameter over that of both, or 1 where one of them is 0. Its passes are
  /// make_directions and update_weights, and between them directions get their length
  /// (optim/trust_ratio.h).
  kLamb,
  /// Mishchenko and Defazio, "Prodigy: an expeditiously adaptive parameter-free learner", ICML
  /// 2024,
  /// Algorithm 4, as prodigyopt with use_bias_correction and safeguard_warmup: AdamW, whose rate is
  /// multiplied by an estimate of the distance between the first weights and the best ones. Its
  /// passes are make_directions, which leaves terms of the estimate in place of the gradients, and
  /// update_weights; between them adapt_distance.
  kProdigy,
  /// Defazio et al., "The road less scheduled", NeurIPS 2024, in AdamW's form, as schedulefree's
  /// AdamWScheduleFree: beside the weights y, of which gradients are, it keeps weights z that
  /// follow
  /// AdamW's steps without a first moment, and their mean x, of which the result is: the first
  /// average. Steps count in it by the square of the largest learning rate so far. y = z + beta1 (x
  /// - z).
  kScheduleFree,
};

/// Whether update_weights finds directions in place of gradients, and reads no moments.
KINORA_HOST_DEVICE constexpr bool takes_directions(UpdateRule rule) {
  return rule == UpdateRule::kMuon || rule == UpdateRule::kAdafactor || rule == UpdateRule::kCame ||
         rule == UpdateRule::kLamb;
}

/// Whether make_directions reads weights.
KINORA_HOST_DEVICE constexpr bool directs_by_weights(UpdateRule rule) {
  return rule != UpdateRule::kMuon;
}

/// Whether what it updates has exp_avg_sq.
KINORA_HOST_DEVICE constexpr bool has_second_moment(UpdateRule rule) {
  return rule == UpdateRule::kAdamW || rule == UpdateRule::kLamb || rule == UpdateRule::kProdigy ||
         rule == UpdateRule::kScheduleFree;
}

/// Whether update_weights reads exp_avg.
KINORA_HOST_DEVICE constexpr bool reads_first_moment(UpdateRule rule) {
  return !takes_directions(rule) && rule != UpdateRule::kScheduleFree;
}

/// The first average that is an exponential one.
KINORA_HOST_DEVICE constexpr int first_ema(UpdateRule rule) {
  return rule == UpdateRule::kScheduleFree ? 1 : 0;
}

/// Whether update_weights changes the moments that it reads.
KINORA_HOST_DEVICE constexpr bool moves_moments(UpdateRule rule) {
  return !takes_directions(rule) && rule != UpdateRule::kProdigy;
}

/// How moments are kept between steps.
enum class MomentFormat : uint8_t {
  kF32,
  /// Codes of 8 bits and a scale for each kCodeBlock elements (block_codes.h). A step computes in
  /// fp32, and the weights follow what it computed before that is rounded to codes.
  k8Bit,
};

/// How weights are kept between steps.
enum class MasterFormat : uint8_t {
  kF32,  ///< beside a rounded copy for forward
  /// What forward reads is all there is: a step computes in fp32 and rounds stochastically
  /// (Gupta et al., "Deep learning with limited numerical precision", ICML 2015, section 3).
  kBF16,
};

/// State and decisions of the optimizer, in the memory of the device that it runs on.
struct StepControl {
  double grad_sum_squares =
      0.0;  ///< of the gradients as they lie (scaled); prepare_update clears it
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
  double bias_correction1 = 1.0;       ///< 1 - beta1^applied_steps
  double bias_correction2_sqrt = 1.0;  ///< sqrt(1 - beta2^applied_steps)
  double lr = 0.0;                     ///< of this step
  int64_t steps = 0;                   ///< prepared so far, applied or skipped
  float loss_scale = 1.0F;             ///< of the next backward; prepare_update may change it
  float grad_norm = 0.0F;              ///< of this step, unscaled and before clipping
  float multiplier =
      1.0F;                ///< what this step's gradients are multiplied by: unscaling and clipping
  int32_t good_steps = 0;  ///< applied steps since the loss scale last changed
  int32_t skip = 0;        ///< 1: a gradient is not finite, this step changes nothing
  int32_t padding = 0;
  // Of kProdigy.
  double distance = 0.0;       ///< estimated, from UpdatePolicy::first_distance on
  double step_distance = 0.0;  ///< that of this step's update; prepare_update sets it
  double distance_sum = 0.0;   ///< the estimate's numerator: of all steps, those before decayed
  /// Of this step, over all elements: the terms that make_directions left; the magnitudes of
  /// grad_sum. prepare_update clears them.
  double distance_terms = 0.0;
  double grad_sum_norm = 0.0;
  // Of kScheduleFree.
  double largest_lr = 0.0;  ///< of the applied steps
  double share_sum = 0.0;   ///< of what these count
  double share = 0.0;       ///< of this step in the mean
};

/// What prepare_update decides by.
struct UpdatePolicy {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double max_grad_norm = 0.0;       ///< 0: no clipping
  bool dynamic_loss_scale = false;  ///< fp16
  // torch.amp.GradScaler's defaults.
  float growth_factor = 2.0F;
  float backoff_factor = 0.5F;
  int32_t growth_interval = 2000;
  // Of kProdigy.
  double first_distance = 1e-6;
  double distance_factor = 1.0;
  bool weighs_steps = false;  ///< kScheduleFree
};

/// What came of a step.
struct StepReport {
  int64_t step =
      0;  ///< which one, from 1; written last, so that a reader who finds it has the rest
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
  float loss = 0.0F;        ///< NaN where the step was given none
  float grad_norm = 0.0F;   ///< before clipping
  float loss_scale = 1.0F;  ///< of the next backward
  int32_t skipped = 0;
  double distance = 0.0;  ///< of kProdigy, for the next step
};

/// Steps that the host may be ahead of the device.
inline constexpr int64_t kStepRing = 64;

/// Memory of the host that the device reads and writes, too: rings in which step s, counted from 1,
/// has entry s % kStepRing.
struct StepExchange {
  double lr[kStepRing] = {};
  StepReport reports[kStepRing] = {};
};

inline constexpr float kInitialLossScale = 65536.0F;  ///< torch.amp.GradScaler's init_scale

/// Turns grad_sum_squares into this step's decisions: skip where it is not finite; clip as
/// torch.nn.utils.clip_grad_norm_ (coefficient max_norm / (norm + 1e-6), at most 1); the loss scale
/// as torch.amp.GradScaler.update. Takes the step's learning rate from `exchange`; null:
/// control->lr stays.
KINORA_HOST_DEVICE inline void prepare_update(StepControl* control, const UpdatePolicy& policy,
                                              const volatile StepExchange* exchange = nullptr) {
  control->steps += 1;
  if (exchange != nullptr) {
    control->lr = exchange->lr[control->steps % kStepRing];
  }
  const float unscale = 1.0F / control->loss_scale;
  control->grad_norm =
      static_cast<float>(sqrt(control->grad_sum_squares) * static_cast<double>(unscale));
  control->grad_sum_squares = 0.0;
  control->step_distance = control->distance;
  control->distance_terms = 0.0;
  control->grad_sum_norm = 0.0;
  const bool finite = control->grad_norm <= 3.402823466e38F;  // false for NaN, too
  control->skip = finite ? 0 : 1;
  control->multiplier = unscale;
  if (finite) {
    if (policy.max_grad_norm > 0.0) {
      const float clip = static_cast<float>(policy.max_grad_norm) / (control->grad_norm + 1e-6F);
      control->multiplier *= clip < 1.0F ? clip : 1.0F;
    }
    control->applied_steps += 1;
    const auto steps = static_cast<double>(control->applied_steps);
    control->bias_correction1 = 1.0 - pow(policy.beta1, steps);
    control->bias_correction2_sqrt = sqrt(1.0 - pow(policy.beta2, steps));
    if (policy.weighs_steps) {
      control->largest_lr = control->lr > control->largest_lr ? control->lr : control->largest_lr;
      const double count = control->largest_lr * control->largest_lr;
      control->share_sum += count;
      control->share = count > 0.0 ? count / control->share_sum : 0.0;
    }
  } else {
    control->skipped_steps += 1;
  }
  if (policy.dynamic_loss_scale) {
    if (!finite) {
      control->loss_scale *= policy.backoff_factor;
      control->good_steps = 0;
    } else if (++control->good_steps == policy.growth_interval) {
      const float grown = control->loss_scale * policy.growth_factor;
      control->loss_scale = grown <= 3.402823466e38F ? grown : control->loss_scale;
      control->good_steps = 0;
    }
  }
}

/// Ends a step whose updates went on during backward: prepare_update was called before there were
/// gradients, and grad_sum_squares has them all now. Sets grad_norm, and skip where that is not
/// finite: updates are done by then, and this only says so.
KINORA_HOST_DEVICE inline void conclude_update(StepControl* control) {
  control->grad_norm = static_cast<float>(sqrt(control->grad_sum_squares));
  control->grad_sum_squares = 0.0;
  control->skip = control->grad_norm <= 3.402823466e38F ? 0 : 1;  // 1 for NaN, too
}

/// The rate of kProdigy's update: the learning rate times the distance and AdamW's corrections.
KINORA_HOST_DEVICE inline double prodigy_rate(const StepControl& control, double lr) {
  return control.step_distance * lr * control.bias_correction2_sqrt / control.bias_correction1;
}

/// The decay of kProdigy's sums.
KINORA_HOST_DEVICE inline double prodigy_decay(double beta2) {
  return sqrt(beta2);
}

/// Between kProdigy's passes: the distance that the sums of this step show, if it is larger than
/// what was known. With control->skip nothing changes.
KINORA_HOST_DEVICE inline void adapt_distance(StepControl* control, const UpdatePolicy& policy) {
  if (control->skip != 0) {
    return;
  }
  const double share = control->step_distance / policy.first_distance;
  control->distance_sum = control->distance_sum * prodigy_decay(policy.beta2) +
                          share * prodigy_rate(*control, control->lr) * control->distance_terms;
  if (control->grad_sum_norm > 0.0) {
    const double estimate = policy.distance_factor * control->distance_sum / control->grad_sum_norm;
    control->distance = estimate > control->distance ? estimate : control->distance;
  }
}

/// Writes everything of the step's report but its number, which must follow as the last.
/// @param loss  null: NaN.
KINORA_HOST_DEVICE inline volatile StepReport* write_report(const StepControl& control,
                                                            const float* loss,
                                                            volatile StepExchange* exchange) {
  volatile StepReport* report = &exchange->reports[control.steps % kStepRing];
  report->applied_steps = control.applied_steps;
  report->skipped_steps = control.skipped_steps;
  report->loss = loss == nullptr ? NAN : *loss;
  report->grad_norm = control.grad_norm;
  report->loss_scale = control.loss_scale;
  report->skipped = control.skip;
  report->distance = control.distance;
  return report;
}

inline constexpr int kMaxEmas = 4;

/// A moment in k8Bit: in and out.
struct CodedMoment {
  uint8_t* codes = nullptr;
  float* scales = nullptr;  ///< one for each kCodeBlock elements
};

/// One bucket, or a slice of it: arrays of `count` elements that do not overlap.
struct UpdateBuffers {
  float* master = nullptr;  ///< in and out: fp32 weights; null: `compute` is all there is
  float* grad = nullptr;    ///< in, or the direction (takes_directions); see leaves_grad
  /// in and out: first moment, or momentum; null: takes_directions, or in k8Bit
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;  ///< in and out: second moment; null: the rule has none, or in k8Bit
  float* base = nullptr;        ///< kProdigy: the first weights; kScheduleFree, in and out: z
  float* grad_sum = nullptr;    ///< in and out: kProdigy's weighted sum of gradients
  CodedMoment coded_avg = {};   ///< exp_avg in k8Bit
  CodedMoment coded_avg_sq = {};  ///< exp_avg_sq in k8Bit
  float* ema[kMaxEmas] = {};  ///< in and out; the first num_emas are used; kScheduleFree: [0] is x
  /// out: rounded copy of the weights; null: none. Without a master in and out: bf16, rounded
  /// stochastically.
  void* compute = nullptr;
  DType compute_type = DType::kF32;  ///< kBF16 or kF16 where compute is not null
  double lr_factor = 1.0;            ///< of StepControl::lr
  bool leaves_grad = false;          ///< grad need not be zero afterwards; else it is
  /// Without a master: whose random numbers round (RandomStream::sample), and the place of the
  /// first element in it, a multiple of four.
  uint64_t rounding = 0;
  int64_t place = 0;
};

struct UpdateParameters {
  UpdateRule rule = UpdateRule::kAdamW;
  MomentFormat moments = MomentFormat::kF32;
  MasterFormat masters = MasterFormat::kF32;  ///< of some buckets, if kBF16
  uint64_t seed = 0;                          ///< of stochastic rounding
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double first_distance = 1e-6;  ///< UpdatePolicy's
  int num_emas = 0;
  double ema_decay[kMaxEmas] = {};
};

/// Elements of a bucket that a GPU's block takes at a time.
inline constexpr int64_t kBucketChunk = 16384;

/// A bucket as one of many that a launch goes over. number_chunks sets what follows `count`.
struct UpdateBucket {
  UpdateBuffers buffers;
  int64_t count = 0;
  int64_t first_chunk = 0;  ///< chunks of the buckets before
  int32_t aligned = 0;      ///< 1: 16 bytes for fp32 arrays, 8 for the copy
};

/// Whether an update goes over blocks of kCodeBlock elements, of which buckets then have whole
/// ones, aligned.
constexpr bool updates_blocks(const UpdateParameters& parameters) {
  return parameters.moments == MomentFormat::k8Bit || parameters.masters != MasterFormat::kF32;
}

/// Numbers the chunks of all buckets and returns how many there are.
int64_t number_chunks(std::span<UpdateBucket> buckets);

/// The step's constants, rounded to fp32 where torch.optim.AdamW rounds them.
struct UpdateScalars {
  float multiplier;
  float weight_keep;   ///< 1 - lr * weight_decay; kLamb: 1
  float weight_decay;  ///< of the gradient (kSgd), the direction (kLamb), the weight (kProdigy)
  float beta1;
  float beta1_complement;
  float beta2;
  float beta2_complement;
  float mean_share;          ///< of kScheduleFree's step
  float negative_step_size;  ///< -lr; AdamW: over bias_correction1; kProdigy: -prodigy_rate
  float bias_correction1;
  float bias_correction2_sqrt;
  float eps;            ///< kProdigy: times the distance
  float lr_factor;      ///< of kProdigy's terms
  float grad_sum_keep;  ///< of kProdigy, as the next
  float grad_sum_take;
  float ema_keep[kMaxEmas];
  float ema_take[kMaxEmas];
};

KINORA_HOST_DEVICE inline UpdateScalars update_scalars(const UpdateParameters& parameters,
                                                       const StepControl& control,
                                                       double lr_factor) {
  const bool is_prodigy = parameters.rule == UpdateRule::kProdigy;
  double lr = control.lr * lr_factor;
  if (is_prodigy) {
    lr = prodigy_rate(control, lr);
  }
  // Prodigy's moments are of gradients times the distance.
  const double distance = is_prodigy ? control.step_distance : 1.0;
  UpdateScalars scalars;
  scalars.multiplier = control.multiplier;
  const bool keeps_all = parameters.rule == UpdateRule::kLamb;
  scalars.weight_keep = keeps_all ? 1.0F : static_cast<float>(1.0 - lr * parameters.weight_decay);
  scalars.weight_decay = static_cast<float>((is_prodigy ? lr : 1.0) * parameters.weight_decay);
  scalars.beta1 = static_cast<float>(parameters.beta1);
  scalars.beta1_complement = static_cast<float>(distance * (1.0 - parameters.beta1));
  scalars.beta2 = static_cast<float>(parameters.beta2);
  scalars.beta2_complement = static_cast<float>(distance * distance * (1.0 - parameters.beta2));
  const bool corrects_bias = parameters.rule == UpdateRule::kAdamW;
  scalars.negative_step_size =
      static_cast<float>(-(corrects_bias ? lr / control.bias_correction1 : lr));
  scalars.bias_correction1 = static_cast<float>(control.bias_correction1);
  scalars.bias_correction2_sqrt = static_cast<float>(control.bias_correction2_sqrt);
  scalars.eps = static_cast<float>(is_prodigy ? control.distance * parameters.eps : parameters.eps);
  scalars.mean_share = static_cast<float>(control.share);
  scalars.lr_factor = static_cast<float>(lr_factor);
  scalars.grad_sum_keep = static_cast<float>(prodigy_decay(parameters.beta2));
  scalars.grad_sum_take =
      static_cast<float>(distance / parameters.first_distance * distance * lr_factor);
  for (int k = 0; k < kMaxEmas; ++k) {
    scalars.ema_keep[k] = static_cast<float>(parameters.ema_decay[k]);
    scalars.ema_take[k] = static_cast<float>(1.0 - parameters.ema_decay[k]);
  }
  return scalars;
}

/// What the first pass of a rule makes of one element. kMuon: the direction before it is made
/// orthogonal, which is the momentum of the next step, were its gradient this one's, in the order
/// of operations of torch.optim.Muon. kLamb: the direction before it gets its length, in that of
/// timm.optim.Lamb. kProdigy: a term of StepControl::distance_terms.
/// @param exp_avg_sq  of rules that have it
/// @param base  of kProdigy, as grad_sum
template <UpdateRule kRule>
KINORA_HOST_DEVICE inline void direct_element(const UpdateScalars& scalars, float weight,
                                              float base, float* grad, float* exp_avg,
                                              float* exp_avg_sq, float* grad_sum) {
  const float g = *grad * scalars.multiplier;
  if constexpr (kRule == UpdateRule::kMuon) {
    const float m = *exp_avg + scalars.beta1_complement * (g - *exp_avg);
    *exp_avg = m;
    *grad = m - (m - g) * scalars.beta1_complement;
  } else {
    const float m = *exp_avg * scalars.beta1 + g * scalars.beta1_complement;
    const float v = *exp_avg_sq * scalars.beta2 + scalars.beta2_complement * g * g;
    *exp_avg = m;
    *exp_avg_sq = v;
    if constexpr (kRule == UpdateRule::kProdigy) {
      *grad_sum = *grad_sum * scalars.grad_sum_keep + g * scalars.grad_sum_take;
      *grad = g * (base - weight) * scalars.lr_factor;
    } else {
      const float denominator = sqrtf(v) / scalars.bias_correction2_sqrt + scalars.eps;
      *grad = m / scalars.bias_correction1 / denominator + scalars.weight_decay * weight;
    }
  }
}

/// One element, in the order of operations of torch.optim.AdamW (single tensor), of the published
/// Lion (google/automl, lion_pytorch.py), of torch.optim.SGD or of prodigyopt; or along a
/// direction.
/// @param exp_avg_sq  of rules that have it
/// @param base  of kScheduleFree: z; mean: x
template <UpdateRule kRule>
KINORA_HOST_DEVICE inline void update_element(const UpdateScalars& scalars, float grad,
                                              float* weight, float* exp_avg, float* exp_avg_sq,
                                              float* base, float* mean) {
  const float g = grad * scalars.multiplier;
  if constexpr (takes_directions(kRule)) {
    const float kept = *weight * scalars.weight_keep;
    *weight = kept + scalars.negative_step_size * grad;
  } else if constexpr (kRule == UpdateRule::kAdamW) {
    const float kept = *weight * scalars.weight_keep;
    const float m = *exp_avg + scalars.beta1_complement * (g - *exp_avg);
    const float v = *exp_avg_sq * scalars.beta2 + scalars.beta2_complement * g * g;
    const float denominator = sqrtf(v) / scalars.bias_correction2_sqrt + scalars.eps;
    *weight = kept + scalars.negative_step_size * m / denominator;
    *exp_avg = m;
    *exp_avg_sq = v;
  } else if constexpr (kRule == UpdateRule::kProdigy) {
    const float kept = *weight - scalars.weight_decay * *weight;
    *weight = kept + scalars.negative_step_size * *exp_avg / (sqrtf(*exp_avg_sq) + scalars.eps);
  } else if constexpr (kRule == UpdateRule::kScheduleFree) {
    const float v = *exp_avg_sq * scalars.beta2 + scalars.beta2_complement * g * g;
    const float denominator = sqrtf(v) / scalars.bias_correction2_sqrt + scalars.eps;
    const float direction = g / denominator + scalars.weight_decay * *weight;
    const float z = *base + scalars.negative_step_size * direction;
    const float x = *mean + scalars.mean_share * (z - *mean);
    *exp_avg_sq = v;
    *base = z;
    *mean = x;
    *weight = z + scalars.beta1 * (x - z);
  } else if constexpr (kRule == UpdateRule::kLion) {
    const float kept = *weight * scalars.weight_keep;
    const float mean = *exp_avg * scalars.beta1 + g * scalars.beta1_complement;
    const float sign = static_cast<float>(mean > 0.0F) - static_cast<float>(mean < 0.0F);
    *weight = kept + scalars.negative_step_size * sign;
    *exp_avg = *exp_avg * scalars.beta2 + g * scalars.beta2_complement;
  } else {
    const float m = *exp_avg * scalars.beta1 + (g + scalars.weight_decay * *weight);
    *weight = *weight + scalars.negative_step_size * m;
    *exp_avg = m;
  }
}

/// The random numbers that round weights in this step: element i of a bucket takes number place +
/// i.
KINORA_HOST_DEVICE inline RandomStream rounding_stream(const UpdateParameters& parameters,
                                                       const StepControl& control,
                                                       uint64_t rounding) {
  return {parameters.seed, rounding, static_cast<uint32_t>(control.applied_steps),
          RandomPurpose::kWeightRounding};
}

KINORA_HOST_DEVICE inline float widen_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &word, sizeof(value));
  return value;
}

/// One of the two neighbours of `value`, each as probable as `value` is near to it: so that the
/// mean over many roundings is `value`. A finite one.
KINORA_HOST_DEVICE inline uint16_t round_stochastically(float value, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = bits + (random >> 16);
  const bool stays = (rounded & 0x7f800000U) == 0x7f800000U;  // the largest, infinities and NaN
  return static_cast<uint16_t>((stays ? bits : rounded) >> 16);
}

/// The first pass of a rule that has one, over elements [begin, end): moments follow the gradient,
/// and grad becomes the direction (direct_element). Weights stay. With control.skip nothing
/// changes. By the best instruction set; or by one that this CPU has, with the same bits.
void make_directions(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                     const StepControl& control, int64_t begin, int64_t end);
void make_directions(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                     const StepControl& control, int64_t begin, int64_t end, InstructionSet set);

/// For each element of [begin, end): g = grad * multiplier; the rule; without a master w =
/// round_stochastically(w); ema_k = ema_k * d_k + w (1 - d_k); compute = round(w); grad = 0, unless
/// it is left. With control.skip only grad = 0. The result of an element does not depend on how the
/// range was split (where updates_blocks, into whole blocks). `control` is prepare_update's; on the
/// CPU, in host memory. Instruction sets as above.
void update_weights(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                    const StepControl& control, int64_t begin, int64_t end);
void update_weights(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                    const StepControl& control, int64_t begin, int64_t end, InstructionSet set);

}  // namespace kinora::kernels
