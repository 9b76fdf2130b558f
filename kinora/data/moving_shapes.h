#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/shapes.h"
#include "kinora/data/source.h"

/// The built-in generated video: one coloured shape that moves steadily in one of four directions.
/// It needs no download, and eval/motion_judge.h can tell exactly what a clip shows.
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

/// Everything that a clip shows.
struct MovingScene {
  ShapeScene middle;  ///< half-way; `cell` says nothing here
  Motion motion = Motion::kLeft;
  float travel = 0.40F;  ///< from the first frame to the last, in the picture's widths or heights
};

/// Clip `index` of the stream `seed`. The label is index % kNumMovingClasses, so that classes are
/// balanced; colour, position, size, light and travel are random and leave the shape wholly inside
/// the picture in every frame.
[[nodiscard]] MovingScene moving_scene(uint64_t seed, int64_t index);

/// The picture at `time`, from 0, the first frame, to 1, the last.
[[nodiscard]] ShapeScene scene_at(const MovingScene& clip, float time);

/// "a red circle moving to the left".
[[nodiscard]] std::string caption(const MovingScene& clip);

/// The generated clips as a source; each has `num_frames` frames, which span the whole motion.
class MovingShapeSource : public Source {
 public:
  /// Throws Error (kConfig) as check_generated_size, and for less than 2 clips or 2 frames.
  MovingShapeSource(uint64_t seed, int64_t count, int64_t num_frames, float fps, int64_t height,
                    int64_t width);

  [[nodiscard]] int64_t size() const override { return count_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] bool is_video() const override { return true; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  uint64_t seed_;
  int64_t count_;
  int64_t num_frames_;
  float fps_;
  int64_t height_;
  int64_t width_;
  std::vector<std::string> names_;
};

}  // namespace kinora::data
