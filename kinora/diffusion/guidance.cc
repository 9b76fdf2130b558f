#include "kinora/diffusion/guidance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::diffusion {
namespace {

constexpr int64_t kDitGuidedChannels = 3;
constexpr double kDynamicPower = 5.0;

/// [conditions; null] of one optional tensor. null: undefined = as the conditions.
at::Tensor stacked(const char* name, const at::Tensor& conditional, const at::Tensor& null) {
  if (!conditional.defined()) {
    return {};
  }
  if (!null.defined()) {
    return at::cat({conditional, conditional});
  }
  KINORA_CHECK(conditional.sizes() == null.sizes(), kShape, "[guidance] null ", name,
               " must have the conditions' shape ", conditional.sizes(), ", got ", null.sizes(),
               ".");
  return at::cat({conditional, null});
}

Conditions stacked(const Conditions& conditions, const Conditions& null) {
  KINORA_CHECK(conditions.labels.defined() || conditions.text.defined() ||
                   conditions.tokens.defined() || conditions.pooled.defined(),
               kConfig,
               "[guidance] a scale other than 1 needs conditions, got none. Hint: give labels or "
               "texts, or set the guidance scale to 1.");
  KINORA_CHECK(null.labels.defined() || null.null_text.defined() || null.text.defined(), kConfig,
               "[guidance] a scale other than 1 needs null conditions, got none. Hint: give the "
               "null class, null_text or a text, or set the guidance scale to 1.");
  Conditions conditional = conditions;
  if (null.null_text.defined() && !conditional.null_text.defined()) {
    conditional.null_text = at::zeros_like(null.null_text);
  }
  Conditions both;
  for (const auto& [name, tensor] : kConditions) {
    both.*tensor = stacked(name, conditional.*tensor, null.*tensor);
  }
  return both;
}

/// [conditions; null; null without what is given] of [conditions; null].
Conditions without_given(const Conditions& both, GivenWay way) {
  Conditions three;
  for (const auto& [name, tensor] : kConditions) {
    if (const at::Tensor& of_both = both.*tensor; of_both.defined()) {
      three.*tensor = at::cat({of_both, of_both.chunk(2)[1]});
    }
  }
  (three.given.defined() ? three.given : three.beside).chunk(3)[2].zero_();
  if (way == GivenWay::kBeside) {
    three.frame_mask.chunk(3)[2].fill_(true);
  }
  return three;
}

int64_t moved_channels(GuidanceChannels channels, int64_t num_channels) {
  return channels == GuidanceChannels::kAll ? num_channels
                                            : std::min(kDitGuidedChannels, num_channels);
}

/// A number for each sample, [B, 1, ...] of as many dims as `samples`.
at::Tensor as_rows(const at::Tensor& numbers, const at::Tensor& samples) {
  std::vector<int64_t> shape(static_cast<size_t>(samples.dim()), 1);
  shape[0] = samples.size(0);
  return numbers.view(shape);
}

}  // namespace

GuidedDenoiser::GuidedDenoiser(Denoiser& denoiser, const Conditions& conditions,
                               const Guidance& guidance)
    : denoiser_(denoiser), conditions_(conditions), guidance_(guidance) {
  KINORA_CHECK(std::isfinite(guidance.scale.value), kConfig,
               "[guidance] the scale must be a finite number, got ", guidance.scale.value, ".");
  KINORA_CHECK(guidance.low >= 0.0 && guidance.low <= guidance.high && guidance.high <= 1.0,
               kConfig, "[guidance] the interval must hold 0 <= low <= high <= 1, got [",
               guidance.low, ", ", guidance.high, "].");
  KINORA_CHECK(guidance.rescale >= 0.0 && guidance.rescale <= 1.0, kConfig,
               "[guidance] rescale must lie in 0..1, got ", guidance.rescale, ".");
  KINORA_CHECK(std::isfinite(guidance.given_scale) && guidance.given_scale >= 1.0, kConfig,
               "[guidance] the scale of what is given must be a finite number from 1 on, got ",
               guidance.given_scale, ".");
  const bool gives = conditions.frame_mask.defined() || conditions.beside.defined();
  has_three_ = guidance.given_scale > 1.0 && gives;
  const bool has_low = guidance.low_noise > 0.0 && guidance.low_noise_scale.any();
  if (guidance.scale.any() || has_low || has_three_) {
    both_ = stacked(conditions, guidance.null);
  }
  if (has_three_) {
    KINORA_CHECK(conditions.given.defined() || conditions.beside.defined(), kShape,
                 "[guidance] a scale of given frames needs the given frames.");
    three_ = without_given(both_, guidance.given_way);
  }
}

