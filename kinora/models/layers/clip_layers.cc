#include "kinora/models/layers/clip_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <utility>

#include "kinora/ops/edges.h"

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kFramesDim = 2;

/// Of T, H and W.
const std::vector<nn::Padding> kNoEdges(3, nn::Padding{0, 0});

/// x with its edges again, behind `earlier` frames that have them, where that is defined.
at::Tensor with_edges(const at::Tensor& x, const std::vector<nn::Padding>& edges,
                      const at::Tensor& earlier) {
  const at::Tensor seen = ops::repeat_edges(x, edges);
  return earlier.defined() ? at::cat({earlier, seen}, kFramesDim) : seen;
}

nn::Conv make_conv(int64_t in_channels, int64_t out_channels, const ClipKernel& kernel) {
  const int first = kernel.of_images ? 1 : 0;  // of the dims that weights have
  return nn::Conv({.in_channels = in_channels,
                   .out_channels = out_channels,
                   .kernel = {kernel.size.begin() + first, kernel.size.end()},
                   .stride = {kernel.stride.begin() + first, kernel.stride.end()},
                   .groups = kernel.groups,
                   .has_bias = kernel.has_bias});
}

/// The frames of a clip [B, C, T, H, W] as images [B T, C, H, W].
at::Tensor images_of_frames(const at::Tensor& clip) {
  return clip.transpose(1, 2).flatten(0, 1);
}

/// The reverse, of clips of so many frames.
at::Tensor frames_of_images(const at::Tensor& images, int64_t frames) {
  return images.unflatten(0, {-1, frames}).transpose(1, 2);
}

}  // namespace

ClipConv::ClipConv(int64_t in_channels, int64_t out_channels, const ClipKernel& kernel)
    : kernel_(kernel), conv_(make_conv(in_channels, out_channels, kernel)) {}

nn::Padding ClipConv::beside() const {
  const int64_t around = kernel_.size[2] / 2;
  return kernel_.zeros_behind ? nn::Padding{0, kernel_.size[2] - kernel_.stride[2]}
                              : nn::Padding{around, around};
}

ClipConv::Around ClipConv::around(const nn::Padding& missing_rows) const {
  Around result{kNoEdges, {kernel_.time, missing_rows, beside()}};
  if (kernel_.edges == Edges::kRepeat) {
    std::swap(result.again, result.zeros);
  } else if (kernel_.edges == Edges::kRepeatFrames) {
    std::swap(result.again[0], result.zeros[0]);
  }
  return result;
}

std::array<int64_t, 2> ClipConv::halo() const {
  if (kernel_.zeros_behind) {
    return {0, kernel_.size[1] - kernel_.stride[1]};
  }
  // The last stride - 1 rows of a band are those that its last output is made of.
  const int64_t around = kernel_.size[1] / 2;
  return {around, std::max<int64_t>(0, around - (kernel_.stride[1] - 1))};
}

at::Tensor ClipConv::forward(const nn::Rows& x) const {
  if (kernel_.of_images) {
    return frames_of_images(conv_.forward(images_of_frames(x.x), {x.missing, beside()}),
                            x.x.size(2));
  }
  const auto [again, zeros] = around(x.missing);
  return conv_.forward(ops::repeat_edges(x.x, again), zeros);
}

at::Tensor ClipConv::forward_normed(const nn::Rows& x, const nn::GroupNorm& norm,
                                    const at::Tensor& sums, int64_t elements,
                                    const at::Tensor& plus) const {
  if (kernel_.of_images || kernel_.edges == Edges::kZero) {
    const at::Tensor y = forward({norm.apply_silu(x.x, sums, elements), x.missing});
    return plus.defined() ? y + plus : y;
  }
  const auto [again, zeros] = around(x.missing);
  const at::Tensor in = norm.apply_silu_with_edges(x.x, sums, elements, again);
  return plus.defined() ? conv_.forward_plus(in, zeros, plus) : conv_.forward(in, zeros);
}

at::Tensor ClipConv::forward_doubled(const nn::Rows& x, int64_t frames) const {
  return kernel_.of_images
             ? frames_of_images(conv_.forward_doubled(images_of_frames(x.x), x.missing),
                                x.x.size(2))
             : forward_repeated(x, frames);
}

