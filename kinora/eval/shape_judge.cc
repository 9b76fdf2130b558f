#include "kinora/eval/shape_judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/eval/picture.h"

namespace kinora::eval {
namespace {

using data::Colour;
using data::Rgb;
using data::Shape;

// The limits below were chosen on generated, blurred and noisy pictures (tests/eval).
constexpr float kShapeMinContrast = 0.30F;  // RGB distance of a pixel that differs from the ground
constexpr float kShapeMinFill = 0.02F;      // the shape's share of the picture, at least
constexpr float kShapeMaxFill = 0.35F;      // and at most
constexpr float kShapeMinLargestShare = 0.90F;  // of all that differs from the ground
constexpr float kMinOverlap = 0.80F;
constexpr float kMinLead = 0.01F;      // in overlap, over the second best shape
constexpr float kMaxHueError = 22.0F;  // degrees
constexpr float kMinSaturation = 0.40F;
constexpr float kMinUniform = 0.85F;       // share of the shape that has its colour
constexpr float kMaxColourSpread = 0.30F;  // RGB distance of a pixel that has it

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

// How much of each pixel the shape covers, with the ramp of its edge made steeper, so that noise
// on the ground and inside the shape does not count.
float steepen(float cover) {
  return std::clamp(2.0F * cover - 0.5F, 0.0F, 1.0F);
}

struct Cover {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<float> values;
};

Cover cover_of(const Picture& picture, const Rgb& ground, const Rgb& colour) {
  Rgb axis{};
  float length_squared = 0.0F;
  for (size_t channel = 0; channel < 3; ++channel) {
    axis[channel] = colour[channel] - ground[channel];
    length_squared += axis[channel] * axis[channel];
  }
  Cover cover{picture.height, picture.width, {}};
  cover.values.reserve(picture.pixels.size());
  for (const Rgb& pixel : picture.pixels) {
    float along = 0.0F;
    for (size_t channel = 0; channel < 3; ++channel) {
      along += (pixel[channel] - ground[channel]) * axis[channel];
    }
    cover.values.push_back(steepen(along / length_squared));
  }
  return cover;
}

// Where a shape might lie, in pixels.
struct Placement {
  float centre_x = 0.0F;
  float centre_y = 0.0F;
  float radius = 1.0F;
};

// Soft intersection over union of the cover and an ideal shape.
float overlap(const Cover& cover, Shape shape, const Placement& place) {
  float both = 0.0F;
  float either = 0.0F;
  const float* value = cover.values.data();
  for (int64_t row = 0; row < cover.height; ++row) {
    const float y = (static_cast<float>(row) + 0.5F - place.centre_y) / place.radius;
    for (int64_t column = 0; column < cover.width; ++column, ++value) {
      const float x = (static_cast<float>(column) + 0.5F - place.centre_x) / place.radius;
      const float border = data::shape_distance(shape, x, y) * place.radius;
      const float ideal = steepen(std::clamp(0.5F - border, 0.0F, 1.0F));
      both += std::min(ideal, *value);
      either += std::max(ideal, *value);
    }
  }
  return both / std::max(either, 1e-6F);
}

// The best overlap over placements: coordinate search from `place` in steps that get finer.
float best_overlap(const Cover& cover, Shape shape, Placement place) {
  float best = overlap(cover, shape, place);
  for (float step = 1.0F; step >= 0.125F; step *= 0.5F) {
    for (bool better = true; better;) {
      better = false;
      for (float Placement::*coordinate :
           {&Placement::centre_x, &Placement::centre_y, &Placement::radius}) {
        for (const float change : {-step, step}) {
          Placement moved = place;
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

std::optional<ShapeVerdict> judge_shape(const at::Tensor& image) {
  const Picture picture = to_picture(image, "shape_judge");
  const Rgb ground = ground_colour({&picture, 1});
  const Foreground found = foreground(picture, ground, kShapeMinContrast);
  const auto num_pixels = static_cast<float>(found.largest.size());
  const float fill = num_pixels / static_cast<float>(picture.pixels.size());
  if (fill < kShapeMinFill || fill > kShapeMaxFill ||
      num_pixels < kShapeMinLargestShare * static_cast<float>(found.num_different)) {
    return std::nullopt;
  }

  std::vector<Rgb> colours;
  for (const int64_t i : found.largest) {
    colours.push_back(picture.pixels[static_cast<size_t>(i)]);
  }
  const Rgb shown = median(colours);
  const std::optional<Colour> colour = classify(shown);
  if (!colour) {
    return std::nullopt;
  }
  const Cover cover = cover_of(picture, ground, shown);
  float num_inside = 0.0F;
  float num_uniform = 0.0F;
  for (const int64_t i : found.largest) {
    if (cover.values[static_cast<size_t>(i)] >= 1.0F) {  // the edge is a mixture with the ground
      num_inside += 1.0F;
      const float spread = distance(picture.pixels[static_cast<size_t>(i)], shown);
      num_uniform += spread <= kMaxColourSpread ? 1.0F : 0.0F;
    }
  }
  if (num_uniform < kMinUniform * num_inside || num_inside < 0.3F * num_pixels) {
    return std::nullopt;
  }

  ShapeVerdict verdict;
  verdict.colour = *colour;
  float second = 0.0F;
  const Centre centre = centre_of(found.largest, picture);
  // The area is about 3 radius^2 for every shape.
  const Placement place{centre.x, centre.y, std::sqrt(num_pixels / 3.0F)};
  for (int64_t i = 0; i < data::kNumShapes; ++i) {
    const auto shape = static_cast<Shape>(i);
    const float value = best_overlap(cover, shape, place);
    if (value > verdict.overlap) {
      second = verdict.overlap;
      verdict.overlap = value;
      verdict.shape = shape;
    } else {
      second = std::max(second, value);
    }
  }
  if (verdict.overlap < kMinOverlap || verdict.overlap - second < kMinLead) {
    return std::nullopt;
  }
  return verdict;
}

ShapeScore judge_shapes(const at::Tensor& images, const at::Tensor& labels) {
  KINORA_CHECK(images.dim() == 4 && images.size(1) == 3, kShape,
               "[shape_judge] images must have shape [B, 3, H, W], got ", images.sizes());
  KINORA_CHECK(
      labels.dim() == 1 && labels.size(0) == images.size(0) && labels.scalar_type() == at::kLong,
      kShape, "[shape_judge] labels must have shape [", images.size(0), "] and type int64, got ",
      labels.sizes(), " ", labels.scalar_type());
  const at::Tensor asked = labels.to(at::kCPU).contiguous();
  ShapeScore score;
  for (int64_t i = 0; i < images.size(0); ++i) {
    const std::optional<ShapeVerdict> verdict = judge_shape(images[i]);
    if (verdict && verdict->label() == asked.const_data_ptr<int64_t>()[i]) {
      ++score.num_right;
    }
    ++score.num_images;
  }
  return score;
}

}  // namespace kinora::eval
