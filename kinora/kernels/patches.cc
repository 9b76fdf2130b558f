#include "kinora/kernels/patches.h"

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

/// body(index in tokens, index in image) for every element, tokens in order.
template <typename Body>
void for_each_element(const Patches& patches, const Body& body) {
  const int64_t p = patches.patch;
  int64_t token_index = 0;
  for (int64_t b = 0; b < patches.batch; ++b) {
    for (int64_t top = 0; top < patches.height; top += p) {
      for (int64_t left = 0; left < patches.width; left += p) {
        for (int64_t e = 0; e < patches.channels * p * p; ++e) {
          const bool first = patches.order == PatchOrder::kChannelFirst;
          const int64_t channel = first ? e / (p * p) : e % patches.channels;
          const int64_t within = first ? e % (p * p) : e / patches.channels;
          const int64_t row = top + within / p;
          const int64_t column = left + within % p;
          body(token_index++,
               ((b * patches.channels + channel) * patches.height + row) * patches.width + column);
        }
      }
    }
  }
}

}  // namespace

void patchify(const Patches& patches, const float* image, void* tokens) {
  for_each_element(patches, [&](int64_t token_index, int64_t image_index) {
    store_element(tokens, token_index, patches.token_type, image[image_index]);
  });
}

void unpatchify(const Patches& patches, const void* tokens, float* image) {
  for_each_element(patches, [&](int64_t token_index, int64_t image_index) {
    image[image_index] = load_element(tokens, token_index, patches.token_type);
  });
}

}  // namespace kinora::kernels
