#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// Images as rows of patches and back: tokens [batch, rows x columns of patches, C P P] of images
/// [batch, C, H, W], both contiguous. Either direction is the other's gradient.
///
/// This header has the arguments and the CPU reference; kernels/cuda/patches.h the launchers.
namespace kinora::kernels {

/// The order of a token's elements.
enum class PatchOrder : uint8_t {
  kChannelFirst,  ///< [C, P, P], as a convolution's weight: DiT's patch embedding
  kChannelLast,   ///< [P, P, C]: what DiT's final layer writes
};

struct Patches {
  PatchOrder order = PatchOrder::kChannelFirst;
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t height = 0;              ///< a multiple of patch
  int64_t width = 0;               ///< a multiple of patch
  int64_t patch = 1;               ///< P
  DType token_type = DType::kF32;  ///< kF32, kBF16, kF16
};

/// tokens = the patches of image (fp32), rounded to nearest even. The CPU reference.
void patchify(const Patches& patches, const float* image, void* tokens);

/// image (fp32) = the image of tokens. The CPU reference.
void unpatchify(const Patches& patches, const void* tokens, float* image);

}  // namespace kinora::kernels
