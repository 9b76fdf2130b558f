#include "kinora/data/shapes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"

namespace kinora::data {
namespace {

constexpr std::array<std::string_view, kNumShapes> kShapeNames = {"circle", "square", "triangle",
                                                                  "cross"};
constexpr std::array<std::string_view, kNumColours> kColourNames = {"red", "green", "blue",
                                                                    "yellow"};
constexpr std::array<const char*, 9> kPlaces = {
    "at the upper left", "at the top",    "at the upper right",
    "at the left",       "in the middle", "at the right",
    "at the lower left", "at the bottom", "at the lower right"};

// Sizes of the shapes of radius 1, chosen so that they look equally large.
constexpr float kSquareHalfSide = 0.88F;
constexpr float kTriangleInradius = 0.62F;  // vertices at twice that
constexpr float kCrossHalfLength = 1.05F;
constexpr float kCrossHalfWidth = 0.36F;

// What is random in a scene; the numbers are elements of its random stream.
enum Element : uint64_t { kCell, kJitterX, kJitterY, kRadius, kBrightness, kGround };

float uniform(const RandomStream& stream, Element element, float low, float high) {
  return low + (high - low) * random_uniform(stream, element);
}

float box_distance(float x, float y, float half_width, float half_height) {
  const float dx = std::abs(x) - half_width;
  const float dy = std::abs(y) - half_height;
  const float outside_x = std::max(dx, 0.0F);
  const float outside_y = std::max(dy, 0.0F);
  return std::sqrt(outside_x * outside_x + outside_y * outside_y) +
         std::min(std::max(dx, dy), 0.0F);
}

}  // namespace

Rgb rgb_of(Colour colour) {
  switch (colour) {
    case Colour::kRed:
      return {0.93F, 0.22F, 0.24F};
    case Colour::kGreen:
      return {0.20F, 0.78F, 0.38F};
    case Colour::kBlue:
      return {0.22F, 0.45F, 0.98F};
    case Colour::kYellow:
      return {0.99F, 0.82F, 0.20F};
  }
  KINORA_UNREACHABLE("[shapes] unknown colour");
}

ShapeScene shape_scene(uint64_t seed, int64_t index) {
  const RandomStream stream{seed, static_cast<uint64_t>(index), 0, RandomPurpose::kGenerate};
  const int64_t label = index % kNumShapeClasses;
  ShapeScene scene;
  scene.shape = static_cast<Shape>(label / kNumColours);
  scene.colour = static_cast<Colour>(label % kNumColours);
  scene.cell = random_index(stream, kCell, 9);
  // The farthest shape reaches from 0.13 + 0.012 off the middle to 1.24 * 0.26 beyond, which leaves
  // 3 % of the side free: a pixel at 32 x 32.
  constexpr float kSpacing = 0.13F;
  constexpr float kJitter = 0.012F;
  const int64_t row = scene.cell / 3;
  const int64_t column = scene.cell % 3;
  scene.centre_x = 0.5F + kSpacing * static_cast<float>(column - 1) +
                   uniform(stream, kJitterX, -kJitter, kJitter);
  scene.centre_y =
      0.5F + kSpacing * static_cast<float>(row - 1) + uniform(stream, kJitterY, -kJitter, kJitter);
  scene.radius = uniform(stream, kRadius, 0.24F, 0.26F);
  scene.brightness = uniform(stream, kBrightness, 0.90F, 1.0F);
  scene.ground = uniform(stream, kGround, 0.09F, 0.15F);
  return scene;
}

std::string_view name_of(Shape shape) {
  return kShapeNames[static_cast<size_t>(shape)];
}

std::string_view name_of(Colour colour) {
  return kColourNames[static_cast<size_t>(colour)];
}

std::string caption(const ShapeScene& scene) {
  std::string text = "a ";
  text.append(name_of(scene.colour)).append(" ").append(name_of(scene.shape));
  return text.append(" ").append(kPlaces[static_cast<size_t>(scene.cell)]);
}

float shape_distance(Shape shape, float x, float y) {
  switch (shape) {
    case Shape::kCircle:
      return std::sqrt(x * x + y * y) - 1.0F;
    case Shape::kSquare:
      return box_distance(x, y, kSquareHalfSide, kSquareHalfSide);
    case Shape::kTriangle: {
      // Equilateral, a vertex on top: the greatest of the three half-planes' distances.
      constexpr float kHalfSqrt3 = 0.866025404F;
      return std::max(y, kHalfSqrt3 * std::abs(x) - 0.5F * y) - kTriangleInradius;
    }
    case Shape::kCross:
      return std::min(box_distance(x, y, kCrossHalfLength, kCrossHalfWidth),
                      box_distance(x, y, kCrossHalfWidth, kCrossHalfLength));
  }
  KINORA_UNREACHABLE("[shapes] unknown shape");
}

Extents extents_of(Shape shape) {
  switch (shape) {
    case Shape::kCircle:
      return {};
    case Shape::kSquare:
      return {.side = kSquareHalfSide, .up = kSquareHalfSide, .down = kSquareHalfSide};
    case Shape::kTriangle: {
      constexpr float kSqrt3 = 1.732050808F;
      return {.side = kSqrt3 * kTriangleInradius,
              .up = 2.0F * kTriangleInradius,
              .down = kTriangleInradius};
    }
    case Shape::kCross:
      return {.side = kCrossHalfLength, .up = kCrossHalfLength, .down = kCrossHalfLength};
  }
  KINORA_UNREACHABLE("[shapes] unknown shape");
}

Rgb ground_of(float lightness) {
  return {lightness, lightness * 1.03F, lightness * 1.22F};
}

void draw(const ShapeScene& scene, int64_t left, int64_t width, io::Image& out) {
  const int64_t height = out.height;
  const float radius = scene.radius * static_cast<float>(std::min(height, width));  // pixels
  const float centre_x = scene.centre_x * static_cast<float>(width);
  const float centre_y = scene.centre_y * static_cast<float>(height);
  Rgb colour = rgb_of(scene.colour);
  if (scene.tint_share > 0.0F) {
    const Rgb tint = rgb_of(scene.tint);
    for (size_t channel = 0; channel < colour.size(); ++channel) {
      colour[channel] += scene.tint_share * (tint[channel] - colour[channel]);
    }
  }
  const Rgb ground = ground_of(scene.ground);
  for (int64_t row = 0; row < height; ++row) {
    uint8_t* pixel = out.pixels.data() + (row * out.width + left) * 3;
    const float y = (static_cast<float>(row) + 0.5F - centre_y) / radius;
    for (int64_t column = 0; column < width; ++column) {
      const float x = (static_cast<float>(column) + 0.5F - centre_x) / radius;
      const float distance = shape_distance(scene.shape, x, y) * radius;
      const float cover = std::clamp(0.5F - distance, 0.0F, 1.0F);
      for (size_t channel = 0; channel < 3; ++channel) {
        const float value =
            ground[channel] + cover * (scene.brightness * colour[channel] - ground[channel]);
        const float level = value * 255.0F + 0.5F;  // not negative, so cutting off rounds
        *pixel++ = static_cast<uint8_t>(level);
      }
    }
  }
}

void render(const ShapeScene& scene, int64_t height, int64_t width, io::Image& out) {
  io::set_size(out, height, width);
  draw(scene, 0, width, out);
}

void check_generated_size(int64_t height, int64_t width) {
  constexpr int64_t kMinSide = 16;
  constexpr int64_t kMaxSide = 16384;
  KINORA_CHECK(std::min(height, width) >= kMinSide && std::max(height, width) <= kMaxSide, kConfig,
               "[shapes] generated pictures must measure from ", kMinSide, " to ", kMaxSide,
               " pixels a side, got ", height, " x ", width,
               ". Hint: set data.height and data.width.");
}

ShapeSource::ShapeSource(uint64_t seed, int64_t count, int64_t height, int64_t width)
    : seed_(seed), count_(count), height_(height), width_(width) {
  check_generated_size(height, width);
  for (int64_t label = 0; label < kNumShapeClasses; ++label) {
    std::string name(name_of(static_cast<Colour>(label % kNumColours)));
    names_.push_back(name.append(" ").append(name_of(static_cast<Shape>(label / kNumColours))));
  }
  check_size(count, "the generated shapes (data.count)");
}

std::string ShapeSource::sample_name(int64_t index) const {
  return "generated shape " + std::to_string(index);
}

void ShapeSource::read(int64_t index, Sample& out) const {
  const ShapeScene scene = shape_scene(seed_, index);
  render(scene, height_, width_, out.image);
  out.caption = caption(scene);
  out.label = shape_label(scene.shape, scene.colour);
}

}  // namespace kinora::data
