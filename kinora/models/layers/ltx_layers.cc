#include "kinora/models/layers/ltx_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/layers/band_layers.h"
#include "kinora/models/layers/time_waves.h"
#include "kinora/ops/parameter.h"
#include "kinora/ops/random.h"

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kFrameDim = 2;
constexpr double kRmsEpsilon = 1e-8;
constexpr double kScaleMultiplier = 1000.0;  // as published
constexpr size_t kHalfVectors = 2;           // shift and scale

at::Tensor learned_value(const nn::Parameter& parameter) {
  return ops::with_gradient(parameter.value, parameter.grad);
}

nn::Parameter table_of(int64_t vectors, int64_t channels) {
  nn::Parameter table;
  table.shape = {vectors, channels};
  table.init = nn::Init::normal(1.0 / std::sqrt(static_cast<double>(channels)));
  return table;
}

/// silu(norm(x) * (1 + scale) + shift), where there are shift and scale.
at::Tensor normed_silu(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  const at::Tensor wide = x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
  at::Tensor normed = wide * at::rsqrt(wide.square().mean(1, /*keepdim=*/true) + kRmsEpsilon);
  if (shift.defined()) {
    normed = normed * (1.0 + scale) + shift;
  }
  return at::silu(normed).to(x.scalar_type());
}

/// x with copies of its first frames before it, one less than `frames`.
at::Tensor with_first(const at::Tensor& x, int64_t frames) {
  return frames == 1 ? x : at::cat({x.narrow(kFrameDim, 0, frames - 1), x}, kFrameDim);
}

/// Channels as neighbouring places: [B, 8 C, T, H, W] -> [B, C, 2 T - 1, 2 H, 2 W].
at::Tensor unfolded(const at::Tensor& x) {
  const at::Tensor all = x.unflatten(1, {-1, 2, 2, 2})
                             .permute({0, 1, 5, 2, 6, 3, 7, 4})
                             .flatten(6, 7)
                             .flatten(4, 5)
                             .flatten(2, 3);
  return all.narrow(kFrameDim, 1, all.size(kFrameDim) - 1).contiguous();
}

}  // namespace

ClipKernel ltx_kernel(bool causal) {
  return {.time = causal ? nn::Padding{2, 0} : nn::Padding{1, 1}, .edges = Edges::kRepeatFrames};
}

at::Tensor constant_noise(const std::string& name, at::IntArrayRef shape, at::Device device) {
  const at::Tensor noise = at::empty(shape, at::TensorOptions(device).dtype(at::kFloat));
  ops::random_fill(
      noise,
      {.seed = 0, .sample = random_name(name.c_str()), .step = 0, .purpose = RandomPurpose::kInit},
      kernels::Distribution::kNormal, 1.0);
  return noise;
}

LtxNoiseLevel::LtxNoiseLevel() {
  timestep_scale_multiplier_.init = nn::Init::constant(kScaleMultiplier);
  add_parameter("timestep_scale_multiplier", timestep_scale_multiplier_);
}

at::Tensor LtxNoiseLevel::time() const {
  const at::Tensor multiplier = learned_value(timestep_scale_multiplier_);
  return multiplier.to(c10::promoteTypes(multiplier.scalar_type(), at::kFloat)).view({1}) * level_;
}

LtxLevelEmbedder::LtxLevelEmbedder(const LtxNoiseLevel& level, int64_t channels, int64_t vectors)
    : level_(level),
      vectors_(vectors),
      linear_1_(kTimeWaves, vectors * channels,
                nn::Init::xavier_uniform(kTimeWaves, vectors * channels)),
      linear_2_(vectors * channels, vectors * channels,
                nn::Init::xavier_uniform(vectors * channels, vectors * channels)) {
  add_child("timestep_embedder.linear_1", linear_1_);
  add_child("timestep_embedder.linear_2", linear_2_);
}

