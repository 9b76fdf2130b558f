#include "kinora/eval/shape_judge.h"

#include "kinora/core/error.h"
#include "kinora/eval/picture.h"
#include "kinora/eval/shape_fit.h"

namespace kinora::eval {
namespace {

using data::Rgb;

// The limits below were chosen on generated, blurred and noisy pictures (tests/eval).
constexpr float kShapeMinContrast = 0.30F;  // RGB distance of a pixel that differs from the ground
constexpr float kShapeMinFill = 0.02F;      // the shape's share of the picture, at least
constexpr float kShapeMaxFill = 0.35F;      // and at most
constexpr float kShapeMinLargestShare = 0.90F;  // of all that differs from the ground
constexpr float kSlope = 2.0F;                  // of edges
constexpr float kMinOverlap = 0.80F;
constexpr float kMinLead = 0.01F;  // in overlap, over the second best shape

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

  const std::optional<ShapeFit> fit = fit_shape(picture, ground, found.largest, kSlope);
  if (!fit || fit->overlap < kMinOverlap || fit->lead < kMinLead) {
    return std::nullopt;
  }
  return ShapeVerdict{.shape = fit->shape, .colour = fit->colour, .overlap = fit->overlap};
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