GuidedDenoiser::Rows GuidedDenoiser::rows_of(const Moment& moment) const {
  const int64_t after = guidance_.alternates_after;
  const bool is_on = moment.level >= guidance_.low && moment.level <= guidance_.high &&
                     (after == 0 || moment.number < after || moment.number % 2 == 0);
  if (is_on && has_three_ && given_scale(moment) > 1.0) {
    return Rows::kThree;
  }
  return is_on && expert_scale(moment).any() ? Rows::kBoth : Rows::kConditional;
}

const GuidanceScale& GuidedDenoiser::expert_scale(const Moment& moment) const {
  return moment.t < guidance_.low_noise ? guidance_.low_noise_scale : guidance_.scale;
}

GuidanceScale GuidedDenoiser::scale_at(const Moment& moment) const {
  const GuidanceScale& scale = expert_scale(moment);
  if (!guidance_.is_dynamic || !scale.any()) {
    return scale;
  }
  const auto count = static_cast<double>(moment.count);
  const double part =
      (1.0 - std::cos(std::numbers::pi * std::pow((count - moment.t) / count, kDynamicPower))) /
      2.0;
  return scale.of_each.defined() ? GuidanceScale(1.0 + part * scale.of_each)
                                 : GuidanceScale(1.0 + part * scale.value);
}

const Conditions& GuidedDenoiser::conditions_of(Rows rows) const {
  switch (rows) {
    case Rows::kConditional:
      return conditions_;
    case Rows::kBoth:
      return both_;
    case Rows::kThree:
      return three_;
  }
  KINORA_UNREACHABLE("[guidance] unknown rows");
}

double GuidedDenoiser::given_scale(const Moment& moment) const {
  if (!conditions_.frame_mask.defined()) {
    return guidance_.given_scale;
  }
  const int64_t last = moment.count - (guidance_.given_way == GivenWay::kBeside ? 0 : 1);
  const double gone =
      static_cast<double>(moment.number) / static_cast<double>(std::max<int64_t>(last, 1));
  return std::lerp(guidance_.given_scale, 1.0, gone);
}

void GuidedDenoiser::prepare(const std::vector<Moment>& moments, const at::Tensor& times) {
  moments_ = moments;
  prepared_.clear();
  cache_ = denoiser_.make_cache();
  size_t begin = 0;
  while (begin < moments.size()) {  // runs of neighbours with the same conditions
    const Rows rows = rows_of(moments[begin]);
    size_t end = begin + 1;
    while (end < moments.size() && rows_of(moments[end]) == rows) {
      ++end;
    }
    const Prepared of_run = denoiser_.prepare(
        times.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)),
        conditions_of(rows));
    for (size_t i = begin; i < end; ++i) {
      prepared_.push_back(of_run.at_time(static_cast<int64_t>(i - begin)));
    }
    begin = end;
  }
}

at::Tensor GuidedDenoiser::predict(const at::Tensor& x_t, size_t index) {
  const Moment& moment = moments_[index];
  const Pass pass{.prepared = prepared_[index], .cache = cache_.get(), .time = moment.t};
  if (!cache_) {
    return predict(x_t, moment, pass);
  }
  cache_->begin({.rows_kind = static_cast<int64_t>(rows_of(moment)),
                 .level = moment.level,
                 .is_last = moment.number + 1 == moment.count});
  at::Tensor prediction = predict(x_t, moment, pass);
  cache_->end();
  return prediction;
}

at::Tensor GuidedDenoiser::predict(const at::Tensor& x_t, double t, double level) {
  return predict(x_t, {.t = t, .level = level}, {.time = t});
}

