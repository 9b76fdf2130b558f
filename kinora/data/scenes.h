#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/layout.h"
#include "kinora/data/shapes.h"
#include "kinora/data/source.h"

/// Generated pictures of one to three objects and how they lie to each other, "a small red circle
/// to the left of a large blue square": the built-in set for models that read captions. It needs no
/// download, and eval/scene_judge.h tells exactly what a picture shows.
///
/// Some combinations training never sees; whether a model draws them when asked is the measure of
/// it (is_held_out).
namespace kinora::data {

enum class ObjectSize : uint8_t { kSmall, kLarge };
enum class Relation : uint8_t { kLeftOf, kRightOf, kAbove, kBelow };

inline constexpr int64_t kNumSizes = 2;
inline constexpr int64_t kNumRelations = 4;
inline constexpr int64_t kMostObjects = 3;

/// Of "A is left of B" what B is of A.
[[nodiscard]] Relation opposite(Relation relation);

/// "small", "left of".
[[nodiscard]] std::string_view name_of(ObjectSize size);
[[nodiscard]] std::string_view name_of(Relation relation);

/// What a caption says of an object.
struct ObjectKind {
  ObjectSize size = ObjectSize::kSmall;
  Colour colour = Colour::kRed;
  Shape shape = Shape::kCircle;

  bool operator==(const ObjectKind&) const = default;
  /// From 0 to kNumKinds - 1.
  [[nodiscard]] int64_t number() const {
    return (static_cast<int64_t>(size) * kNumColours + static_cast<int64_t>(colour)) * kNumShapes +
           static_cast<int64_t>(shape);
  }
};

inline constexpr int64_t kNumKinds = kNumSizes * kNumColours * kNumShapes;

/// "small red circle", and back; nothing for other words.
[[nodiscard]] std::string name_of(const ObjectKind& kind);
[[nodiscard]] std::optional<ObjectKind> kind_of(std::string_view name);

/// What a caption says of a picture: the objects, no two of one kind, and what each but the first
/// is of the first. {A, B, C} with {left of, below}: B is left of A, and C below A.
struct SceneContent {
  std::vector<ObjectKind> objects;  ///< 1 to kMostObjects
  std::vector<Relation> relations;  ///< of objects 1, 2: one fewer than objects
};

/// Whether both say the same: of two objects, A left of B is B right of A; of three, the last two
/// may change places.
[[nodiscard]] bool same_content(const SceneContent& a, const SceneContent& b);

/// Whether training never shows it: a scene with an object of one of four kinds, and of the others
/// with several objects one combination in ten, by a hash of what they are and how they lie.
[[nodiscard]] bool is_held_out(const SceneContent& content);

/// Where an object lies, in sides of the square picture.
struct Placement {
  float x = 0.5F;  ///< the shape's centroid
  float y = 0.5F;
  float radius = 0.1F;
};

/// The box around such an object: its edges, as render() draws it.
[[nodiscard]] Box box_of(Shape shape, const Placement& place);

/// Objects of these radii or more are large, in sides of the picture: half-way between both sizes.
inline constexpr float kLargeFrom = 0.129F;
/// "Left of" and the like: centres are at least so far apart that way, in sides of the picture.
inline constexpr float kMinSeparation = 0.22F;

/// Everything that a picture shows.
struct Scene {
  SceneContent content;
  std::vector<Placement> places;  ///< of the objects
  float brightness = 1.0F;        ///< factor of the colours
  float ground = 0.12F;           ///< lightness of the ground
};

/// Scene `index` of the stream `seed`, never one that is held out. It has 1 + index % 3 objects;
/// the rest is random. Objects lie wholly inside of the picture and apart from each other.
[[nodiscard]] Scene scene(uint64_t seed, int64_t index);

/// The fixed scenes that measure a model: all are held out, with 1 + number % 3 objects.
inline constexpr int64_t kNumHeldOutScenes = 1000;
[[nodiscard]] Scene held_out_scene(int64_t number);

/// The caption of `scene(seed, index)` and of `held_out_scene(number)`, in one of many wordings
/// (data/scene_captions.h).
[[nodiscard]] std::string scene_caption(uint64_t seed, int64_t index);
[[nodiscard]] std::string held_out_caption(int64_t number);

/// The objects of a scene by name, and their boxes.
[[nodiscard]] Layout layout_of(const Scene& scene);

/// Gives `out` the size and draws the scene over all of it, edges smoothed over one pixel.
void render(const Scene& scene, int64_t side, io::Image& out);

/// Smaller pictures show too little of small objects.
inline constexpr int64_t kMinSceneSide = 32;

/// The scenes as a source, with captions, or layouts in their place; classes are the numbers of
/// objects.
class SceneSource : public Source {
 public:
  /// Throws Error (kConfig) for pictures that are not square or below kMinSceneSide, enormous ones,
  /// and for less than 2.
  SceneSource(uint64_t seed, int64_t count, int64_t height, int64_t width,
              bool has_layouts = false);

  [[nodiscard]] int64_t size() const override { return count_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  uint64_t seed_;
  int64_t count_;
  int64_t side_;
  bool has_layouts_;
  std::vector<std::string> names_;
};

}  // namespace kinora::data
