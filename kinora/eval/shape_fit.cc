#include "kinora/eval/shape_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kinora::eval {
namespace {

using data::Colour;
using data::Rgb;
using data::Shape;

// The limits below were chosen on generated, blurred and noisy pictures (tests/eval).
constexpr float kMaxHueError = 22.0F;  // degrees
constexpr float kMinSaturation = 0.40F;
constexpr float kMinUniform = 0.85F;       // share of the shape that has its colour
constexpr float kMaxColourSpread = 0.30F;  // RGB distance of a pixel that has it
constexpr float kInsideCover = 0.75F;      // of a pixel that is not on the edge
constexpr float kMinInside = 0.30F;        // share of the shape that is not its edge

// In degrees; nothing for a colour too grey to have one.
std::optional<float> hue(const Rgb& colour) {
  const auto [red, green, blue] = colour;
  const float high = std::max({red, green, blue});
  const float chroma = high - std::min({red, green, blue});
  if (chroma < kMinSaturation * high || high <= 0.0F) {
    return std::nullopt;
  }
  float sixth = 0.0F;
  if (high == red) {
    sixth = (green - blue) / chroma;
  } else if (high == green) {
    sixth = 2.0F + (blue - red) / chroma;
  } else {
    sixth = 4.0F + (red - green) / chroma;
  }
  return sixth * 60.0F;
}

std::optional<Colour> classify(const Rgb& colour) {
  const std::optional<float> shown = hue(colour);
  if (!shown) {
    return std::nullopt;
  }
  for (int64_t i = 0; i < data::kNumColours; ++i) {
    const auto candidate = static_cast<Colour>(i);
    const float difference = *shown - *hue(data::rgb_of(candidate));
    if (std::abs(std::remainder(difference, 360.0F)) <= kMaxHueError) {
      return candidate;
    }
  }
  return std::nullopt;
}

// How much of a pixel the shape covers, with the ramp of its edge made steeper.
float steepen(float cover, float slope) {
  return std::clamp(slope * (cover - 0.5F) + 0.5F, 0.0F, 1.0F);
}

struct Cover {
  int64_t height = 0;
  int64_t width = 0;
  float slope = 1.0F;
  std::vector<float> values;
};

Cover cover_of(const Picture& picture, const Rgb& ground, const Rgb& colour, float slope) {
  Rgb axis{};
  float length_squared = 0.0F;
  for (size_t channel = 0; channel < 3; ++channel) {
    axis[channel] = colour[channel] - ground[channel];
    length_squared += axis[channel] * axis[channel];
  }
  Cover cover{picture.height, picture.width, slope, {}};
  cover.values.reserve(picture.pixels.size());
  for (const Rgb& pixel : picture.pixels) {
    float along = 0.0F;
    for (size_t channel = 0; channel < 3; ++channel) {
      along += (pixel[channel] - ground[channel]) * axis[channel];
    }
    cover.values.push_back(steepen(along / length_squared, slope));
  }
  return cover;
}

// Soft intersection over union of the cover and an ideal shape.
float overlap(const Cover& cover, Shape shape, const ShapePlace& place) {
  float both = 0.0F;
  float either = 0.0F;
  const float* value = cover.values.data();
  for (int64_t row = 0; row < cover.height; ++row) {
    const float y = (static_cast<float>(row) + 0.5F - place.centre_y) / place.radius;
    for (int64_t column = 0; column < cover.width; ++column, ++value) {
      const float x = (static_cast<float>(column) + 0.5F - place.centre_x) / place.radius;
      const float border = data::shape_distance(shape, x, y) * place.radius;
      const float ideal = steepen(std::clamp(0.5F - border, 0.0F, 1.0F), cover.slope);
      both += std::min(ideal, *value);
      either += std::max(ideal, *value);
    }
  }
  return both / std::max(either, 1e-6F);
}

// The best overlap over places: coordinate search from `place` in steps that get finer. Leaves
// `place` where that is.
float best_overlap(const Cover& cover, Shape shape, ShapePlace& place) {
  float best = overlap(cover, shape, place);
  for (float step = 1.0F; step >= 0.125F; step *= 0.5F) {
    for (bool better = true; better;) {
      better = false;
      for (float ShapePlace::*coordinate :
           {&ShapePlace::centre_x, &ShapePlace::centre_y, &ShapePlace::radius}) {
        for (const float change : {-step, step}) {
          ShapePlace moved = place;
          moved.*coordinate += change;
          if (moved.radius < 1.0F) {
            continue;
          }
          const float value = overlap(cover, shape, moved);
          if (value > best) {
            best = value;
            place = moved;
            better = true;
          }
        }
      }
    }
  }
  return best;
}

}  // namespace

std::optional<ShapeFit> fit_shape(const Picture& picture, const Rgb& ground,
                                  const std::vector<int64_t>& group, float slope) {
  std::vector<Rgb> colours;
  for (const int64_t i : group) {
    colours.push_back(picture.pixels[static_cast<size_t>(i)]);
  }
  const Rgb shown = median(colours);
  const std::optional<Colour> colour = classify(shown);
  if (!colour) {
    return std::nullopt;
  }
  const auto num_pixels = static_cast<float>(group.size());
  const Cover cover = cover_of(picture, ground, shown, slope);
  float num_inside = 0.0F;
  float num_uniform = 0.0F;
  for (const int64_t i : group) {
    // The edge is a mixture with the ground.
    if (cover.values[static_cast<size_t>(i)] >= steepen(kInsideCover, slope)) {
      num_inside += 1.0F;
      const float spread = distance(picture.pixels[static_cast<size_t>(i)], shown);
      num_uniform += spread <= kMaxColourSpread ? 1.0F : 0.0F;
    }
  }
  if (num_uniform < kMinUniform * num_inside || num_inside < kMinInside * num_pixels) {
    return std::nullopt;
  }
  ShapeFit best{.colour = *colour};
  float second = 0.0F;
  const Centre centre = centre_of(group, picture);
  const float radius = std::sqrt(num_pixels / 3.0F);  // the area is about 3 radius^2 for all
  for (int64_t i = 0; i < data::kNumShapes; ++i) {
    const auto shape = static_cast<Shape>(i);
    ShapePlace place{centre.x, centre.y, radius};
    const float value = best_overlap(cover, shape, place);
    if (value > best.overlap) {
      second = best.overlap;
      best.overlap = value;
      best.shape = shape;
      best.place = place;
    } else {
      second = std::max(second, value);
    }
  }
  best.lead = best.overlap - second;
  return best;
}

}  // namespace kinora::eval