at::Tensor ClipConv::forward_repeated(const nn::Rows& x, int64_t frames, int64_t first) const {
  // One row around is two of the larger clip, of which one stays.
  const std::vector<nn::Padding> left_out = {
      {first, 0}, {1 - x.missing[0], 1 - x.missing[1]}, {0, 0}};
  const auto large = [&](const std::vector<nn::Padding>& edges) {
    return ops::repeat_places_with_edges(x.x, frames, left_out, edges);
  };
  if (kernel_.of_images) {
    return forward({large(kNoEdges), x.missing});
  }
  if (doubles(frames) && !at::GradMode::is_enabled()) {
    const at::Tensor seen =
        ops::repeat_edges(x.x, {{kernel_.time[0] / frames, 0}, x.missing, beside()});
    return conv_.forward_doubled_clip(seen, frames, first);
  }
  const auto [again, zeros] = around(x.missing);
  return conv_.forward(large(again), zeros);
}

bool ClipConv::doubles(int64_t frames) const {
  return streams() && conv_.doubles_clips() && frames <= 2;
}

bool ClipConv::streams() const {
  return kernel_.edges == Edges::kRepeat && !kernel_.of_images && !kernel_.zeros_behind &&
         kernel_.stride == std::array<int64_t, 3>{1, 1, 1} &&
         kernel_.time == nn::Padding{kernel_.size[0] - 1, 0};
}

ClipWindow ClipConv::stream(const ClipWindow& x, ClipStream& stream, const nn::GroupNorm* norm,
                            const ClipWindow* plus) const {
  const int64_t rows = kernel_.size[1] / 2;
  ClipWindow result = x.seen(rows);
  const std::vector<nn::Padding> edges = {
      {stream.begins() ? kernel_.time[0] : 0, 0}, x.missing(rows), beside()};
  const at::Tensor earlier = stream.earlier(this);
  at::Tensor in;
  if (norm == nullptr) {
    in = with_edges(x.x, edges, earlier);
  } else {
    const ClipStream::Sums of_all = stream.sums_of(*norm, x).value();
    in = norm->apply_silu_with_edges(x.x, of_all.sums, of_all.elements, edges, earlier);
  }
  stream.remember(this, in, kernel_.time[0]);
  result.x = plus == nullptr ? conv_.forward(in, kNoEdges)
                             : conv_.forward_plus(in, kNoEdges, plus->part(result.from, result.to));
  return result;
}

ClipWindow ClipConv::stream_repeated(const ClipWindow& x, int64_t frames,
                                     ClipStream& stream) const {
  ClipWindow result = x.seen(1);
  result.from *= 2;
  result.to *= 2;
  result.rows *= 2;
  const int64_t before = kernel_.time[0] / frames;
  const at::Tensor seen = with_edges(
      x.x, {{stream.begins() ? before : 0, 0}, x.missing(1), beside()}, stream.earlier(this));
  stream.remember(this, seen, before);
  result.x = conv_.forward_doubled_clip(seen, frames, stream.begins() ? frames - 1 : 0);
  return result;
}

ClipSize ClipConv::out_size(const ClipSize& in) const {
  ClipSize out = in;
  out.channels = conv_.shape().out_channels;
  const int64_t frames = in.frames + kernel_.time[0] + kernel_.time[1] - kernel_.size[0];
  out.frames = frames / kernel_.stride[0] + 1;
  out.rows = in.rows / kernel_.stride[1];
  out.columns = in.columns / kernel_.stride[2];
  return out;
}

at::Tensor patched(const at::Tensor& x, int64_t patch) {
  return patch == 1 ? x
                    : x.unflatten(4, {-1, patch})
                          .unflatten(3, {-1, patch})
                          .permute({0, 1, 6, 4, 2, 3, 5})
                          .flatten(1, 3)
                          .contiguous();
}

at::Tensor unpatched(const at::Tensor& x, int64_t patch) {
  return patch == 1 ? x
                    : x.unflatten(1, {-1, patch, patch})
                          .permute({0, 1, 4, 5, 3, 6, 2})
                          .flatten(5, 6)
                          .flatten(3, 4)
                          .contiguous();
}