Tensors LtxLevelEmbedder::vectors(const nn::Parameter& table) const {
  const at::Tensor embedded =
      linear_2_.forward(at::silu(linear_1_.forward(time_waves(level_.time()))));  // [1, n C]
  Tensors all = (embedded.unflatten(1, {vectors_, -1}) + learned_value(table)).unbind(1);
  for (at::Tensor& each : all) {
    each = each.view({1, -1, 1, 1, 1});
  }
  return all;
}

nn::Bands LtxPatchingLayer::forward(nn::Bands x) const {
  return over_bands(std::move(x), {0, 0}, [this](const nn::Rows& rows, const Tensors& /*also*/) {
    return patched(rows.x, patch_);
  });
}

ClipSize LtxPatchingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = in;
  out.channels *= patch_ * patch_;
  out.rows /= patch_;
  out.columns /= patch_;
  nn::BandNeed need = clip_need(in, out, 0, false);
  need.stored = in.bytes() + out.bytes();
  needs->push_back(need);
  return out;
}

nn::Bands LtxUnpatchingLayer::forward(nn::Bands x) const {
  return over_bands(std::move(x), {0, 0}, [this](const nn::Rows& rows, const Tensors& /*also*/) {
    return unpatched(rows.x, patch_);
  });
}

ClipSize LtxUnpatchingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = in;
  out.channels /= patch_ * patch_;
  out.rows *= patch_;
  out.columns *= patch_;
  nn::BandNeed need = clip_need(in, out, 0, false);
  need.stored = in.bytes() + out.bytes();
  needs->push_back(need);
  needs->push_back(whole_need({.rows = 1, .row_bytes = out.bytes()}, 2));  // bands are joined
  return out;
}

LtxResidualLayer::LtxResidualLayer(int64_t in_channels, int64_t out_channels,
                                   const LtxResidualOptions& options)
    : options_(options),
      conv1_(in_channels, out_channels, ltx_kernel(options.causal)),
      conv2_(out_channels, out_channels, ltx_kernel(options.causal)) {
  KINORA_CHECK(
      in_channels == out_channels || (options.level == nullptr && options.noise_name.empty()),
      kConfig, "[ltx_vae] layers with a noise level or noise must keep their channels, got ",
      in_channels, " and ", out_channels);
  add_child("conv1.conv", conv1_.parameters());
  add_child("conv2.conv", conv2_.parameters());
  if (in_channels != out_channels) {
    norm3_ = std::make_unique<nn::LayerNorm>(in_channels, options.shortcut_epsilon);
    shortcut_ = std::make_unique<ClipConv>(in_channels, out_channels, ClipKernel::point());
    add_child("norm3", *norm3_);
    add_child("conv_shortcut.conv", shortcut_->parameters());
  }
  if (options.level != nullptr) {
    scale_shift_table_ = table_of(4, in_channels);
    add_parameter("scale_shift_table", scale_shift_table_);
  }
  if (!options.noise_name.empty()) {
    per_channel_scale1_.shape = {in_channels, 1, 1};
    per_channel_scale2_.shape = {in_channels, 1, 1};
    add_parameter("per_channel_scale1", per_channel_scale1_);
    add_parameter("per_channel_scale2", per_channel_scale2_);
  }
}

std::vector<LtxResidualLayer::Half> LtxResidualLayer::halves(const nn::Bands& x) const {
  std::vector<Half> both = {{.conv = &conv1_, .noise_scale = &per_channel_scale1_},
                            {.conv = &conv2_, .noise_scale = &per_channel_scale2_}};
  if (options_.level != nullptr) {
    const Tensors vectors = options_.level->vectors(scale_shift_table_);
    both[0].shift = vectors[0];
    both[0].scale = vectors[1];
    both[1].shift = vectors[2];
    both[1].scale = vectors[3];
  }
  for (size_t i = 0; i < both.size() && !options_.noise_name.empty(); ++i) {
    both[i].noise = constant_noise(options_.noise_name + ".noise" + std::to_string(i + 1),
                                   {1, 1, 1, x.num_rows(), x[0].size(-1)}, x[0].device());
  }
  return both;
}

