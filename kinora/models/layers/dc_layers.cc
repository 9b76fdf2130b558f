#include "kinora/models/layers/dc_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kDcNormEpsilon = 1e-5;
constexpr double kAttentionEpsilon = 1e-15;
constexpr int64_t kExpansion = 4;  // of the gated layers

const char* key(DcForm form, const char* of_clips, const char* of_images) {
  return form == DcForm::kClips ? of_clips : of_images;
}

/// A convolution of `size` places around of each channel alone, or of all.
ClipKernel around(DcForm form, int64_t size, bool has_bias, int64_t groups = 1) {
  const bool of_images = form == DcForm::kImages;
  const int64_t frames = of_images ? 1 : size;
  return {.size = {frames, size, size},
          .time = {frames / 2, frames / 2},
          .edges = Edges::kZero,
          .has_bias = has_bias,
          .groups = groups,
          .of_images = of_images};
}

/// Of a layer that makes clips smaller.
ClipKernel reducing(DcForm form, DcResize resize) {
  ClipKernel kernel = around(form, 3, true);
  if (!resize.shuffles) {
    kernel.stride = {resize.frames ? 2 : 1, resize.side_factor(), resize.side_factor()};
  }
  return kernel;
}

/// diffusers wraps only convolutions that change the size.
const char* conv_key(DcForm form, DcResize resize) {
  return key(form, "conv", resize.sides ? "conv" : "");
}

at::Tensor widened(const at::Tensor& x) {
  return x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
}

/// Of `rows`, which were asked for with `asked` around, those that `halo` asks for.
nn::Rows within(const nn::Rows& rows, std::array<int64_t, 2> asked, std::array<int64_t, 2> halo) {
  nn::Rows near;
  std::array<int64_t, 2> dropped = {};
  for (size_t side = 0; side < 2; ++side) {
    const int64_t given = asked[side] - rows.missing[side];
    const int64_t kept = std::min(given, halo[side]);
    dropped[side] = given - kept;
    near.missing[side] = halo[side] - kept;
  }
  near.x = rows.x.narrow(3, dropped[0], rows.x.size(3) - dropped[0] - dropped[1]);
  return near;
}

at::Tensor own_rows(const nn::Rows& rows, std::array<int64_t, 2> asked) {
  return within(rows, asked, {0, 0}).x;
}

/// [B, C, T, H, W] to [B, C x frames x sides x sides, T / frames, H / sides, W / sides]: the places
/// that become one are channels beside the first's.
at::Tensor places_to_channels(const at::Tensor& x, int64_t frames, int64_t sides) {
  return x.unflatten(4, {-1, sides})
      .unflatten(3, {-1, sides})
      .unflatten(2, {-1, frames})  // [B, C, t, frames, h, sides, w, sides]
      .permute({0, 1, 3, 5, 7, 2, 4, 6})
      .flatten(1, 4);
}

/// The reverse.
at::Tensor channels_to_places(const at::Tensor& x, int64_t frames, int64_t sides) {
  return x.unflatten(1, {-1, frames, sides, sides})
      .permute({0, 1, 5, 2, 6, 3, 7, 4})  // [B, C, T, frames, H, sides, W, sides]
      .flatten(6, 7)
      .flatten(4, 5)
      .flatten(2, 3);
}

/// As many channels of places as places become one, or one becomes.
int64_t side_places(DcResize resize) {
  return resize.side_factor() * resize.side_factor();
}

void check_multiple(const char* what, int64_t larger, int64_t smaller) {
  KINORA_CHECK(larger % smaller == 0, kConfig, "[dc_ae] ", what, " between ", larger, " and ",
               smaller, " channels must be a multiple");
}

/// Channels that the convolution of an AveragingLayer makes.
int64_t reduced_channels(int64_t out_channels, DcResize resize) {
  if (!resize.shuffles) {
    return out_channels;
  }
  check_multiple("places that become channels", out_channels, side_places(resize));
  return out_channels / side_places(resize);
}

}  // namespace

// ---- norm ----

PlaceNorm::PlaceNorm(int64_t channels, DcNorm kind)
    : weight{.shape = {channels}, .init = nn::Init::one(), .value = {}, .grad = {}},
      bias{.shape = {channels}, .init = nn::Init::zero(), .value = {}, .grad = {}},
      kind_(kind) {
  add_parameter("weight", weight);
  add_parameter("bias", bias);
  if (kind == DcNorm::kBatch) {
    running_mean = at::zeros({channels}, at::kFloat);
    running_var = at::ones({channels}, at::kFloat);
    add_buffer("running_mean", running_mean);
    add_buffer("running_var", running_var);
  }
}