nn::BandNeed ClipConv::normed_need(const ClipSize& in, int64_t beside) const {
  const bool by_norm = !kernel_.of_images && kernel_.edges != Edges::kZero;
  return clip_need(in, out_size(in), halo()[0], !is_normed_in_one_pass(in), beside,
                   by_norm ? 2 : 3);
}

bool is_normed_in_one_pass(const ClipSize& in) {
  constexpr int64_t kVector = 8;  // channels that kernels take together
  return in.one_pass_norms && in.channels % kVector == 0;
}

nn::BandNeed clip_need(const ClipSize& in, const ClipSize& out, int64_t halo, bool normed,
                       int64_t beside, int64_t copies) {
  // Reading gathers a copy. A norm computes in fp32 (its input and its result) and rounds what is
  // narrower. The convolution reads a padded copy.
  const int64_t wide = in.bytes() / in.element_bytes * std::max<int64_t>(4, in.element_bytes);
  const int64_t rounded = wide > in.bytes() ? in.bytes() : 0;
  const int64_t norm = normed ? in.bytes() + 2 * wide + rounded : 0;
  const int64_t convolution = copies * in.bytes() + out.bytes();
  return {.stored = std::max(in.bytes(), out.bytes()) + beside,
          .kept = in.bytes(),
          .work = std::max(norm, convolution) + std::min(in.bytes(), out.bytes()),
          .rows = in.rows,
          .halo = halo};
}

nn::Bands over_bands_beside(nn::Bands x, std::array<int64_t, 2> halo, const nn::Bands::Layer& layer,
                            nn::Bands beside, const std::vector<at::Tensor>& also) {
  nn::Bands result = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<at::Tensor> values = {beside[i]};
    values.insert(values.end(), also.begin(), also.end());
    result.add(x.computed(i, halo, layer, values));
    x.release(i, halo);
    beside.release(i, {0, 0});
  }
  return result;
}

ConvLayer::ConvLayer(int64_t in_channels, int64_t out_channels, const ClipKernel& kernel,
                     const std::string& name)
    : conv_(in_channels, out_channels, kernel) {
  add_child(name, conv_.parameters());
}

nn::Bands ConvLayer::forward(nn::Bands x) const {
  return over_bands(std::move(x), conv_.halo(),
                    [this](const nn::Rows& rows, const Tensors&) { return conv_.forward(rows); });
}

ClipSize ConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv_.out_size(in);
  needs->push_back(clip_need(in, out, conv_.halo()[0], false));
  return out;
}

UpsampleLayer::UpsampleLayer(int64_t channels, int64_t frames, const ClipKernel& kernel)
    : UpsampleLayer(channels, channels, frames, kernel, "conv") {}

UpsampleLayer::UpsampleLayer(int64_t in_channels, int64_t out_channels, int64_t frames,
                             const ClipKernel& kernel, const std::string& name)
    : frames_(frames), conv_(in_channels, out_channels, kernel) {
  add_child(name, conv_.parameters());
}

nn::Bands UpsampleLayer::forward(nn::Bands x) const {
  const auto layer = [this](const nn::Rows& rows, const Tensors& /*also*/) {
    return conv_.forward_repeated(rows, frames_, frames_ - 1);  // the first frame stays one
  };
  return over_bands(std::move(x), {1, 1}, layer);
}

ClipSize UpsampleLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize large = in;
  large.frames = in.frames * frames_ - (frames_ - 1);
  large.rows *= 2;
  large.columns *= 2;
  const ClipSize out = conv_.out_size(large);
  nn::BandNeed need = clip_need(large, out, 1, false, 0, is_normed_in_one_pass(in) ? 2 : 3);
  need.stored = out.bytes();
  need.kept = in.bytes();
  need.rows = in.rows;
  needs->push_back(need);
  return out;
}

bool UpsampleLayer::streams() const {
  return conv_.doubles(frames_);
}

std::optional<ClipWindow> UpsampleLayer::stream(ClipWindow x, ClipStream& stream) const {
  return conv_.stream_repeated(x, frames_, stream);
}

int64_t UpsampleLayer::rows_around(int64_t rows) const {
  return (rows + 1) / 2 + 1;
}

