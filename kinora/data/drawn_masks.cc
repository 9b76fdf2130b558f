#include "kinora/data/drawn_masks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kinora/data/draws.h"

namespace kinora::data {
namespace {

constexpr double kWhole = 0.25;  // share of masks that are white as a whole
constexpr double kSide = 256.0;  // of the pictures that the sizes below are of
constexpr size_t kMostBoxes = 4;
constexpr double kMargin = 10.0;  // that boxes keep from the edges
constexpr double kLeastBox = 30.0;
constexpr double kMostBox = 150.0;
constexpr size_t kMostChains = 5;
constexpr size_t kMostStrokes = 5;  // of a chain
constexpr size_t kAngles = 4;       // 0.01, 1.01, ... radians
constexpr double kLeastLength = 10.0;
constexpr double kMoreLength = 200.0;
constexpr double kLeastWidth = 5.0;
constexpr double kMoreWidth = 100.0;
/// Of a fixed mask, in the place of the step.
constexpr uint32_t kFixedStep = 1;

/// In [low, high).
double between(double low, double high, Draws& draws) {
  return std::lerp(low, high, draws.uniform());
}

/// A point in pixels, from the upper left corner.
struct Point {
  double x = 0.0;
  double y = 0.0;
};

/// Whitens columns [left, right) of a row.
void whiten(io::Image& mask, int64_t row, int64_t left, int64_t right) {
  left = std::clamp<int64_t>(left, 0, mask.width);
  right = std::clamp<int64_t>(right, left, mask.width);
  std::memset(mask.pixels.data() + (row * mask.width + left) * 3, 0xff,
              static_cast<size_t>((right - left) * 3));
}

void draw_boxes(io::Image& mask, double unit, Draws& draws) {
  const size_t count = 1 + draws.index(kMostBoxes);
  const auto extent = [&](int64_t side, int64_t& first, int64_t& last) {
    const double all = static_cast<double>(side);
    const double size = between(kLeastBox, kMostBox, draws) * unit;
    const double begin = between(kMargin * unit, all - kMargin * unit - size, draws);
    first = std::llround(begin);
    last = std::max<int64_t>(std::llround(begin + size), first + 1);
  };
  for (size_t i = 0; i < count; ++i) {
    int64_t left = 0;
    int64_t right = 0;
    int64_t top = 0;
    int64_t bottom = 0;
    extent(mask.width, left, right);
    extent(mask.height, top, bottom);
    for (int64_t row = top; row < std::min(bottom, mask.height); ++row) {
      whiten(mask, row, left, right);
    }
  }
}

/// All pixels whose middles are at most `radius` away from the line between two points.
void draw_stroke(io::Image& mask, const Point& from, const Point& to, double radius) {
  const double dx = to.x - from.x;
  const double dy = to.y - from.y;
  const double length = std::max(dx * dx + dy * dy, 1e-12);
  const auto first_of = [radius](double a, double b) {
    return std::max<int64_t>(std::llround(std::min(a, b) - radius) - 1, 0);
  };
  const auto end_of = [radius](double a, double b, int64_t side) {
    return std::min<int64_t>(std::llround(std::max(a, b) + radius) + 1, side);
  };
  const int64_t last_row = end_of(from.y, to.y, mask.height);
  const int64_t last_column = end_of(from.x, to.x, mask.width);
  for (int64_t row = first_of(from.y, to.y); row < last_row; ++row) {
    const double y = static_cast<double>(row) + 0.5;
    // A row of a convex shape is one run of pixels.
    int64_t left = mask.width;
    int64_t right = 0;
    for (int64_t column = first_of(from.x, to.x); column < last_column; ++column) {
      const double x = static_cast<double>(column) + 0.5;
      const double along = std::clamp(((x - from.x) * dx + (y - from.y) * dy) / length, 0.0, 1.0);
      const double off_x = x - from.x - along * dx;
      const double off_y = y - from.y - along * dy;
      if (off_x * off_x + off_y * off_y <= radius * radius) {
        left = std::min(left, column);
        right = column + 1;
      }
    }
    whiten(mask, row, left, right);
  }
}

void draw_chains(io::Image& mask, double unit, Draws& draws) {
  const auto width = static_cast<double>(mask.width);
  const auto height = static_cast<double>(mask.height);
  const size_t count = 1 + draws.index(kMostChains);
  for (size_t i = 0; i < count; ++i) {
    Point from{.x = draws.uniform() * width, .y = draws.uniform() * height};
    const size_t strokes = 1 + draws.index(kMostStrokes);
    for (size_t j = 0; j < strokes; ++j) {
      const double turn = 0.01 + static_cast<double>(draws.index(kAngles));
      const double angle = i % 2 == 0 ? -turn : turn;
      const double length = (kLeastLength + draws.uniform() * kMoreLength) * unit;
      const double radius = 0.5 * (kLeastWidth + draws.uniform() * kMoreWidth) * unit;
      const Point to{.x = std::clamp(from.x + length * std::sin(angle), 0.0, width),
                     .y = std::clamp(from.y + length * std::cos(angle), 0.0, height)};
      draw_stroke(mask, from, to, radius);
      from = to;
    }
  }
}

}  // namespace

io::Image drawn_mask(int64_t height, int64_t width, const RandomStream& stream) {
  io::Image mask;
  io::set_size(mask, height, width);
  std::ranges::fill(mask.pixels, uint8_t{0});
  Draws draws(stream);
  const double unit = static_cast<double>(std::min(height, width)) / kSide;
  if (draws.uniform() < kWhole) {
    std::ranges::fill(mask.pixels, uint8_t{0xff});
  } else if (draws.index(2) == 0) {
    draw_boxes(mask, unit, draws);
  } else {
    draw_chains(mask, unit, draws);
  }
  return mask;
}

void DrawnMaskSource::read(int64_t index, Sample& out) const {
  WrappedSource::read(index, out);
  const bool is_cropped = out.crop.height > 0 && out.crop.width > 0;
  out.mask = drawn_mask(is_cropped ? out.crop.height : out.image.height,
                        is_cropped ? out.crop.width : out.image.width,
                        out.mask_draws.value_or(RandomStream{seed_, static_cast<uint64_t>(index),
                                                             kFixedStep, RandomPurpose::kMask}));
}

}  // namespace kinora::data