at::Tensor PlaceNorm::forward(const at::Tensor& x) const {
  const at::Tensor wide = widened(x);
  const std::vector<int64_t> per_channel = {1, -1, 1, 1, 1};
  at::Tensor normed;
  if (kind_ == DcNorm::kRms) {
    normed = wide * at::rsqrt(wide.square().mean(1, true) + kDcNormEpsilon);
  } else {
    const at::Tensor variance = running_var.to(wide.scalar_type()).view(per_channel);
    normed = (wide - running_mean.view(per_channel)) * at::rsqrt(variance + kDcNormEpsilon);
  }
  return tapped(at::addcmul(ops::with_gradient(bias.value, bias.grad).view(per_channel), normed,
                            ops::with_gradient(weight.value, weight.grad).view(per_channel))
                    .to(x.scalar_type()));
}

// ---- other sizes ----

AveragingLayer::AveragingLayer(int64_t in_channels, int64_t out_channels, DcResize resize,
                               DcForm form)
    : out_channels_(out_channels),
      resize_(resize),
      conv_(in_channels, reduced_channels(out_channels, resize), reducing(form, resize)) {
  if (resize.has_shortcut) {
    check_multiple("an averaging shortcut", in_channels * side_places(resize), out_channels);
  }
  add_child(conv_key(form, resize), conv_.parameters());
}

nn::Bands AveragingLayer::forward(nn::Bands x) const {
  const auto layer = [this, halo = conv_.halo()](const nn::Rows& rows, const Tensors& /*also*/) {
    at::Tensor y = conv_.forward(rows);
    if (resize_.shuffles) {
      y = places_to_channels(y, 1, resize_.side_factor());
    }
    if (!resize_.has_shortcut) {
      return y;
    }
    const at::Tensor own = own_rows(rows, halo);
    const at::Tensor beside =
        places_to_channels(own, resize_.frame_factor(own.size(2)), resize_.side_factor());
    return y + beside.unflatten(1, {out_channels_, -1}).mean(2);
  };
  return over_bands(std::move(x), conv_.halo(), layer);
}

ClipSize AveragingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = conv_.out_size(in);
  needs->push_back(clip_need(in, out, conv_.halo()[0], false));
  needs->back().work += resize_.has_shortcut ? in.bytes() + out.bytes() : 0;
  if (resize_.shuffles) {
    needs->back().work += out.bytes();
    out.channels = out_channels_;
    out.rows /= resize_.side_factor();
    out.columns /= resize_.side_factor();
  }
  return out;
}

DuplicatingLayer::DuplicatingLayer(int64_t in_channels, int64_t out_channels, DcResize resize,
                                   DcForm form)
    : out_channels_(out_channels),
      resize_(resize),
      conv_(in_channels, out_channels * (resize.shuffles ? side_places(resize) : 1),
            around(form, 3, true)) {
  if (resize.has_shortcut) {
    check_multiple("a duplicating shortcut", out_channels * side_places(resize), in_channels);
  }
  add_child(conv_key(form, resize), conv_.parameters());
}

at::Tensor DuplicatingLayer::forward_rows(const nn::Rows& rows) const {
  const int64_t frames = resize_.frame_factor(rows.x.size(2));
  const int64_t sides = resize_.side_factor();
  at::Tensor y;
  if (resize_.shuffles) {
    y = channels_to_places(conv_.forward(rows), 1, sides);
  } else {
    y = resize_.sides ? conv_.forward_doubled(rows, frames) : conv_.forward(rows);
  }
  if (!resize_.has_shortcut) {
    return y;
  }
  const at::Tensor own = own_rows(rows, kHalo);
  const int64_t repeats = out_channels_ * frames * sides * sides / own.size(1);
  return y + channels_to_places(own.repeat_interleave(repeats, 1), frames, sides);
}

nn::Bands DuplicatingLayer::forward(nn::Bands x) const {
  return over_bands(std::move(x), kHalo, [this](const nn::Rows& rows, const Tensors& /*also*/) {
    return forward_rows(rows);
  });
}

ClipSize DuplicatingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize large = in;
  large.frames *= resize_.frame_factor(in.frames);
  large.rows *= resize_.side_factor();
  large.columns *= resize_.side_factor();
  ClipSize out = large;
  out.channels = out_channels_;
  nn::BandNeed need = clip_need(resize_.shuffles ? in : large, out, kHalo[0], false);
  need.stored = in.bytes() + out.bytes();
  need.kept = in.bytes();
  need.work += (resize_.has_shortcut ? 2 : 0) * out.bytes() + (resize_.shuffles ? out.bytes() : 0);
  need.rows = in.rows;
  needs->push_back(need);
  return out;
}

// ---- blocks ----