at::Tensor LtxResidualLayer::compute(const Half& half, const nn::Bands& x, size_t i,
                                     const at::Tensor& skip) {
  Tensors also;
  if (half.shift.defined()) {
    also = {half.shift, half.scale};
  }
  if (half.noise.defined()) {
    also.push_back(half.noise.narrow(3, x.begin(i), x.end(i) - x.begin(i)));
  }
  if (skip.defined()) {
    also.push_back(skip);
  }
  const auto layer = [conv = half.conv, noise_scale = half.noise_scale,
                      is_told = half.shift.defined(), adds_noise = half.noise.defined(),
                      adds_skip = skip.defined()](const nn::Rows& rows, const Tensors& given) {
    const at::Tensor none;
    at::Tensor y = conv->forward(
        {normed_silu(rows.x, is_told ? given[0] : none, is_told ? given[1] : none), rows.missing});
    if (adds_noise) {
      y = y + given[is_told ? kHalfVectors : 0].to(y.scalar_type()) *
                  learned_value(*noise_scale).view({1, -1, 1, 1, 1});
    }
    return adds_skip ? y + given.back() : y;
  };
  return x.computed(i, half.conv->halo(), layer, also);
}

nn::Bands LtxResidualLayer::forward(nn::Bands x) const {
  const std::vector<Half> both = halves(x);
  nn::Bands y = x.like();
  nn::Bands skip = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    y.add(compute(both[0], x, i, {}));
    if (shortcut_ != nullptr) {
      skip.add(x.computed(i, {0, 0}, [this](const nn::Rows& rows, const Tensors& /*also*/) {
        const at::Tensor normed = norm3_->forward(rows.x.movedim(1, -1)).movedim(-1, 1);
        return shortcut_->forward({normed, rows.missing});
      }));
      x.release(i, conv1_.halo());  // both halves have read it
    }
  }
  if (shortcut_ == nullptr) {
    skip = std::move(x);
  }
  nn::Bands result = y.like();
  for (size_t i = 0; i < y.size(); ++i) {
    result.add(compute(both[1], y, i, skip[i]));
    y.release(i, conv2_.halo());
    skip.release(i, {0, 0});
  }
  return result;
}

ClipSize LtxResidualLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv1_.out_size(in);
  const int64_t halo = conv1_.halo()[0];
  nn::BandNeed first = clip_need(in, out, halo, true);
  // With a shortcut x is freed as both halves are made of it; else it stays until the end.
  first.stored = shortcut_ == nullptr ? 2 * in.bytes() : std::max(in.bytes(), 2 * out.bytes());
  first.work += in.bytes() + out.bytes();
  needs->push_back(first);
  nn::BandNeed second = clip_need(out, out, halo, true, out.bytes());
  second.kept += shortcut_ == nullptr ? 0 : out.bytes();
  second.work += 2 * out.bytes();
  needs->push_back(second);
  return out;
}

LtxFoldingLayer::LtxFoldingLayer(int64_t in_channels, int64_t out_channels, const LtxStep& step,
                                 bool causal)
    : out_channels_(out_channels),
      step_(step),
      conv_(in_channels, out_channels / step.volume(), ltx_kernel(causal)) {
  KINORA_CHECK(out_channels % step.volume() == 0 && in_channels * step.volume() % out_channels == 0,
               kConfig, "[ltx_vae] of ", in_channels, " channels at ", step.volume(),
               " places, means must be ", out_channels, ", which does not divide");
  add_child("conv.conv", conv_.parameters());
}

nn::Bands LtxFoldingLayer::forward(nn::Bands x) const {
  const auto layer = [this](const nn::Rows& rows, const Tensors& also) {
    const auto folded = [this](const at::Tensor& values, int64_t channels) {
      return mean_resampled(
          values, {.out_channels = channels, .frames = step_.frames, .sides = step_.sides});
    };
    const at::Tensor y = conv_.forward({with_first(rows.x, step_.frames), rows.missing});
    return folded(y, y.size(1) * step_.volume()) +
           folded(with_first(also[0], step_.frames), out_channels_);
  };
  nn::Bands own = x;
  return over_bands_beside(std::move(x), conv_.halo(), layer, std::move(own));
}