at::Tensor GuidedDenoiser::predict(const at::Tensor& x_t, const Moment& moment, const Pass& pass) {
  const Rows rows = rows_of(moment);
  const auto copies = static_cast<int64_t>(rows);
  const int64_t batch = x_t.size(0);
  const int64_t channels = x_t.size(1);
  const at::Tensor times = at::full({copies * batch}, moment.t, x_t.options().dtype(at::kFloat));
  at::Tensor prediction = denoiser_.forward(
      copies == 1 ? x_t : at::cat(std::vector<at::Tensor>(static_cast<size_t>(copies), x_t)), times,
      conditions_of(rows), pass);
  KINORA_CHECK(prediction.dim() == x_t.dim() && prediction.size(0) == copies * batch &&
                   (prediction.size(1) == channels || prediction.size(1) == 2 * channels) &&
                   prediction.sizes().slice(2) == x_t.sizes().slice(2),
               kShape, "[guidance] the denoiser must return C or 2 C channels for x_t of shape ",
               x_t.sizes(), " (", copies * batch, " rows given), got ", prediction.sizes(), ".");
  if (rows == Rows::kConditional) {
    return prediction;
  }
  const at::Tensor conditional = prediction.narrow(0, 0, batch);
  const at::Tensor unconditional = prediction.narrow(0, batch, batch);
  const at::Tensor moved =
      guided(conditional, unconditional, scale_at(moment), guidance_.channels, channels);
  if (rows == Rows::kThree) {
    return guided_by_given(moved, unconditional, prediction.narrow(0, 2 * batch, batch),
                           given_scale(moment), conditions_.frame_mask.defined(),
                           guidance_.channels, channels);
  }
  const bool rescales = guidance_.rescale > 0.0 && !has_three_;
  return rescales ? rescaled(moved, conditional, guidance_.rescale, channels) : moved;
}

at::Tensor guided(const at::Tensor& conditional, const at::Tensor& unconditional,
                  const GuidanceScale& scale, GuidanceChannels channels, int64_t num_channels) {
  const int64_t count = moved_channels(channels, num_channels);
  const at::Tensor cond = conditional.narrow(1, 0, count);
  const at::Tensor uncond = unconditional.narrow(1, 0, count);
  const at::Tensor difference = cond - uncond;
  const at::Tensor moved =
      uncond + (scale.of_each.defined() ? as_rows(scale.of_each, difference) * difference
                                        : scale.value * difference);
  const int64_t rest = conditional.size(1) - count;
  return rest == 0 ? moved : at::cat({moved, conditional.narrow(1, count, rest)}, 1);
}

at::Tensor guided_by_given(const at::Tensor& moved, const at::Tensor& with,
                           const at::Tensor& without, double scale, bool grows,
                           GuidanceChannels channels, int64_t num_channels) {
  const int64_t count = moved_channels(channels, num_channels);
  const at::Tensor by = with.narrow(1, 0, count) - without.narrow(1, 0, count);
  const at::Tensor added =
      grows ? at::linspace(0.0, scale - 1.0, moved.size(2), moved.options()).view({-1, 1, 1}) * by
            : (scale - 1.0) * by;
  const at::Tensor data = moved.narrow(1, 0, count) + added;
  const int64_t rest = moved.size(1) - count;
  return rest == 0 ? data : at::cat({data, moved.narrow(1, count, rest)}, 1);
}

at::Tensor rescaled(const at::Tensor& guided, const at::Tensor& conditional, double rescale,
                    int64_t num_channels) {
  const auto deviation = [num_channels](const at::Tensor& prediction) {
    const at::Tensor data = prediction.narrow(1, 0, num_channels);
    return as_rows(data.flatten(1).std(/*dim=*/{1}, /*unbiased=*/true), data);
  };
  const at::Tensor factor = deviation(conditional) / deviation(guided);  // [B, 1, ...]
  const at::Tensor data = guided.narrow(1, 0, num_channels) * (rescale * factor + (1.0 - rescale));
  const int64_t rest = guided.size(1) - num_channels;
  return rest == 0 ? data : at::cat({data, guided.narrow(1, num_channels, rest)}, 1);
}

}  // namespace kinora::diffusion
