#include "kinora/models/layers/latent_norm_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kPieceFramesDim = 2;
constexpr int64_t kPieceRowsDim = 3;
constexpr int64_t kPieceColumnsDim = 4;
constexpr std::array<int64_t, 3> kPieceKernel = {3, 3, 3};

/// Which of `of` each of places [from, to) of `count` lies in.
at::Tensor nearest(int64_t from, int64_t to, int64_t count, int64_t of,
                   const at::TensorOptions& options) {
  return at::arange(from, to, options.dtype(at::kLong)).mul(of).div(count, "floor");
}

/// The same of frames of a piece, of which the first may be by itself.
at::Tensor nearest_frames(int64_t count, int64_t of, const at::TensorOptions& options) {
  if (count == 1 || count % 2 == 0) {
    return nearest(0, count, count, of, options);
  }
  return at::cat({at::zeros({1}, options.dtype(at::kLong)),
                  nearest(0, count - 1, count - 1, of - 1, options) + 1});
}

nn::ConvShape one_place(int64_t in_channels, int64_t out_channels) {
  return nn::ConvShape::same(in_channels, out_channels, 1, 3);
}

}  // namespace

LatentNorm::LatentNorm(int64_t channels, const LatentNormOptions& options)
    : norm_(options.groups, channels, options.epsilon) {
  if (options.latent_channels == 0) {
    add_child("", norm_);
    return;
  }
  scale_ = std::make_unique<nn::Conv>(one_place(options.latent_channels, channels));
  shift_ = std::make_unique<nn::Conv>(one_place(options.latent_channels, channels));
  add_child("norm_layer", norm_);
  add_child("conv_y.conv", *scale_);
  add_child("conv_b.conv", *shift_);
}

at::Tensor LatentNorm::at_places(const nn::Conv& conv, const at::Tensor& latents,
                                 const Tensors& places) const {
  // Of the latents, which are few.
  return conv.forward(latents)
      .index_select(kPieceFramesDim, places[0])
      .index_select(kPieceRowsDim, places[1])
      .index_select(kPieceColumnsDim, places[2]);
}

nn::Bands LatentNorm::forward_silu(nn::Bands x, const ClipMemory* memory) const {
  KINORA_CHECK(scale_ == nullptr || memory != nullptr, kInternal,
               "[latent_norm] it is of clips that pass in pieces");
  const at::Tensor sums = nn::band_sums(x, norm_);
  const int64_t elements = x.group_elements(norm_.groups());
  const bool overwrites = x.may_overwrite();
  nn::Bands y = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    Tensors also = {sums};
    int64_t begin = 0;
    int64_t rows_each = 1;
    if (scale_ != nullptr) {
      rows_each = x.num_rows() / memory->piece.size(kPieceRowsDim);
      const int64_t first = x.begin(i) / rows_each;
      const int64_t end = ceil_div(x.end(i), rows_each);
      also.push_back(memory->piece.narrow(kPieceRowsDim, first, end - first));
      begin = x.begin(i) - first * rows_each;
    }
    const auto layer = [this, elements, overwrites, begin, rows_each](const nn::Rows& rows,
                                                                      const Tensors& read) {
      if (scale_ == nullptr) {
        return norm_.apply_silu(rows.x, read[0], elements, overwrites);
      }
      const at::Tensor& latents = read[1];
      const at::TensorOptions options = rows.x.options().requires_grad(false);
      const int64_t columns = rows.x.size(kPieceColumnsDim);
      const Tensors places = {
          nearest_frames(rows.x.size(kPieceFramesDim), latents.size(kPieceFramesDim), options),
          nearest(begin, begin + rows.x.size(kPieceRowsDim), rows_each, 1, options),
          nearest(0, columns, columns, latents.size(kPieceColumnsDim), options)};
      return at::silu(at::addcmul(at_places(*shift_, latents, places),
                                  norm_.apply(rows.x, read[0], elements),
                                  at_places(*scale_, latents, places)));
    };
    y.add(x.computed(i, {0, 0}, layer, also));
    x.release(i, {0, 0});
  }
  return y;
}

nn::BandNeed LatentNorm::need(const ClipSize& in, int64_t beside) const {
  nn::BandNeed need = clip_need(in, in, 0, /*normed=*/true, beside);
  need.work += scale_ == nullptr ? 0 : 4 * in.bytes();  // scale, shift, their sum with it
  return need;
}

