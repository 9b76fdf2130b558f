#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/step_cache.h"

namespace kinora::diffusion {

/// Which channels of a prediction classifier-free guidance moves.
enum class GuidanceChannels {
  kAll,         ///< all channels of the data
  kFirstThree,  ///< the first three only, as DiT's forward_with_cfg does, also for latents of four
};

/// A scale of guidance: a number for all samples, or one for each.
struct GuidanceScale {
  GuidanceScale(double value) : value(value) {}  // NOLINT(google-explicit-constructor)
  explicit GuidanceScale(at::Tensor of_each) : of_each(std::move(of_each)) {}

  /// Whether there is guidance, with its doubled batch.
  [[nodiscard]] bool any() const { return of_each.defined() || value != 1.0; }

  double value = 1.0;
  at::Tensor of_each;  ///< float32 [B] on the samples' device; used where defined
};

/// Classifier-free guidance (Ho and Salimans 2022): uncond + scale * (cond - uncond). Scale 1 is
/// the conditional prediction alone, at the price of one forward without a doubled batch. A learned
/// variance always comes from the conditional prediction (Peebles and Xie 2023).
struct Guidance {
  GuidanceScale scale = 1.0;
  GuidanceChannels channels = GuidanceChannels::kAll;
  /// Guide only at noise levels in [low, high] (Kynkaanniemi et al. 2024), as fractions of the
  /// schedule: 0 clean, 1 pure noise; t / (T - 1) of a discrete chain, t of a flow. Elsewhere the
  /// conditional prediction alone.
  double low = 0.0;
  double high = 1.0;
  /// Of a run's evaluations, counted from 0, guide in the first so many, and after them in those of
  /// even number only (Open-Sora 1.3); 0: in all. Elsewhere the conditional prediction alone.
  int64_t alternates_after = 0;
  /// In each of n evaluations the scale is 1 + scale (1 - cos(pi ((n - t) / n)^5)) / 2, as
  /// diffusers has CogVideoX' "dynamic" guidance. Since t is a chain's timestep, it jumps to and
  /// fro until the last n of these.
  bool is_dynamic = false;
  /// Share of the guided prediction that is scaled, sample by sample, to the deviation of the
  /// conditional one (Lin et al. 2024, section 3.4): 0 none, 1 all. Not where given frames guide.
  double rescale = 0.0;
  /// Guidance by given frames (Conditions::given), for denoisers that embed them: s times the
  /// difference between the unconditional prediction with them and the one where zeros stand for
  /// them is added to the latter, with a forward of a batch three times as large. 1: none. s falls
  /// from this scale in the first evaluation to 1 in the last, and in each grows over the frames of
  /// a clip from 1 (Open-Sora 1.3's scale_image_weight). With GivenWay::kBeside it would be 1 after
  /// one evaluation more, and the prediction without them is not told either which frames they are
  /// (Open-Sora 2's scale_temporal_osci). Without given frames it is guidance by the pictures
  /// beside x_t (Conditions::beside), and s this scale in all evaluations and frames (Brooks et al.
  /// 2023, "InstructPix2Pix", eq. 3).
  double given_scale = 1.0;
  GivenWay given_way = GivenWay::kClean;  ///< sample() takes the sampler's
  /// Below this t another scale stands for `scale`: that of a second model, which predicts there.
  double low_noise = 0.0;
  GuidanceScale low_noise_scale = 1.0;
  /// What is different in the unconditional prediction, each of the batch's size: labels of the
  /// null class, null_text, or the text that stands for none. Needed where scale is not 1.
  Conditions null = {};
};

/// A denoiser with guidance for one batch of conditions.
class GuidedDenoiser {
 public:
  /// `denoiser` is borrowed. Errors: kConfig for a number that is not finite as the scale of all,
  /// an interval that is not 0 <= low <= high <= 1, a rescale outside of 0..1 or a scale of given
  /// frames below 1, or where null conditions are missing; kShape where they differ in shape from
  /// the conditions.
  GuidedDenoiser(Denoiser& denoiser, const Conditions& conditions, const Guidance& guidance);

  /// Begins a run, in which predict() is called once for each of `moments`, in any order, with its
  /// number: the denoiser does at once what depends on times and conditions alone, and may keep
  /// something from one to the next. times: their t, float32 on the device.
  struct Moment {
    double t;
    double level;
    int64_t number = 0;  ///< of `count` evaluations
    int64_t count = 1;
  };
  void prepare(const std::vector<Moment>& moments, const at::Tensor& times);

  /// Number `index` of the prepared moments. Otherwise as the other.
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, size_t index);

  /// x_t [B, C, ...], t as the denoiser takes it, level: its fraction of the schedule. Returns the
  /// guided prediction, [B, C or 2 C, ...]. Error kShape where the denoiser returns another shape.
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, double t, double level);

 private:
  /// What is predicted at a moment, row behind row.
  enum class Rows : int64_t {
    kConditional = 1,
    kBoth = 2,   ///< [conditional; unconditional]
    kThree = 3,  ///< the same; unconditional without what is given
  };
  [[nodiscard]] Rows rows_of(const Moment& moment) const;
  /// The configured scale of the model that predicts there.
  [[nodiscard]] const GuidanceScale& expert_scale(const Moment& moment) const;
  [[nodiscard]] GuidanceScale scale_at(const Moment& moment) const;
  [[nodiscard]] const Conditions& conditions_of(Rows rows) const;
  /// The scale of given frames at the last frame of a clip, or of a given picture.
  [[nodiscard]] double given_scale(const Moment& moment) const;
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const Moment& moment, const Pass& pass);

  Denoiser& denoiser_;
  Conditions conditions_;
  Conditions both_;   ///< of Rows::kBoth, as the next; undefined where guidance is never active
  Conditions three_;  ///< undefined where nothing that is given guides
  bool has_three_ = false;
  Guidance guidance_;
  std::vector<Moment> moments_;
  std::vector<Prepared> prepared_;    // of each moment
  std::unique_ptr<StepCache> cache_;  // of the run
};

/// Guidance on predictions of shape [B, C or 2 C, ...] where x_t has `num_channels` = C.
[[nodiscard]] at::Tensor guided(const at::Tensor& conditional, const at::Tensor& unconditional,
                                const GuidanceScale& scale, GuidanceChannels channels,
                                int64_t num_channels);

/// `moved` by guidance by what is given: plus (s - 1) times the difference between the
/// unconditional predictions with it and without, in the channels that guidance moves. s is
/// `scale`, or where `grows`, of clips, it grows over the frames from 1 to that.
[[nodiscard]] at::Tensor guided_by_given(const at::Tensor& moved, const at::Tensor& with,
                                         const at::Tensor& without, double scale, bool grows,
                                         GuidanceChannels channels, int64_t num_channels);

/// `guided` with the share `rescale` of its first num_channels channels brought to the deviation
/// that those of `conditional` have over all but the first dim.
[[nodiscard]] at::Tensor rescaled(const at::Tensor& guided, const at::Tensor& conditional,
                                  double rescale, int64_t num_channels);

}  // namespace kinora::diffusion
