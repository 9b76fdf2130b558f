#include "kinora/eval/resize_input.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <vector>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

/// Along `dim`, as TensorFlow 1 has it without align_corners: place i is read at i * in / out.
at::Tensor between_corners(const at::Tensor& x, int64_t dim, int64_t size) {
  const int64_t last = x.size(dim) - 1;
  // In float, as TensorFlow computes it.
  const float scale = static_cast<float>(x.size(dim)) / static_cast<float>(size);
  const at::Tensor place = at::arange(size, at::kFloat) * scale;
  const at::Tensor low = place.to(at::kLong);
  const at::Tensor high = (low + 1).clamp_max(last);
  const at::Tensor weight = place - low.to(at::kFloat);
  const at::Tensor a = x.index_select(dim, low);
  const at::Tensor b = x.index_select(dim, high);
  return a + (b - a) * (dim == x.dim() - 1 ? weight : weight.unsqueeze(1));
}

}  // namespace

at::Tensor resized(const at::Tensor& pixels, int64_t size, InputResize resize) {
  KINORA_CHECK(pixels.dim() >= 3 && pixels.size(-3) == 3 && pixels.numel() > 0, kShape,
               "[features] images must have shape [3, H, W], got ", pixels.sizes());
  const at::Tensor images =
      pixels.to(at::kFloat).reshape({-1, 3, pixels.size(-2), pixels.size(-1)});
  at::Tensor result;
  switch (resize) {
    case InputResize::kClean:
      // Bicubic overshoots.
      result = at::_upsample_bicubic2d_aa(images, {size, size}, /*align_corners=*/false)
                   .clamp_(0.0, 255.0);
      break;
    case InputResize::kPytorch:
      result = at::upsample_bilinear2d(images, {size, size}, /*align_corners=*/false);
      break;
    case InputResize::kTensorflow:
      result = between_corners(between_corners(images, 3, size), 2, size);
      break;
  }
  std::vector<int64_t> shape = pixels.sizes().vec();
  shape.end()[-1] = size;
  shape.end()[-2] = size;
  return result.reshape(shape);
}

at::Tensor in_range(const at::Tensor& pixels, PixelRange range) {
  switch (range) {
    case PixelRange::kBytes:
      return pixels;
    case PixelRange::kUnit:
      return pixels / 255.0;
    case PixelRange::kSigned:
      return pixels / 127.5 - 1.0;
  }
  KINORA_UNREACHABLE("[features] unknown range");
}

}  // namespace kinora::eval
