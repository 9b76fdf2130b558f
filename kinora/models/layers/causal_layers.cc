#include "kinora/models/layers/causal_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kinora/ops/channel_norm.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kCausalDim = 2;   // of frames
constexpr int64_t kTimeKernel = 3;  // of what changes the number of frames
constexpr std::array<int64_t, 3> kPlaces = {3, 3, 3};

/// Of what changes the number of frames.
nn::Conv time_conv(int64_t in_channels, int64_t out_channels, int64_t stride) {
  return nn::Conv({.in_channels = in_channels,
                   .out_channels = out_channels,
                   .kernel = {kTimeKernel, 1, 1},
                   .stride = {stride, 1, 1}});
}

nn::ConvShape point(int64_t in_channels, int64_t out_channels, size_t dims) {
  return nn::ConvShape::same(in_channels, out_channels, 1, dims);
}

const nn::Bands* find(const ClipMemory* memory, const void* owner) {
  if (memory == nullptr) {
    return nullptr;
  }
  const auto found = memory->frames.find(owner);
  return found == memory->frames.end() ? nullptr : &found->second;
}

/// Has `owner` remember the last `count` frames of x, which come behind those that it remembers;
/// the first `left_out` frames of x are not remembered.
void remember(ClipMemory* memory, const void* owner, const nn::Bands& x, int64_t count,
              int64_t left_out = 0) {
  if (memory == nullptr) {
    return;
  }
  const nn::Bands* const earlier = find(memory, owner);
  nn::Bands kept = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    at::Tensor frames = x[i].narrow(kCausalDim, left_out, x[i].size(kCausalDim) - left_out);
    if (earlier != nullptr && frames.size(kCausalDim) < count) {
      frames = at::cat({(*earlier)[i], frames}, kCausalDim);
    }
    const int64_t number = std::min(count, frames.size(kCausalDim));
    kept.add(frames.narrow(kCausalDim, frames.size(kCausalDim) - number, number).clone());
  }
  memory->frames.insert_or_assign(owner, std::move(kept));
}

/// The rows of `earlier` that band i of x sees with `halo` rows around; nothing without it.
Tensors rows_of(const nn::Bands* earlier, const nn::Bands& x, size_t i,
                std::array<int64_t, 2> halo) {
  if (earlier == nullptr) {
    return {};
  }
  if (i == 0) {
    earlier->meet(halo);
  }
  return {earlier->rows(std::max<int64_t>(0, x.begin(i) - halo[0]),
                        std::min(earlier->num_rows(), x.end(i) + halo[1]))};
}

int64_t frame_bytes(const ClipSize& in) {
  return in.bytes() / in.frames;
}

/// clip_need() of a convolution behind a norm or nothing, whose input is joined to what is
/// remembered.
nn::BandNeed causal_need(const ClipSize& in, const ClipSize& out, const CausalConv& conv,
                         bool normed, int64_t beside = 0) {
  nn::BandNeed need =
      clip_need(in, out, conv.halo()[0], normed && !is_normed_in_one_pass(in), beside);
  need.work += in.bytes() + conv.remembered_bytes(in);
  return need;
}

/// The reverse: every value again in as many places. first: whether its first frame stays one.
at::Tensor repeat_resampled(const at::Tensor& x, const ResampledSumLayer::Resampling& its,
                            bool first) {
  const int64_t repeats = its.out_channels * its.frames * its.sides * its.sides / its.in_channels;
  const at::Tensor all = x.repeat_interleave(repeats, 1)
                             .view({x.size(0), its.out_channels, its.frames, its.sides, its.sides,
                                    x.size(2), x.size(3), x.size(4)})
                             .permute({0, 1, 5, 2, 6, 3, 7, 4})
                             .reshape({x.size(0), its.out_channels, x.size(2) * its.frames,
                                       x.size(3) * its.sides, x.size(4) * its.sides});
  const int64_t left_out = first ? its.frames - 1 : 0;
  return all.narrow(kCausalDim, left_out, all.size(kCausalDim) - left_out);
}

}  // namespace

at::Tensor mean_resampled(const at::Tensor& x, const ResampledSumLayer::Resampling& its) {
  const int64_t missing = x.size(kCausalDim) % its.frames == 0 ? 0 : its.frames - 1;
  const at::Tensor full =
      missing == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, 0, missing, 0});  // else it copies
  const int64_t frames = full.size(2) / its.frames;
  const int64_t rows = full.size(3) / its.sides;
  const int64_t columns = full.size(4) / its.sides;
  return full
      .reshape({x.size(0), x.size(1), frames, its.frames, rows, its.sides, columns, its.sides})
      .permute({0, 1, 3, 5, 7, 2, 4, 6})
      .reshape({x.size(0), its.out_channels, -1, frames, rows, columns})
      .mean(2);
}

