// Images as rows of patches and back, see kernels/patches.h. A thread takes eight neighbours of a
// token, one or two vectors of memory, and finds their places in the image one after the other:
// the token's order is three digits, each with its size and its distance in the image, so that one
// code has both orders. The image is read or written an element at a time; neighbouring threads
// have neighbouring patches, whose elements share the cache lines (DiT's latents: 64 to 128 bytes
// of a line in a warp). Bound by memory; both arrays together are a few megabytes.
//
// Limits: a sample has less than 2^31 elements.
#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/patches.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;

/// Where the elements of a token lie. Digit 0 runs fastest.
struct Layout {
  int64_t total;        // elements of all tokens
  int64_t sample_size;  // C H W
  int token_size;       // C P P
  int grid_columns;     // patches side by side
  int patch;
  int image_width;
  int size[2];    // of digits 0 and 1
  int stride[3];  // in the image, of one step of a digit
};

template <typename T, bool kToTokens>
__global__ void __launch_bounds__(kThreads)
    patches_kernel(const Layout layout, bool aligned, float* image, T* tokens) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (first >= layout.total) {
    return;
  }
  const int count = static_cast<int>(min(layout.total - first, int64_t{kWidth}));
  const bool whole = aligned && count == kWidth;
  float values[kWidth] = {};
  if constexpr (!kToTokens) {
    load_floats<T, kWidth>(tokens, first, count, whole, values);
  }

  const int64_t sample = first / layout.sample_size;
  const int within_sample = static_cast<int>(first - sample * layout.sample_size);
  int token = within_sample / layout.token_size;
  const int element = within_sample - token * layout.token_size;
  int digit0 = element % layout.size[0];
  int digit1 = element / layout.size[0] % layout.size[1];
  int digit2 = element / layout.size[0] / layout.size[1];
  int left = layout.token_size - element;  // elements of this token
  float* corner = nullptr;
  const auto find_corner = [&](int64_t of_sample) {
    const int row = token / layout.grid_columns;
    const int column = token - row * layout.grid_columns;
    corner = image + of_sample * layout.sample_size +
             static_cast<int64_t>(row) * layout.patch * layout.image_width + column * layout.patch;
  };
  find_corner(sample);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i < count) {
      float* place = corner + static_cast<int64_t>(digit2) * layout.stride[2] +
                     digit1 * layout.stride[1] + digit0 * layout.stride[0];
      if constexpr (kToTokens) {
        values[i] = *place;
      } else {
        *place = values[i];
      }
      if (--left == 0) {  // the next element is another token's, or another sample's
        const int64_t next_sample = (first + i + 1) / layout.sample_size;
        token = static_cast<int>((first + i + 1 - next_sample * layout.sample_size) /
                                 layout.token_size);
        find_corner(next_sample);
        digit0 = 0;
        digit1 = 0;
        digit2 = 0;
        left = layout.token_size;
      } else if (++digit0 == layout.size[0]) {
        digit0 = 0;
        if (++digit1 == layout.size[1]) {
          digit1 = 0;
          ++digit2;
        }
      }
    }
  }
  if constexpr (kToTokens) {
    store_floats<T, kWidth>(tokens, first, count, whole, values);
  }
}

template <bool kToTokens>
cudaError_t launch(const Patches& patches, float* image, void* tokens, cudaStream_t stream) {
  if (patches.patch <= 0 || patches.height % patches.patch != 0 ||
      patches.width % patches.patch != 0) {
    return cudaErrorInvalidValue;
  }
  const int64_t sample_size = patches.channels * patches.height * patches.width;
  const int64_t total = patches.batch * sample_size;
  if (total == 0) {
    return cudaSuccess;
  }
  if (sample_size > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  const auto p = static_cast<int>(patches.patch);
  const auto channels = static_cast<int>(patches.channels);
  const auto width = static_cast<int>(patches.width);
  const auto plane = static_cast<int>(patches.height * patches.width);
  Layout layout = {total, sample_size, channels * p * p, width / p, p, width, {}, {}};
  if (patches.order == PatchOrder::kChannelFirst) {
    layout.size[0] = p;
    layout.size[1] = p;
    layout.stride[0] = 1;
    layout.stride[1] = width;
    layout.stride[2] = plane;
  } else {
    layout.size[0] = channels;
    layout.size[1] = p;
    layout.stride[0] = plane;
    layout.stride[1] = 1;
    layout.stride[2] = width;
  }
  const auto blocks = static_cast<unsigned>(ceil_div(total, int64_t{kThreads} * kWidth));
  return with_type(patches.token_type, [&](auto example) {
    using T = decltype(example);
    patches_kernel<T, kToTokens><<<blocks, kThreads, 0, stream>>>(layout, is_aligned_to<16>(tokens),
                                                                  image, static_cast<T*>(tokens));
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t patchify(const Patches& patches, const float* image, void* tokens,
                     cudaStream_t stream) {
  return launch<true>(patches, const_cast<float*>(image), tokens, stream);
}

cudaError_t unpatchify(const Patches& patches, const void* tokens, float* image,
                       cudaStream_t stream) {
  return launch<false>(patches, image, const_cast<void*>(tokens), stream);
}

}  // namespace kinora::kernels::cuda
