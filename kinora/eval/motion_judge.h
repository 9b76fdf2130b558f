#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

#include "kinora/data/moving_shapes.h"

/// Tells exactly how the shape of a clip moves, by geometry, not by a trained model: the measure of
/// video models on the generated set (data/moving_shapes.h) and on other clips of one shape that
/// moves over a plain ground.
namespace kinora::eval {

struct MotionVerdict {
  data::Motion motion = data::Motion::kLeft;
  float travel = 0.0F;  ///< from the first frame to the last, in widths or heights of the picture
};

/// Nothing unless `clip`, [3, T, H, W] of uint8 or of float in [-1, 1], T at least 3, clearly shows
/// in every frame the same one shape, of any colour that differs from a plain ground, and this
/// travels a quarter of the picture or more from its first to its last place, without jumps or ways
/// back, and mainly along rows or columns. On the way it may swerve. Throws Error (kShape).
[[nodiscard]] std::optional<MotionVerdict> judge_motion(const at::Tensor& clip);

/// Of a clip of the generated set: nothing unless judge_motion finds a motion and at least three
/// quarters of the frames show one shape of one colour as judge_shape sees it.
[[nodiscard]] std::optional<data::MovingContent> judge_moving_shape(const at::Tensor& clip);

struct MotionScore {
  int64_t num_right = 0;
  int64_t num_clips = 0;
};

/// How many of `clips` [B, 3, T, H, W] show the class of `labels` int64 [B] of the generated set.
/// Throws Error (kShape).
[[nodiscard]] MotionScore judge_moving_shapes(const at::Tensor& clips, const at::Tensor& labels);

/// Right ones of clips that were asked for by captions, as a whole and by attribute.
struct MovingScore {
  int64_t num_right = 0;
  int64_t num_clips = 0;
  int64_t num_shape = 0;
  int64_t num_colour = 0;
  int64_t num_motion = 0;
  int64_t num_identity = 0;                ///< shape and colour together
  int64_t num_identity_in_each_frame = 0;  ///< as judge_shape sees every single frame
  /// Right ones, a share, if each clip is judged by every other asked content.
  double chance = 0.0;
};

/// Of clips [B, 3, T, H, W], of which the i-th was to show asked[i]. A shape counts that most
/// frames show, however it moves, and a motion whatever moves. Throws Error (kShape).
[[nodiscard]] MovingScore judge_asked_clips(const at::Tensor& clips,
                                            std::span<const data::MovingContent> asked);

/// The motions of the two classes of the moving_shapes strips (classes "0" and "1"): a shape of any
/// colour swerves from the lower edge to the upper one in the same column, or from the right edge
/// to the left one in the same row.
inline constexpr std::array<data::Motion, 2> kStripMotions = {data::Motion::kUp,
                                                              data::Motion::kLeft};

/// How many of `clips` [B, 3, T, H, W] show the motion motion_of_label[labels[i]]. A clip must span
/// the whole motion: a part of a swerving way may lead elsewhere. Throws Error (kShape).
[[nodiscard]] MotionScore judge_motions(const at::Tensor& clips, const at::Tensor& labels,
                                        std::span<const data::Motion> motion_of_label);

}  // namespace kinora::eval
