#include "kinora/diffusion/brownian.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace kinora::diffusion {
namespace {

constexpr int kDepth = 24;
constexpr int64_t kPlaces = int64_t{1} << kDepth;  // of the path

/// Adds W at `place`, times `sign`, of a path on [0, 1]: number 0 is that of its end, and 2^l + j
/// that of the middle of the j-th of 2^l parts.
void add_value(int64_t place, double sign, std::map<uint32_t, double>& weights) {
  weights[0] += sign * static_cast<double>(place) / static_cast<double>(kPlaces);
  for (int l = 0; l < kDepth; ++l) {
    const int64_t width = kPlaces >> l;
    const int64_t within = place % width;
    if (within == 0) {
      return;  // an end of this part, and of all smaller ones
    }
    // The middle of a part deviates from the mean of its ends by half of the root of its width;
    // places between share in that linearly.
    const double share =
        2.0 * static_cast<double>(std::min(within, width - within)) / static_cast<double>(width);
    const auto number = static_cast<uint32_t>((int64_t{1} << l) + place / width);
    weights[number] += sign * share * 0.5 * std::sqrt(std::ldexp(1.0, -l));
  }
}

}  // namespace

std::vector<NoiseShare> brownian_increment(double from, double to, double end) {
  const auto place = [end](double at) {
    return std::clamp<int64_t>(std::llround(at / end * static_cast<double>(kPlaces)), 0, kPlaces);
  };
  const int64_t start = place(from);
  const int64_t stop = place(to) == start ? (start > 0 ? start - 1 : start + 1) : place(to);
  std::map<uint32_t, double> weights;
  add_value(stop, 1.0, weights);
  add_value(start, -1.0, weights);
  const double length = static_cast<double>(std::max(start, stop) - std::min(start, stop)) /
                        static_cast<double>(kPlaces);
  std::vector<NoiseShare> shares;
  for (const auto& [number, weight] : weights) {
    if (weight != 0.0) {
      shares.push_back({.number = number, .weight = weight / std::sqrt(length)});
    }
  }
  return shares;
}

}  // namespace kinora::diffusion