ChannelRmsNorm::ChannelRmsNorm(int64_t channels, size_t dims) {
  gamma.shape.assign(dims + 1, 1);
  gamma.shape[0] = channels;
  gamma.init = nn::Init::one();
  add_parameter("gamma", gamma);
}

at::Tensor ChannelRmsNorm::forward(const at::Tensor& x) const {
  return ops::channel_rms(x, ops::with_gradient(gamma.value, gamma.grad), /*silu=*/false);
}

at::Tensor ChannelRmsNorm::forward_silu(const Tensors& clips, int64_t zeros) const {
  return ops::channel_rms_joined(clips, ops::with_gradient(gamma.value, gamma.grad), /*silu=*/true,
                                 zeros);
}

CausalConv::CausalConv(int64_t in_channels, int64_t out_channels,
                       const std::array<int64_t, 3>& size, Edges edges)
    : edges_(edges),
      conv_({.in_channels = in_channels,
             .out_channels = out_channels,
             .kernel = {size.begin(), size.end()}}) {}

nn::Bands CausalConv::forward(nn::Bands x, const ChannelRmsNorm* norm, nn::Bands* beside,
                              ClipMemory* memory) const {
  std::optional<nn::Bands> earlier;  // what is remembered changes before it is read
  if (const nn::Bands* const found = find(memory, this)) {
    earlier = *found;
  }
  remember(memory, this, x, conv_.shape().kernel[0] - 1);
  nn::Bands result = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    Tensors also = rows_of(earlier ? &*earlier : nullptr, x, i, halo());
    if (beside != nullptr) {
      also.push_back((*beside)[i]);
    }
    const auto layer = [this, norm, sees_earlier = earlier.has_value(), adds = beside != nullptr](
                           const nn::Rows& rows, const Tensors& others) {
      const std::vector<int64_t>& size = conv_.shape().kernel;
      Tensors clips;
      int64_t missing = size[0] - 1;
      if (sees_earlier) {
        clips.push_back(others[0]);
        missing -= others[0].size(kCausalDim);
      }
      if (edges_ == Edges::kRepeat && missing > 0) {
        clips.insert(clips.begin(), (sees_earlier ? others[0] : rows.x)
                                        .narrow(kCausalDim, 0, 1)
                                        .expand({-1, -1, missing, -1, -1}));
        missing = 0;
      }
      clips.push_back(rows.x);
      at::Tensor in;
      if (norm != nullptr) {
        in = norm->forward_silu(clips, missing);
        missing = 0;
      } else {
        in = clips.size() == 1 ? rows.x : at::cat(clips, kCausalDim);
      }
      const std::vector<nn::Padding> zeros = {
          {missing, 0}, rows.missing, {size[2] / 2, size[2] / 2}};
      return adds ? conv_.forward_plus(in, zeros, others.back()) : conv_.forward(in, zeros);
    };
    result.add(x.computed(i, halo(), layer, also));
    x.release(i, halo());
    if (beside != nullptr) {
      beside->release(i, {0, 0});
    }
  }
  return result;
}

std::array<int64_t, 2> CausalConv::halo() const {
  const int64_t around = conv_.shape().kernel[1] / 2;
  return {around, around};
}

ClipSize CausalConv::out_size(const ClipSize& in) const {
  ClipSize out = in;
  out.channels = conv_.shape().out_channels;
  return out;
}

int64_t CausalConv::remembered_bytes(const ClipSize& in) const {
  return (conv_.shape().kernel[0] - 1) * frame_bytes(in);
}

nn::BandNeed CausalConv::need(const ClipSize& in, int64_t beside) const {
  return causal_need(in, out_size(in), *this, /*normed=*/false, beside);
}

CausalConvLayer::CausalConvLayer(int64_t in_channels, int64_t out_channels, Edges edges)
    : conv_(in_channels, out_channels, kPlaces, edges) {
  add_child("", conv_.parameters());
}

nn::Bands CausalConvLayer::run(nn::Bands x, ClipMemory* memory) const {
  return conv_.forward(std::move(x), nullptr, nullptr, memory);
}

ClipSize CausalConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  needs->push_back(conv_.need(in));
  return conv_.out_size(in);
}

int64_t CausalConvLayer::remembered_bytes(const ClipSize& in) const {
  return conv_.remembered_bytes(in);
}

CausalNormConvLayer::CausalNormConvLayer(int64_t in_channels, int64_t out_channels)
    : norm_(in_channels, kPlaces.size()), conv_(in_channels, out_channels, kPlaces) {
  add_child("norm_out", norm_);
  add_child("conv_out", conv_.parameters());
}

nn::Bands CausalNormConvLayer::run(nn::Bands x, ClipMemory* memory) const {
  return conv_.forward(std::move(x), &norm_, nullptr, memory);
}

