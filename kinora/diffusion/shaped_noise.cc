#include "kinora/diffusion/shaped_noise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kinora::diffusion {
namespace {

struct Level {
  int64_t height = 0;
  int64_t width = 0;
};

/// Sides of the levels above the noise itself.
std::vector<Level> levels_of(int64_t height, int64_t width) {
  std::vector<Level> levels;
  while (height > 1 && width > 1) {
    height /= 2;
    width /= 2;
    levels.push_back({height, width});
  }
  return levels;
}

/// Mean over the `to` places of the sum of squares of the weights by which they are interpolated
/// between `from` places: the variance of stretched white noise along a side.
double stretched_variance(int64_t from, int64_t to) {
  double sum = 0.0;
  for (int64_t i = 0; i < to; ++i) {
    const double place = std::max(
        0.0,
        (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5);
    const double second = place - std::floor(place);
    const bool is_last = static_cast<int64_t>(place) >= from - 1;
    sum += is_last ? 1.0 : second * second + (1.0 - second) * (1.0 - second);
  }
  return sum / static_cast<double>(to);
}

at::Tensor with_pyramid(const at::Tensor& white, double discount, const at::Tensor& sample_index,
                        uint64_t seed, const ops::RandomStep& step) {
  const int64_t height = white.size(-2);
  const int64_t width = white.size(-1);
  const int64_t planes = white[0].numel() / (height * width);  // channels, of each frame
  const std::vector<Level> levels = levels_of(height, width);
  int64_t count = 0;
  for (const Level& level : levels) {
    count += planes * level.height * level.width;
  }
  if (count == 0) {
    return white;
  }
  const at::Tensor drawn = ops::random_normal({white.size(0), count}, sample_index, seed, step,
                                              RandomPurpose::kPyramidNoise, white.device());
  at::Tensor sum = white;
  double variance = 1.0;
  double weight = 1.0;
  int64_t begin = 0;
  for (const Level& level : levels) {
    const int64_t size = planes * level.height * level.width;
    weight *= discount;
    const at::Tensor own =
        drawn.narrow(1, begin, size).reshape({white.size(0), planes, level.height, level.width});
    sum = sum + weight * at::upsample_bilinear2d(own, {height, width}, /*align_corners=*/false)
                             .view(white.sizes());
    variance += weight * weight * stretched_variance(level.height, height) *
                stretched_variance(level.width, width);
    begin += size;
  }
  return sum / std::sqrt(variance);
}

}  // namespace

at::Tensor shaped_noise(const at::Tensor& white, const NoiseShape& shape,
                        const at::Tensor& sample_index, uint64_t seed,
                        const ops::RandomStep& step) {
  at::Tensor noise = white;
  if (shape.pyramid > 0.0) {
    noise = with_pyramid(noise, shape.pyramid, sample_index, seed, step);
  }
  if (shape.offset > 0.0) {
    std::vector<int64_t> per_channel(static_cast<size_t>(white.dim()), 1);
    per_channel[0] = white.size(0);
    per_channel[1] = white.size(1);
    noise = noise + shape.offset * ops::random_normal(per_channel, sample_index, seed, step,
                                                      RandomPurpose::kNoiseOffset, white.device());
  }
  return noise;
}

}  // namespace kinora::diffusion
