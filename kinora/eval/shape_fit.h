#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/data/shapes.h"
#include "kinora/eval/picture.h"

/// Which ideal shape a group of pixels is. Not for use outside eval/.
namespace kinora::eval {

/// In pixels.
struct ShapePlace {
  float centre_x = 0.0F;
  float centre_y = 0.0F;
  float radius = 1.0F;
};

struct ShapeFit {
  data::Shape shape = data::Shape::kCircle;
  data::Colour colour = data::Colour::kRed;
  ShapePlace place = {};
  float overlap = 0.0F;  ///< of the group's and the ideal shape's areas (IoU), at most 1
  float lead = 0.0F;     ///< in overlap, over the second best shape
};

/// The shape that overlaps best with what differs from `ground` in `picture`, a group of pixels of
/// about one colour. Nothing where the group is none of the colours, or of several. slope: 1 takes
/// the edge as it is, which tells small shapes best; 2 makes it twice as steep, so that noise on
/// the ground and inside the shape does not count.
[[nodiscard]] std::optional<ShapeFit> fit_shape(const Picture& picture, const data::Rgb& ground,
                                                const std::vector<int64_t>& group, float slope);

}  // namespace kinora::eval