ClipSize CausalNormConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv_.out_size(in);
  needs->push_back(causal_need(in, out, conv_, true));
  return out;
}

int64_t CausalNormConvLayer::remembered_bytes(const ClipSize& in) const {
  return conv_.remembered_bytes(in);
}

CausalResidualLayer::CausalResidualLayer(int64_t in_channels, int64_t out_channels)
    : norm1_(in_channels, kPlaces.size()),
      conv1_(in_channels, out_channels, kPlaces),
      norm2_(out_channels, kPlaces.size()),
      conv2_(out_channels, out_channels, kPlaces) {
  add_child("norm1", norm1_);
  add_child("conv1", conv1_.parameters());
  add_child("norm2", norm2_);
  add_child("conv2", conv2_.parameters());
  if (in_channels != out_channels) {
    shortcut_ = std::make_unique<nn::Conv>(point(in_channels, out_channels, kPlaces.size()));
    add_child("conv_shortcut", *shortcut_);
  }
}

nn::Bands CausalResidualLayer::run(nn::Bands x, ClipMemory* memory) const {
  nn::Bands skip = x.like();
  if (shortcut_ == nullptr) {
    skip = x;
  } else {
    for (size_t i = 0; i < x.size(); ++i) {
      skip.add(x.computed(i, {0, 0}, [this](const nn::Rows& rows, const Tensors& /*also*/) {
        return shortcut_->forward(rows.x);
      }));
    }
  }
  nn::Bands y = conv1_.forward(std::move(x), &norm1_, nullptr, memory);
  return conv2_.forward(std::move(y), &norm2_, &skip, memory);
}

ClipSize CausalResidualLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv1_.out_size(in);
  // x, or what the shortcut makes of it, stays until the end.
  nn::BandNeed first = causal_need(in, out, conv1_, true);
  first.stored = in.bytes() + (shortcut_ == nullptr ? 0 : out.bytes());
  first.work += out.bytes();
  needs->push_back(first);
  nn::BandNeed second = causal_need(out, out, conv2_, true, out.bytes());
  second.kept += shortcut_ == nullptr ? 0 : out.bytes();
  second.work += out.bytes();
  needs->push_back(second);
  return out;
}

int64_t CausalResidualLayer::remembered_bytes(const ClipSize& in) const {
  return conv1_.remembered_bytes(in) + conv2_.remembered_bytes(conv1_.out_size(in));
}

FrameHalvingLayer::FrameHalvingLayer(int64_t channels) : conv_(time_conv(channels, channels, 2)) {
  add_child("time_conv", conv_);
}

nn::Bands FrameHalvingLayer::run(nn::Bands x, ClipMemory* memory) const {
  std::optional<nn::Bands> earlier;
  if (const nn::Bands* const found = find(memory, this)) {
    earlier = *found;
  }
  remember(memory, this, x, 1);
  nn::Bands result = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    const auto layer = [this](const nn::Rows& rows, const Tensors& others) {
      if (!others.empty()) {
        return conv_.forward(at::cat({others[0], rows.x}, kCausalDim));
      }
      const at::Tensor first = rows.x.narrow(kCausalDim, 0, 1);
      return rows.x.size(kCausalDim) == 1 ? first
                                          : at::cat({first, conv_.forward(rows.x)}, kCausalDim);
    };
    result.add(x.computed(i, {0, 0}, layer, rows_of(earlier ? &*earlier : nullptr, x, i, {0, 0})));
    x.release(i, {0, 0});
  }
  return result;
}

ClipSize FrameHalvingLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = in;
  out.frames = (in.frames + 1) / 2;
  needs->push_back(clip_need(in, out, 0, false));
  needs->back().work += out.bytes();  // with the first frame before it
  return out;
}

int64_t FrameHalvingLayer::remembered_bytes(const ClipSize& in) const {
  return frame_bytes(in);
}

LaterFramesDoublingLayer::LaterFramesDoublingLayer(int64_t channels)
    : conv_(time_conv(channels, 2 * channels, 1)) {
  add_child("time_conv", conv_);
}