int64_t UpsampleLayer::remembered_bytes(const ClipSize& in) const {
  return conv_.remembered_bytes(in);
}

UpsampleResidualLayer::UpsampleResidualLayer(int64_t channels, int64_t groups, double epsilon,
                                             const ClipKernel& kernel)
    : conv1_(channels, channels, kernel),
      norm1_(groups, channels, epsilon),
      conv2_(channels, channels, kernel),
      norm2_(groups, channels, epsilon) {
  add_child("conv1.conv", conv1_.parameters());
  add_child("norm1", norm1_);
  add_child("conv2.conv", conv2_.parameters());
  add_child("norm2", norm2_);
}

nn::Bands UpsampleResidualLayer::forward(nn::Bands x) const {
  nn::Bands y = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    y.add(x.computed(i, {1, 1}, [this](const nn::Rows& rows, const Tensors& /*also*/) {
      return conv1_.forward_repeated(rows, 2);
    }));
  }
  const at::Tensor sums1 = band_sums(y, norm1_);
  const auto second = [this, elements = y.group_elements(norm1_.groups())](const nn::Rows& rows,
                                                                           const Tensors& also) {
    return conv2_.forward_normed(rows, norm1_, also[0], elements);
  };
  y = over_bands(std::move(y), conv2_.halo(), second, {sums1});
  const at::Tensor sums2 = band_sums(y, norm2_);
  const auto last = [this, elements = y.group_elements(norm2_.groups())](const nn::Rows& rows,
                                                                         const Tensors& also) {
    const at::Tensor large = ops::repeat_places(also[0], 2);
    return at::silu(norm2_.apply(rows.x, also[1], elements) + large) + large;
  };
  return over_bands_beside(std::move(y), {0, 0}, last, std::move(x), {sums2});
}

ClipSize UpsampleResidualLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize large = in;
  large.frames *= 2;
  large.rows *= 2;
  large.columns *= 2;
  // x stays until the end.
  nn::BandNeed first = clip_need(large, large, 1, false, in.bytes());
  first.kept = in.bytes();
  first.rows = in.rows;
  needs->push_back(first);
  needs->push_back(conv2_.normed_need(large, in.bytes()));
  nn::BandNeed last = clip_need(large, large, 0, true, in.bytes());
  last.work += 2 * large.bytes();
  needs->push_back(last);
  return large;
}

FrameDoublingLayer::FrameDoublingLayer(int64_t channels, const ClipKernel& kernel)
    : conv_(channels, 2 * channels, kernel) {
  add_child("conv", conv_.parameters());
}

nn::Bands FrameDoublingLayer::forward(nn::Bands x) const {
  const auto layer = [this](const nn::Rows& rows, const Tensors& /*also*/) {
    const at::Tensor y = conv_.forward(rows);                      // [B, 2 C, T, H, W]
    return y.unflatten(1, {-1, 2}).transpose(2, 3).flatten(2, 3);  // [B, C, 2 T, H, W]
  };
  return over_bands(std::move(x), conv_.halo(), layer);
}

ClipSize FrameDoublingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = conv_.out_size(in);
  needs->push_back(clip_need(in, out, conv_.halo()[0], false));
  needs->back().work += out.bytes();  // the frames in their order are a copy
  out.channels /= 2;
  out.frames *= 2;
  return out;
}

NormConvLayer::NormConvLayer(int64_t in_channels, int64_t out_channels, const Options& options)
    : norm_(options.groups, in_channels, options.epsilon),
      conv_(in_channels, out_channels, options.kernel) {
  add_child(options.norm_name, norm_);
  add_child(options.conv_name, conv_.parameters());
}

nn::Bands NormConvLayer::forward(nn::Bands x) const {
  const at::Tensor sums = band_sums(x, norm_);
  const auto layer = [this, elements = x.group_elements(norm_.groups())](const nn::Rows& rows,
                                                                         const Tensors& also) {
    return conv_.forward_normed(rows, norm_, also[0], elements);
  };
  return over_bands(std::move(x), conv_.halo(), layer, {sums});
}

ClipSize NormConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  needs->push_back(conv_.normed_need(in));
  return conv_.out_size(in);
}

bool NormConvLayer::streams() const {
  return conv_.streams();
}