DcResidualLayer::DcResidualLayer(int64_t channels, DcForm form, DcNorm norm,
                                 DcActivation activation)
    : conv1_(channels, channels, around(form, 3, true)),
      conv2_(channels, channels, around(form, 3, false)),
      norm_(channels, norm),
      activation_(activation) {
  add_child(key(form, "conv1.conv", "conv1"), conv1_.parameters());
  add_child(key(form, "conv2.conv", "conv2"), conv2_.parameters());
  add_child(key(form, "conv2.norm", "norm"), norm_);
}

nn::Bands DcResidualLayer::forward(nn::Bands x) const {
  const auto first = [this](const nn::Rows& rows, const Tensors& /*also*/) {
    const at::Tensor y = conv1_.forward(rows);
    return activation_ == DcActivation::kRelu ? at::relu(y) : at::silu(y);
  };
  const auto second = [this](const nn::Rows& rows, const Tensors& also) {
    return also[0] + norm_.forward(conv2_.forward(rows));
  };
  nn::Bands y = over_bands(x, conv1_.halo(), first);
  return over_bands_beside(std::move(y), conv2_.halo(), second, std::move(x));
}

ClipSize DcResidualLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  needs->push_back(clip_need(in, in, 1, false, in.bytes()));
  needs->push_back(clip_need(in, in, 1, true, in.bytes()));
  needs->back().work += 2 * in.bytes();
  return in;
}

LinearAttentionLayer::Scale::Scale(int64_t channels, int64_t places, int64_t head_channels,
                                   DcForm form)
    : around(channels, channels, models::around(form, places, false, channels)),
      mixed(channels, channels, models::around(form, 1, false, channels / head_channels)) {}

LinearAttentionLayer::LinearAttentionLayer(int64_t channels, const LinearAttentionOptions& options,
                                           DcForm form)
    : head_channels_(options.head_channels),
      proj_(channels * (1 + static_cast<int64_t>(options.scales.size())), channels,
            around(form, 1, false)),
      norm_(channels, options.norm) {
  KINORA_CHECK(head_channels_ > 0 && channels % head_channels_ == 0, kConfig, "[dc_ae] heads of ",
               head_channels_, " channels must divide ", channels);
  const std::vector<const char*> names = form == DcForm::kClips
                                             ? std::vector<const char*>{"qkv.conv"}
                                             : std::vector<const char*>{"to_q", "to_k", "to_v"};
  const int64_t each = 3 * channels / static_cast<int64_t>(names.size());
  for (const char* name : names) {
    qkv_.push_back(std::make_unique<ClipConv>(channels, each, around(form, 1, false)));
    add_child(name, qkv_.back()->parameters());
  }
  for (const int64_t places : options.scales) {
    KINORA_CHECK(places > 0 && places % 2 == 1, kConfig,
                 "[dc_ae] places that a scale of attention sees must be odd, got ", places);
    const std::string name =
        key(form, "aggreg.", "to_qkv_multiscale.") + std::to_string(scales_.size());
    scales_.push_back(std::make_unique<Scale>(3 * channels, places, head_channels_, form));
    add_child(name + key(form, ".0", ".proj_in"), scales_.back()->around.parameters());
    add_child(name + key(form, ".1", ".proj_out"), scales_.back()->mixed.parameters());
  }
  add_child(key(form, "proj.conv", "to_out"), proj_.parameters());
  add_child(key(form, "proj.norm", "norm_out"), norm_);
}

std::array<int64_t, 2> LinearAttentionLayer::halo() const {
  std::array<int64_t, 2> all = {0, 0};
  for (const auto& scale : scales_) {
    all = std::max(all, scale->around.halo());  // above and below are the same
  }
  return all;
}

at::Tensor LinearAttentionLayer::projections(const nn::Rows& rows) const {
  Tensors qkv;
  for (const auto& conv : qkv_) {
    qkv.push_back(conv->forward({rows.x}));
  }
  const nn::Rows near = {qkv.size() == 1 ? qkv[0] : at::cat(qkv, 1), rows.missing};
  Tensors all = {own_rows(near, halo())};
  for (const auto& scale : scales_) {
    const at::Tensor seen = scale->around.forward(within(near, halo(), scale->around.halo()));
    all.push_back(scale->mixed.forward({seen}));
  }
  return all.size() == 1 ? all[0] : at::cat(all, 1);
}

at::Tensor LinearAttentionLayer::heads(const at::Tensor& projections) const {
  return widened(projections).flatten(2).unflatten(1, {-1, 3, head_channels_});
}