nn::Bands LaterFramesDoublingLayer::run(nn::Bands x, ClipMemory* memory) const {
  const int64_t first = memory == nullptr || memory->begins ? 1 : 0;
  std::optional<nn::Bands> earlier;
  if (const nn::Bands* const found = find(memory, this)) {
    earlier = *found;
  }
  if (x[0].size(kCausalDim) > first) {
    remember(memory, this, x, kTimeKernel - 1, first);
  }
  nn::Bands result = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    const auto layer = [this, first](const nn::Rows& rows, const Tensors& others) {
      const int64_t later = rows.x.size(kCausalDim) - first;
      if (later == 0) {
        return rows.x;
      }
      at::Tensor in = rows.x.narrow(kCausalDim, first, later);
      int64_t missing = kTimeKernel - 1;
      if (!others.empty()) {
        missing -= others[0].size(kCausalDim);
        in = at::cat({others[0], in}, kCausalDim);
      }
      const at::Tensor y = conv_.forward(in, {{missing, 0}, {0, 0}, {0, 0}});  // [B, 2 C, T, H, W]
      const at::Tensor doubled =
          at::stack(y.chunk(2, 1), kCausalDim + 1).flatten(kCausalDim, kCausalDim + 1);
      return first == 0 ? doubled : at::cat({rows.x.narrow(kCausalDim, 0, 1), doubled}, kCausalDim);
    };
    result.add(x.computed(i, {0, 0}, layer, rows_of(earlier ? &*earlier : nullptr, x, i, {0, 0})));
    x.release(i, {0, 0});
  }
  return result;
}

ClipSize LaterFramesDoublingLayer::plan(const ClipSize& in,
                                        std::vector<nn::BandNeed>* needs) const {
  ClipSize out = in;
  out.frames = 2 * in.frames;
  needs->push_back(clip_need(in, out, 0, false));
  needs->back().work += 2 * out.bytes();  // in their order, and with the first frame before them
  return out;
}

int64_t LaterFramesDoublingLayer::remembered_bytes(const ClipSize& in) const {
  return (kTimeKernel - 1) * frame_bytes(in);
}

nn::Bands ResampledSumLayer::run(nn::Bands x, ClipMemory* memory) const {
  const bool begins = memory == nullptr || memory->begins;
  nn::Bands skip = x;
  nn::Bands y = std::move(x);
  for (const auto& layer : layers_) {
    y = memory == nullptr ? layer->forward(std::move(y))
                          : layer->forward_next(std::move(y), *memory);
  }
  nn::Bands result = y.like();
  for (size_t i = 0; i < y.size(); ++i) {
    const auto sum = [its = resampling_, begins](const nn::Rows& rows, const Tensors& also) {
      return rows.x + (its.way == Way::kDown ? mean_resampled(also[0], its)
                                             : repeat_resampled(also[0], its, begins));
    };
    result.add(y.computed(i, {0, 0}, sum, {skip[i]}));
    y.release(i, {0, 0});
    skip.release(i, {0, 0});
  }
  return result;
}

ClipSize ResampledSumLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const size_t before = needs->size();
  ClipSize out = in;
  for (const auto& layer : layers_) {
    out = layer->plan(out, needs);
  }
  for (size_t i = before; i < needs->size(); ++i) {
    (*needs)[i].stored += in.bytes();
  }
  // The input with zeros before it and in another order, what it becomes, and copies of that.
  needs->push_back(clip_need(out, out, 0, false, in.bytes()));
  needs->back().kept += in.bytes();
  needs->back().work += 2 * in.bytes() + 3 * out.bytes();
  return out;
}

int64_t ResampledSumLayer::remembered_bytes(const ClipSize& in) const {
  std::vector<nn::BandNeed> ignored;
  ClipSize size = in;
  int64_t bytes = 0;
  for (const auto& layer : layers_) {
    bytes += layer->remembered_bytes(size);
    size = layer->plan(size, &ignored);
  }
  return bytes;
}

OneFrameAttention::OneFrameAttention(int64_t channels)
    : norm_(channels, 2),
      to_qkv_(point(channels, 3 * channels, 2)),
      proj_(point(channels, channels, 2)) {
  add_child("norm", norm_);
  add_child("to_qkv", to_qkv_);
  add_child("proj", proj_);
}

nn::Bands OneFrameAttention::forward(nn::Bands x) const {
  return nn::over_whole(x, [this](const at::Tensor& all) { return whole(all); });
}

at::Tensor OneFrameAttention::whole(const at::Tensor& x) const {
  const at::Tensor frames = x.transpose(1, 2).flatten(0, 1);  // [B T, C, H, W]
  const Tensors parts = to_qkv_.forward(norm_.forward(frames))
                            .flatten(2)
                            .transpose(1, 2)
                            .unsqueeze(1)  // [B T, 1, H W, 3 C]
                            .chunk(3, -1);
  const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2])
                              .squeeze(1)
                              .transpose(1, 2)
                              .reshape(frames.sizes());
  return x + proj_.forward(seen).unflatten(0, {x.size(0), x.size(kCausalDim)}).transpose(1, 2);
}

ClipSize OneFrameAttention::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  // x in bands and joined, normed and its fp32 copies, q, k, v, what attention sees, its
  // projection, the result.
  constexpr int64_t kCopies = 11;
  needs->push_back(whole_need({.rows = 1, .row_bytes = in.bytes()}, kCopies));
  needs->back().kept = in.bytes();
  return in;
}

}  // namespace kinora::models
