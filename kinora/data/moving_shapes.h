#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/shapes.h"
#include "kinora/data/source.h"

/// The built-in generated video: one coloured shape that moves steadily in one of four directions.
/// It needs no download, and eval/motion_judge.h can tell exactly what a clip shows.
///
/// Of each class one colour is held out: training never shows it, and whether a model draws it when
/// asked is the measure of it (is_held_out). Of clips with references it is one of each shape.
namespace kinora::data {

enum class Motion : uint8_t { kLeft, kRight, kUp, kDown };

inline constexpr int64_t kNumMotions = 4;
inline constexpr int64_t kNumMovingClasses = kNumShapes * kNumMotions;

/// "moving to the left", "moving up".
[[nodiscard]] std::string_view name_of(Motion motion);

/// The label of a class: shape * kNumMotions + motion; 0 is "circle moving to the left", 15 "cross
/// moving down". The colour belongs to no class.
[[nodiscard]] constexpr int64_t moving_label(Shape shape, Motion motion) {
  return static_cast<int64_t>(shape) * kNumMotions + static_cast<int64_t>(motion);
}

/// What a caption says of a clip.
struct MovingContent {
  Shape shape = Shape::kCircle;
  Colour colour = Colour::kRed;
  Motion motion = Motion::kLeft;

  bool operator==(const MovingContent&) const = default;
  [[nodiscard]] int64_t label() const { return moving_label(shape, motion); }
};

/// Whether training never shows it: one colour of each class, 16 of 64 in all. Each two of shape,
/// colour and motion are shown together.
[[nodiscard]] bool is_held_out(const MovingContent& content);

/// Everything that a clip shows.
struct MovingScene {
  ShapeScene middle;  ///< half-way; `cell` says nothing here
  Motion motion = Motion::kLeft;
  float travel = 0.40F;  ///< from the first frame to the last, in the picture's widths or heights

  [[nodiscard]] MovingContent content() const { return {middle.shape, middle.colour, motion}; }
};

/// Clip `index` of the stream `seed`, never one that is held out. The label is
/// index % kNumMovingClasses, so that classes are balanced; colour, position, size, light and
/// travel are random and leave the shape wholly inside the picture in every frame.
[[nodiscard]] MovingScene moving_scene(uint64_t seed, int64_t index);

/// The fixed clips that measure a model: all are held out, of class number % kNumMovingClasses.
inline constexpr int64_t kNumHeldOutClips = 1000;
[[nodiscard]] MovingScene held_out_clip(int64_t number);

/// The picture at `time`, from 0, the first frame, to 1, the last.
[[nodiscard]] ShapeScene scene_at(const MovingScene& clip, float time);

/// The caption of `moving_scene(seed, index)` and of `held_out_clip(number)`, in one of many
/// wordings (data/moving_captions.h).
[[nodiscard]] std::string moving_caption(uint64_t seed, int64_t index);
[[nodiscard]] std::string held_out_clip_caption(int64_t number);

/// A clip whose caption says the motion alone, and pictures of the shape that moves: still, in or
/// near the middle, larger and over another ground. In training colours are mixed with up to 0.45
/// of another one, what is held out with 0.3 or more: of a few pure ones a model learns pairs of
/// shape and colour by heart.
struct ReferencedClip {
  MovingScene scene;
  std::vector<ShapeScene> references;
  std::string caption;
};

/// Whether no clip with references shows it pure in training: one colour of each shape.
[[nodiscard]] bool is_held_out_reference(Shape shape, Colour colour);

/// Clip `index` of the stream `seed`, never one that is held out, with 1 to `most` pictures; the
/// rest is as moving_scene's, but that all motions are shown of what is shown at all.
[[nodiscard]] ReferencedClip referenced_clip(uint64_t seed, int64_t index, int64_t most);

/// The fixed clips that measure a model, as held_out_clip().
[[nodiscard]] ReferencedClip held_out_referenced_clip(int64_t number, int64_t most);

/// The generated clips as a source; each has `num_frames` frames, which span the whole motion.
class MovingShapeSource : public Source {
 public:
  /// references: above 0 they are referenced_clip()s with up to so many pictures. Throws Error
  /// (kConfig) as check_generated_size, and for less than 2 clips or 2 frames.
  MovingShapeSource(uint64_t seed, int64_t count, int64_t num_frames, float fps, int64_t height,
                    int64_t width, int64_t references = 0);

  [[nodiscard]] int64_t size() const override { return count_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] bool is_video() const override { return true; }
  [[nodiscard]] PicturesBeside beside() const override { return {.references = references_}; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  uint64_t seed_;
  int64_t count_;
  int64_t num_frames_;
  float fps_;
  int64_t height_;
  int64_t width_;
  int64_t references_;
  std::vector<std::string> names_;
};

}  // namespace kinora::data