at::Tensor LinearAttentionLayer::sums(const at::Tensor& projections) const {
  const at::Tensor all = heads(projections);
  const at::Tensor values = all.select(2, 2);  // [B, heads, head_channels, places]
  const at::Tensor with_ones = at::cat({values, at::ones_like(values.narrow(2, 0, 1))}, 2);
  return at::matmul(with_ones, at::relu(all.select(2, 1)).transpose(2, 3));
}

at::Tensor LinearAttentionLayer::attended(const at::Tensor& projections,
                                          const at::Tensor& sums) const {
  const at::Tensor seen = at::matmul(sums, at::relu(heads(projections).select(2, 0)));
  const at::Tensor weights = seen.narrow(2, head_channels_, 1) + kAttentionEpsilon;
  return (seen.narrow(2, 0, head_channels_) / weights)
      .flatten(1, 2)
      .unflatten(2, projections.sizes().slice(2));
}

nn::Bands LinearAttentionLayer::forward(nn::Bands x) const {
  nn::Bands qkv = over_bands(x, halo(), [this](const nn::Rows& rows, const Tensors& /*also*/) {
    return projections(rows);
  });
  at::Tensor all;
  for (size_t i = 0; i < qkv.size(); ++i) {
    const at::Tensor part = qkv.computed(
        i, {0, 0}, [this](const nn::Rows& rows, const Tensors& /*also*/) { return sums(rows.x); });
    all = all.defined() ? all + part : part;
  }
  all = qkv.over_ranks(all);
  const auto layer = [this](const nn::Rows& rows, const Tensors& also) {
    return also[0] + norm_.forward(proj_.forward({attended(rows.x, also[1])}));
  };
  return over_bands_beside(std::move(qkv), {0, 0}, layer, std::move(x), {all});
}

ClipSize LinearAttentionLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize qkv = in;
  qkv.channels *= 3;
  ClipSize all = qkv;
  all.channels *= 1 + static_cast<int64_t>(scales_.size());
  nn::BandNeed first = clip_need(qkv, all, halo()[0], false);
  first.stored = in.bytes() + all.bytes();
  first.kept = in.bytes();
  needs->push_back(first);
  // In fp32: heads, those times sums, their quotient; then all scales' projected and normed.
  nn::BandNeed second = clip_need(all, in, 0, true);
  second.stored = 2 * in.bytes() + all.bytes();
  needs->push_back(second);
  return in;
}

GatedLayer::GatedLayer(int64_t channels, DcForm form)
    : inverted_(channels, 2 * kExpansion * channels, around(form, 1, true)),
      depth_(2 * kExpansion * channels, 2 * kExpansion * channels,
             around(form, 3, true, 2 * kExpansion * channels)),
      point_(kExpansion * channels, channels, around(form, 1, false)),
      norm_(channels) {
  add_child(key(form, "inverted_conv.conv", "conv_inverted"), inverted_.parameters());
  add_child(key(form, "depth_conv.conv", "conv_depth"), depth_.parameters());
  add_child(key(form, "point_conv.conv", "conv_point"), point_.parameters());
  add_child(key(form, "point_conv.norm", "norm"), norm_);
}

nn::Bands GatedLayer::forward(nn::Bands x) const {
  const auto layer = [this](const nn::Rows& rows, const Tensors& also) {
    const at::Tensor wide = at::silu(inverted_.forward({rows.x}));
    const auto halves = depth_.forward({wide, rows.missing}).chunk(2, 1);
    return also[0] + norm_.forward(point_.forward({halves[0] * at::silu(halves[1])}));
  };
  return over_bands_beside(x, depth_.halo(), layer, x);
}

ClipSize GatedLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize wide = in;
  wide.channels *= 2 * kExpansion;
  nn::BandNeed need = clip_need(wide, wide, depth_.halo()[0], false);
  need.stored = 2 * in.bytes();
  need.kept = in.bytes();
  needs->push_back(need);
  return in;
}

NormReluConvLayer::NormReluConvLayer(int64_t in_channels, int64_t out_channels, DcResize resize,
                                     DcForm form)
    : norm_(in_channels), conv_(in_channels, out_channels, resize, form) {
  add_child(key(form, "0", "norm_out"), norm_);
  add_child(key(form, "2", "conv_out"), conv_);
}

nn::Bands NormReluConvLayer::forward(nn::Bands x) const {
  const auto layer = [this](const nn::Rows& rows, const Tensors& /*also*/) {
    return conv_.forward_rows({at::relu(norm_.forward(rows.x)), rows.missing});
  };
  return over_bands(std::move(x), DuplicatingLayer::kHalo, layer);
}

ClipSize NormReluConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv_.plan(in, needs);
  needs->back().work = std::max(needs->back().work, clip_need(in, in, 1, true).work);
  return out;
}

}  // namespace kinora::models
