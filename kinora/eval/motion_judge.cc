#include "kinora/eval/motion_judge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/eval/picture.h"
#include "kinora/eval/shape_judge.h"

namespace kinora::eval {
namespace {

using data::Colour;
using data::Motion;
using data::MovingContent;
using data::Rgb;
using data::Shape;

// The limits below were chosen on generated and stored clips and on spoilt ones (tests/eval).
constexpr int64_t kMinFrames = 3;
constexpr float kPeakShare = 0.005F;         // of the pixels, which show the shape's full contrast
constexpr float kMotionMinContrast = 0.04F;  // RGB distance of the shape from the ground
constexpr float kMotionMinLargestShare = 0.90F;  // of all that differs from the ground
constexpr float kMotionMinFill = 0.004F;         // the shape's share of the picture, at least
constexpr float kMotionMaxFill = 0.35F;          // and at most
constexpr float kMaxAreaRatio = 1.6F;   // of a frame's shape to the middle one's, or inverse
constexpr float kMinTravel = 0.25F;     // of the picture
constexpr float kMaxDrift = 0.5F;       // of the travel, across it
constexpr float kMaxWayBack = 0.15F;    // of the travel, all steps back together
constexpr float kMaxStep = 8.0F;        // mean steps
constexpr float kMinAgreement = 0.75F;  // of the frames

// In widths and heights of the picture.
struct Track {
  std::vector<Centre> centres;
  std::vector<float> areas;  // in pixels
};

// The distance from the ground that just kPeakShare of the pixels exceed.
float peak_contrast(const Picture& picture, const Rgb& ground) {
  std::vector<float> distances;
  distances.reserve(picture.pixels.size());
  for (const Rgb& pixel : picture.pixels) {
    distances.push_back(distance(pixel, ground));
  }
  const auto rank = static_cast<std::ptrdiff_t>(kPeakShare * static_cast<float>(distances.size()));
  std::nth_element(distances.begin(), distances.begin() + rank, distances.end(), std::greater<>());
  return distances[static_cast<size_t>(rank)];
}

float median_of(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Nothing where a frame does not show just one shape.
std::optional<Track> track(const std::vector<Picture>& frames) {
  const Rgb ground = ground_colour(frames);
  std::vector<float> peaks;
  peaks.reserve(frames.size());
  for (const Picture& frame : frames) {
    peaks.push_back(peak_contrast(frame, ground));
  }
  const float contrast = median_of(std::move(peaks));
  if (contrast < kMotionMinContrast) {
    return std::nullopt;
  }
  Track found;
  for (const Picture& frame : frames) {
    const Foreground shown = foreground(frame, ground, 0.5F * contrast);
    const auto area = static_cast<float>(shown.largest.size());
    const float fill = area / static_cast<float>(frame.pixels.size());
    if (fill < kMotionMinFill || fill > kMotionMaxFill ||
        area < kMotionMinLargestShare * static_cast<float>(shown.num_different)) {
      return std::nullopt;
    }
    const Centre centre = centre_of(shown.largest, frame);
    found.areas.push_back(area);
    found.centres.push_back(
        {centre.x / static_cast<float>(frame.width), centre.y / static_cast<float>(frame.height)});
  }
  return found;
}

std::vector<Picture> frames_of(const at::Tensor& clip) {
  KINORA_CHECK(clip.dim() == 4 && clip.size(1) >= kMinFrames, kShape,
               "[motion_judge] a clip must have shape [3, T, H, W] with T at least ", kMinFrames,
               ", got ", clip.sizes());
  std::vector<Picture> frames;
  for (int64_t t = 0; t < clip.size(1); ++t) {
    frames.push_back(to_picture(clip.select(1, t), "motion_judge"));
  }
  return frames;
}

struct KindOfShape {
  Shape shape = Shape::kCircle;
  Colour colour = Colour::kRed;

  bool operator==(const KindOfShape&) const = default;
};

// What a share of the frames shows, kMinAgreement of them unless it is said.
std::optional<KindOfShape> kind_in_frames(const at::Tensor& clip, float agreement = kMinAgreement) {
  std::array<int64_t, data::kNumShapeClasses> times{};
  for (int64_t t = 0; t < clip.size(1); ++t) {
    if (const std::optional<ShapeVerdict> shown = judge_shape(clip.select(1, t))) {
      ++times[static_cast<size_t>(shown->label())];
    }
  }
  const auto most = std::max_element(times.begin(), times.end());
  if (static_cast<float>(*most) < agreement * static_cast<float>(clip.size(1))) {
    return std::nullopt;
  }
  const int64_t label = most - times.begin();
  return KindOfShape{static_cast<Shape>(label / data::kNumColours),
                     static_cast<Colour>(label % data::kNumColours)};
}

template <typename Judge>
MotionScore count_right(const at::Tensor& clips, const at::Tensor& labels, const Judge& is_right) {
  KINORA_CHECK(clips.dim() == 5 && clips.size(1) == 3, kShape,
               "[motion_judge] clips must have shape [B, 3, T, H, W], got ", clips.sizes());
  KINORA_CHECK(
      labels.dim() == 1 && labels.size(0) == clips.size(0) && labels.scalar_type() == at::kLong,
      kShape, "[motion_judge] labels must have shape [", clips.size(0), "] and type int64, got ",
      labels.sizes(), " ", labels.scalar_type());
  const at::Tensor asked = labels.to(at::kCPU).contiguous();
  MotionScore score;
  for (; score.num_clips < clips.size(0); ++score.num_clips) {
    const int64_t label = asked.const_data_ptr<int64_t>()[score.num_clips];
    score.num_right += is_right(clips[score.num_clips], label) ? 1 : 0;
  }
  return score;
}

}  // namespace

std::optional<MotionVerdict> judge_motion(const at::Tensor& clip) {
  const std::optional<Track> found = track(frames_of(clip));
  if (!found) {
    return std::nullopt;
  }
  const float middle_area = median_of(found->areas);
  for (const float area : found->areas) {
    if (area > kMaxAreaRatio * middle_area || middle_area > kMaxAreaRatio * area) {
      return std::nullopt;
    }
  }
  const std::vector<Centre>& centres = found->centres;
  const float right = centres.back().x - centres.front().x;
  const float down = centres.back().y - centres.front().y;
  const bool is_level = std::abs(right) > std::abs(down);
  const float along = is_level ? right : down;
  const float travel = std::abs(along);
  const float drift = std::abs(is_level ? down : right);
  if (travel < kMinTravel || drift > kMaxDrift * travel) {
    return std::nullopt;
  }
  const float mean_step = travel / static_cast<float>(centres.size() - 1);
  float way_back = 0.0F;
  for (size_t i = 1; i < centres.size(); ++i) {
    const float x = centres[i].x - centres[i - 1].x;
    const float y = centres[i].y - centres[i - 1].y;
    const float forward = (is_level ? x : y) * (along > 0.0F ? 1.0F : -1.0F);
    way_back += std::max(-forward, 0.0F);
    if (std::hypot(x, y) > kMaxStep * mean_step) {
      return std::nullopt;
    }
  }
  if (way_back > kMaxWayBack * travel) {
    return std::nullopt;
  }
  if (is_level) {
    return MotionVerdict{right > 0.0F ? Motion::kRight : Motion::kLeft, travel};
  }
  return MotionVerdict{down > 0.0F ? Motion::kDown : Motion::kUp, travel};
}

std::optional<MovingContent> judge_moving_shape(const at::Tensor& clip) {
  const std::optional<MotionVerdict> motion = judge_motion(clip);
  if (!motion) {
    return std::nullopt;
  }
  const std::optional<KindOfShape> kind = kind_in_frames(clip);
  return kind ? std::optional(MovingContent{kind->shape, kind->colour, motion->motion})
              : std::nullopt;
}

MotionScore judge_moving_shapes(const at::Tensor& clips, const at::Tensor& labels) {
  return count_right(clips, labels, [](const at::Tensor& clip, int64_t label) {
    const std::optional<MovingContent> verdict = judge_moving_shape(clip);
    return verdict && verdict->label() == label;
  });
}

MovingScore judge_asked_clips(const at::Tensor& clips, std::span<const MovingContent> asked) {
  KINORA_CHECK(clips.dim() == 5 && clips.size(1) == 3 && clips.size(0) == std::ssize(asked), kShape,
               "[motion_judge] clips must have shape [", asked.size(), ", 3, T, H, W], got ",
               clips.sizes());
  MovingScore score{.num_clips = clips.size(0)};
  int64_t num_by_chance = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    const at::Tensor clip = clips[static_cast<int64_t>(i)];
    const std::optional<MotionVerdict> motion = judge_motion(clip);
    const std::optional<KindOfShape> kind = kind_in_frames(clip);
    score.num_motion += motion && motion->motion == asked[i].motion ? 1 : 0;
    score.num_shape += kind && kind->shape == asked[i].shape ? 1 : 0;
    score.num_colour += kind && kind->colour == asked[i].colour ? 1 : 0;
    const KindOfShape own{asked[i].shape, asked[i].colour};
    score.num_identity += kind == own ? 1 : 0;
    score.num_identity_in_each_frame += kind_in_frames(clip, 1.0F) == own ? 1 : 0;
    if (!motion || !kind) {
      continue;
    }
    const MovingContent shown{kind->shape, kind->colour, motion->motion};
    const bool is_right = shown == asked[i];
    score.num_right += is_right ? 1 : 0;
    num_by_chance += std::count(asked.begin(), asked.end(), shown) - (is_right ? 1 : 0);
  }
  const auto num_others =
      static_cast<double>(std::max<int64_t>(score.num_clips * (score.num_clips - 1), 1));
  score.chance = static_cast<double>(num_by_chance) / num_others;
  return score;
}

MotionScore judge_motions(const at::Tensor& clips, const at::Tensor& labels,
                          std::span<const Motion> motion_of_label) {
  return count_right(clips, labels, [motion_of_label](const at::Tensor& clip, int64_t label) {
    KINORA_CHECK(label >= 0 && label < std::ssize(motion_of_label), kShape,
                 "[motion_judge] labels must be in [0, ", motion_of_label.size(), "), got ", label);
    const std::optional<MotionVerdict> verdict = judge_motion(clip);
    return verdict && verdict->motion == motion_of_label[static_cast<size_t>(label)];
  });
}

}  // namespace kinora::eval
