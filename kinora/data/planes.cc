#include "kinora/data/planes.h"

#include "kinora/kernels/simd.h"

namespace kinora::data {
namespace {

struct Forwards {
  [[gnu::always_inline]] static void run(const uint8_t* pixels, int64_t width, uint8_t* red,
                                         uint8_t* green, uint8_t* blue) {
    for (int64_t x = 0; x < width; ++x) {
      red[x] = pixels[3 * x];
      green[x] = pixels[3 * x + 1];
      blue[x] = pixels[3 * x + 2];
    }
  }
};

struct Backwards {
  [[gnu::always_inline]] static void run(const uint8_t* pixels, int64_t width, uint8_t* red,
                                         uint8_t* green, uint8_t* blue) {
    for (int64_t x = 0; x < width; ++x) {
      red[width - 1 - x] = pixels[3 * x];
      green[width - 1 - x] = pixels[3 * x + 1];
      blue[width - 1 - x] = pixels[3 * x + 2];
    }
  }
};

}  // namespace

void write_planes(const uint8_t* pixels, int64_t width, bool mirrored, int64_t plane,
                  uint8_t* out) {
  if (mirrored) {
    kernels::run_simd<Backwards>(pixels, width, out, out + plane, out + 2 * plane);
  } else {
    kernels::run_simd<Forwards>(pixels, width, out, out + plane, out + 2 * plane);
  }
}

}  // namespace kinora::data