ClipSize LtxFoldingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize large = in;  // with the first frame before it
  large.frames += step_.frames - 1;
  ClipSize out = conv_.out_size(large);
  const int64_t made = out.bytes();
  out.channels = out_channels_;
  out.frames /= step_.frames;
  out.rows /= step_.sides;
  out.columns /= step_.sides;
  nn::BandNeed need = clip_need(large, out, conv_.halo()[0], false);
  need.stored = in.bytes() + out.bytes();
  need.kept = in.bytes();
  need.work += 2 * made + 2 * large.bytes() + 2 * out.bytes();
  need.rows = in.rows;
  needs->push_back(need);
  return out;
}

LtxUnfoldingLayer::LtxUnfoldingLayer(int64_t channels, int64_t divisor, bool residual, bool causal)
    : divisor_(divisor),
      residual_(residual),
      conv_(channels, 8 * channels / divisor, ltx_kernel(causal)) {
  KINORA_CHECK(divisor > 0 && channels % divisor == 0 && 8 % divisor == 0 &&
                   (!residual || channels % 8 == 0),
               kConfig, "[ltx_vae] ", channels, " channels must divide by ", divisor,
               residual ? " and by 8" : "", ", which must divide 8");
  add_child("conv.conv", conv_.parameters());
}

nn::Bands LtxUnfoldingLayer::forward(nn::Bands x) const {
  const auto layer = [this](const nn::Rows& rows, const Tensors& also) {
    const at::Tensor y = unfolded(conv_.forward(rows));
    return residual_ ? y + unfolded(also[0]).repeat({1, 8 / divisor_, 1, 1, 1}) : y;
  };
  nn::Bands own = x;
  return over_bands_beside(std::move(x), conv_.halo(), layer, std::move(own));
}

ClipSize LtxUnfoldingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize made = conv_.out_size(in);
  ClipSize out = in;
  out.channels = in.channels / divisor_;
  out.frames = 2 * in.frames - 1;
  out.rows *= 2;
  out.columns *= 2;
  nn::BandNeed need = clip_need(in, made, conv_.halo()[0], false);
  need.stored = in.bytes() + out.bytes();
  // The convolution's padded input; or what it makes, that in its new order, and without its first
  // frame; or with a shortcut that of x.
  need.work = std::max(3 * in.bytes() + made.bytes(),
                       2 * in.bytes() + 2 * made.bytes() + (residual_ ? 2 : 1) * out.bytes());
  needs->push_back(need);
  return out;
}

LtxNormConvLayer::LtxNormConvLayer(int64_t in_channels, int64_t out_channels, bool causal,
                                   const LtxLevelEmbedder* level)
    : level_(level), conv_(in_channels, out_channels, ltx_kernel(causal)) {
  add_child("conv_out.conv", conv_.parameters());
  if (level != nullptr) {
    scale_shift_table_ = table_of(2, in_channels);
    add_parameter("scale_shift_table", scale_shift_table_);
  }
}

nn::Bands LtxNormConvLayer::forward(nn::Bands x) const {
  const Tensors vectors = level_ == nullptr ? Tensors() : level_->vectors(scale_shift_table_);
  const auto layer = [this](const nn::Rows& rows, const Tensors& also) {
    const at::Tensor none;
    return conv_.forward(
        {normed_silu(rows.x, also.empty() ? none : also[0], also.empty() ? none : also[1]),
         rows.missing});
  };
  return over_bands(std::move(x), conv_.halo(), layer, vectors);
}

ClipSize LtxNormConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv_.out_size(in);
  needs->push_back(clip_need(in, out, conv_.halo()[0], true));
  return out;
}

}  // namespace kinora::models
