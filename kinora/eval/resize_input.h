#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::eval {

/// How published code brings images to the size of the Inception: the figures differ.
enum class InputResize : uint8_t {
  kClean,       ///< clean-fid: bicubic with antialiasing, as Pillow does it on floats
  kPytorch,     ///< pytorch-fid: bilinear between pixel centres, without antialiasing
  kTensorflow,  ///< ADM, torch-fidelity, the first FID: bilinear between corners, TensorFlow 1
};

/// What pixel values are mapped to.
enum class PixelRange : uint8_t {
  kBytes,   ///< 0 to 255
  kUnit,    ///< 0 to 1
  kSigned,  ///< -1 to 1
};

/// pixels: uint8 [..., 3, H, W]. Returns float32 [..., 3, size, size] in 0 to 255, not rounded.
[[nodiscard]] at::Tensor resized(const at::Tensor& pixels, int64_t size, InputResize resize);

/// float32 pixels from 0 to 255 in that range.
[[nodiscard]] at::Tensor in_range(const at::Tensor& pixels, PixelRange range);

}  // namespace kinora::eval