std::optional<ClipWindow> NormConvLayer::stream(ClipWindow x, ClipStream& stream) const {
  if (!stream.sums_of(norm_, x)) {
    return std::nullopt;
  }
  return conv_.stream(x, stream, &norm_);
}

int64_t NormConvLayer::rows_around(int64_t rows) const {
  return rows + conv_.halo()[0];
}

int64_t NormConvLayer::remembered_bytes(const ClipSize& in) const {
  return conv_.remembered_bytes(in);
}

ResidualLayer::ResidualLayer(int64_t in_channels, int64_t out_channels,
                             const ResidualOptions& options)
    : norm1_(options.groups, in_channels, options.epsilon),
      conv1_(in_channels, out_channels, options.kernel),
      norm2_(options.groups, out_channels, options.epsilon),
      conv2_(out_channels, out_channels, options.kernel) {
  add_child("norm1", norm1_);
  add_child("conv1.conv", conv1_.parameters());
  add_child("norm2", norm2_);
  add_child("conv2.conv", conv2_.parameters());
  if (in_channels != out_channels) {
    shortcut_ = std::make_unique<ClipConv>(in_channels, out_channels,
                                           ClipKernel::point(options.kernel.has_bias));
    add_child(options.shortcut_name, shortcut_->parameters());
  }
}

nn::Bands ResidualLayer::forward(nn::Bands x) const {
  const at::Tensor sums = band_sums(x, norm1_);
  const auto first = [this, elements = x.group_elements(norm1_.groups())](const nn::Rows& rows,
                                                                          const Tensors& also) {
    return conv1_.forward_normed(rows, norm1_, also[0], elements);
  };
  nn::Bands y = x.like();
  nn::Bands skip = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    y.add(x.computed(i, conv1_.halo(), first, {sums}));
    if (shortcut_ != nullptr) {
      skip.add(x.computed(i, {0, 0}, [this](const nn::Rows& rows, const Tensors&) {
        return shortcut_->forward(rows);
      }));
      x.release(i, conv1_.halo());  // both halves have read it
    }
  }
  if (shortcut_ == nullptr) {
    skip = std::move(x);
  }
  const at::Tensor sums2 = band_sums(y, norm2_);
  const auto second = [this, elements = y.group_elements(norm2_.groups())](const nn::Rows& rows,
                                                                           const Tensors& also) {
    return conv2_.forward_normed(rows, norm2_, also[1], elements, also[0]);
  };
  return over_bands_beside(std::move(y), conv2_.halo(), second, std::move(skip), {sums2});
}

ClipSize ResidualLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv1_.out_size(in);
  nn::BandNeed first = conv1_.normed_need(in);
  // With a shortcut x is freed as both halves are made of it; else it stays until the end.
  first.stored = shortcut_ == nullptr ? 2 * in.bytes() : std::max(in.bytes(), 2 * out.bytes());
  first.work += out.bytes();
  needs->push_back(first);
  nn::BandNeed second = conv2_.normed_need(out, out.bytes());
  second.kept += shortcut_ == nullptr ? 0 : out.bytes();
  second.work += out.bytes();
  needs->push_back(second);
  return out;
}

bool ResidualLayer::streams() const {
  return conv1_.streams() && conv2_.streams() && (shortcut_ == nullptr || shortcut_->streams());
}

std::optional<ClipWindow> ResidualLayer::stream(ClipWindow x, ClipStream& stream) const {
  if (!stream.sums_of(norm1_, x)) {
    return std::nullopt;
  }
  const ClipWindow y = conv1_.stream(x, stream, &norm1_);
  if (!stream.sums_of(norm2_, y)) {
    return std::nullopt;
  }
  if (shortcut_ != nullptr) {
    x = shortcut_->stream(x, stream);
  }
  return conv2_.stream(y, stream, &norm2_, &x);
}

int64_t ResidualLayer::rows_around(int64_t rows) const {
  return rows + conv1_.halo()[0] + conv2_.halo()[0];
}

int64_t ResidualLayer::remembered_bytes(const ClipSize& in) const {
  return conv1_.remembered_bytes(in) + conv2_.remembered_bytes(conv1_.out_size(in));
}

}  // namespace kinora::models
