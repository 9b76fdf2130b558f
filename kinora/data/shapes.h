#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/source.h"

/// The built-in generated set: one coloured shape on a dark ground. It needs no download, a small
/// model learns it in minutes, and eval/shape_judge.h can tell exactly what a picture shows.
///
/// A scene is apart from its rendering: a moving picture is a list of scenes whose centre, radius
/// or colour changes, each rendered as a still one.
namespace kinora::data {

enum class Shape : uint8_t { kCircle, kSquare, kTriangle, kCross };
enum class Colour : uint8_t { kRed, kGreen, kBlue, kYellow };

inline constexpr int64_t kNumShapes = 4;
inline constexpr int64_t kNumColours = 4;
inline constexpr int64_t kNumShapeClasses = kNumShapes * kNumColours;

/// RGB in [0, 1].
using Rgb = std::array<float, 3>;

[[nodiscard]] Rgb rgb_of(Colour colour);

/// The label of a class: shape * kNumColours + colour; "red circle" is 0, "yellow cross" 15.
[[nodiscard]] constexpr int64_t shape_label(Shape shape, Colour colour) {
  return static_cast<int64_t>(shape) * kNumColours + static_cast<int64_t>(colour);
}

/// Everything that a picture shows.
struct ShapeScene {
  Shape shape = Shape::kCircle;
  Colour colour = Colour::kRed;
  int64_t cell = 4;         ///< where on a 3 x 3 grid, row by row; 4 is the middle
  float centre_x = 0.5F;    ///< the shape's centroid, in widths of the picture
  float centre_y = 0.5F;    ///< in heights
  float radius = 0.22F;     ///< in shorter sides; the shapes of one radius look equally large
  float brightness = 1.0F;  ///< factor of the shape's colour
  float ground = 0.12F;     ///< lightness of the ground
  Colour tint = Colour::kRed;
  float tint_share = 0.0F;  ///< of the tint in the shape's colour, below a half
};

/// Scene `index` of the stream `seed`. The label is index % kNumShapeClasses, so that classes are
/// balanced; position, size and light are random and leave the shape wholly inside the picture.
[[nodiscard]] ShapeScene shape_scene(uint64_t seed, int64_t index);

/// "a red circle at the upper left".
[[nodiscard]] std::string caption(const ShapeScene& scene);

/// Signed distance, in radii, from the point (x, y) to the border of a shape of radius 1 around
/// the origin, y downwards; negative inside. Near the border it is the true distance.
[[nodiscard]] float shape_distance(Shape shape, float x, float y);

/// Names as captions have them: "circle", "red".
[[nodiscard]] std::string_view name_of(Shape shape);
[[nodiscard]] std::string_view name_of(Colour colour);

/// How far a shape of radius 1 reaches from its centroid; to the left as to the right.
struct Extents {
  float side = 1.0F;
  float up = 1.0F;
  float down = 1.0F;
};
[[nodiscard]] Extents extents_of(Shape shape);

/// The colour of a ground of this lightness: a bluish slate.
[[nodiscard]] Rgb ground_of(float lightness);

/// Draws the scene, with edges smoothed over one pixel, over the columns [left, left + width) of
/// `out`: a frame of a strip.
void draw(const ShapeScene& scene, int64_t left, int64_t width, io::Image& out);

/// Gives `out` the size and draws the scene over all of it.
void render(const ShapeScene& scene, int64_t height, int64_t width, io::Image& out);

/// Shapes can be told apart from 16 x 16 on; throws Error (kConfig) for smaller pictures, and for
/// enormous ones.
void check_generated_size(int64_t height, int64_t width);

/// The generated set as a source.
class ShapeSource : public Source {
 public:
  /// Throws Error (kConfig) as check_generated_size, and for less than 2 pictures.
  ShapeSource(uint64_t seed, int64_t count, int64_t height, int64_t width);

  [[nodiscard]] int64_t size() const override { return count_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  uint64_t seed_;
  int64_t count_;
  int64_t height_;
  int64_t width_;
  std::vector<std::string> names_;
};

}  // namespace kinora::data