LatentNormConvLayer::LatentNormConvLayer(int64_t in_channels, int64_t out_channels,
                                         const LatentNormOptions& options)
    : norm_(in_channels, options), conv_(in_channels, out_channels, kPieceKernel, Edges::kRepeat) {
  add_child("norm_out", norm_);
  add_child("conv_out.conv", conv_.parameters());
}

nn::Bands LatentNormConvLayer::run(nn::Bands x, ClipMemory* memory) const {
  return conv_.forward(norm_.forward_silu(std::move(x), memory), nullptr, nullptr, memory);
}

ClipSize LatentNormConvLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  needs->push_back(norm_.need(in));
  needs->push_back(conv_.need(in));
  return conv_.out_size(in);
}

int64_t LatentNormConvLayer::remembered_bytes(const ClipSize& in) const {
  return conv_.remembered_bytes(in);
}

LatentNormResidualLayer::LatentNormResidualLayer(int64_t in_channels, int64_t out_channels,
                                                 const LatentNormOptions& options)
    : norm1_(in_channels, options),
      conv1_(in_channels, out_channels, kPieceKernel, Edges::kRepeat),
      norm2_(out_channels, options),
      conv2_(out_channels, out_channels, kPieceKernel, Edges::kRepeat) {
  add_child("norm1", norm1_);
  add_child("conv1.conv", conv1_.parameters());
  add_child("norm2", norm2_);
  add_child("conv2.conv", conv2_.parameters());
  if (in_channels != out_channels) {
    shortcut_ = std::make_unique<nn::Conv>(one_place(in_channels, out_channels));
    add_child("conv_shortcut", *shortcut_);
  }
}

nn::Bands LatentNormResidualLayer::run(nn::Bands x, ClipMemory* memory) const {
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
  nn::Bands y = conv1_.forward(norm1_.forward_silu(std::move(x), memory), nullptr, nullptr, memory);
  return conv2_.forward(norm2_.forward_silu(std::move(y), memory), nullptr, &skip, memory);
}

ClipSize LatentNormResidualLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  const ClipSize out = conv1_.out_size(in);
  // x, or what the shortcut makes of it, stays until the end.
  const int64_t skip = shortcut_ == nullptr ? in.bytes() : out.bytes();
  needs->push_back(norm1_.need(in, skip));
  needs->push_back(conv1_.need(in, skip));
  needs->push_back(norm2_.need(out, skip));
  nn::BandNeed last = conv2_.need(out, skip);
  last.kept += shortcut_ == nullptr ? 0 : out.bytes();
  last.work += out.bytes();
  needs->push_back(last);
  return out;
}

int64_t LatentNormResidualLayer::remembered_bytes(const ClipSize& in) const {
  return conv1_.remembered_bytes(in) + conv2_.remembered_bytes(conv1_.out_size(in));
}

nn::Bands FrameMeansLayer::forward(nn::Bands x) const {
  return over_bands(std::move(x), {0, 0}, [](const nn::Rows& rows, const Tensors& /*also*/) {
    const int64_t frames = rows.x.size(kPieceFramesDim);
    const int64_t alone = frames % 2;
    const at::Tensor means = rows.x.narrow(kPieceFramesDim, alone, frames - alone)
                                 .unflatten(kPieceFramesDim, {(frames - alone) / 2, 2})
                                 .mean(kPieceFramesDim + 1);
    return alone == 0 ? means
                      : at::cat({rows.x.narrow(kPieceFramesDim, 0, 1), means}, kPieceFramesDim);
  });
}

ClipSize FrameMeansLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = in;
  out.frames = (in.frames + 1) / 2;
  needs->push_back(clip_need(in, out, 0, false));
  return out;
}

nn::Bands FrameRepeatsLayer::forward(nn::Bands x) const {
  return over_bands(std::move(x), {0, 0}, [](const nn::Rows& rows, const Tensors& /*also*/) {
    const int64_t frames = rows.x.size(kPieceFramesDim);
    const int64_t alone = frames % 2;
    const at::Tensor repeated =
        rows.x.narrow(kPieceFramesDim, alone, frames - alone).repeat_interleave(2, kPieceFramesDim);
    return alone == 0 ? repeated
                      : at::cat({rows.x.narrow(kPieceFramesDim, 0, 1), repeated}, kPieceFramesDim);
  });
}

ClipSize FrameRepeatsLayer::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  ClipSize out = in;
  out.frames = 2 * in.frames - in.frames % 2;
  needs->push_back(clip_need(in, out, 0, false));
  return out;
}

}  // namespace kinora::models
