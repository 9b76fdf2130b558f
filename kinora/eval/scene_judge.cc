#include "kinora/eval/scene_judge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/eval/picture.h"
#include "kinora/eval/shape_fit.h"

namespace kinora::eval {
namespace {

using data::ObjectSize;
using data::Relation;
using data::Rgb;

// The limits below were chosen on generated, blurred and noisy pictures (tests/eval).
constexpr float kSceneMinContrast = 0.30F;  // RGB distance of a pixel that differs from the ground
constexpr float kSceneMinFill = 0.010F;     // an object's share of the picture, at least
constexpr float kMaxSpecks = 0.010F;        // of the picture: what belongs to no object
constexpr float kSceneSlope = 1.0F;         // of edges
constexpr float kSceneMinOverlap = 0.72F;
constexpr float kSceneMinLead = 0.01F;
constexpr int64_t kCropMargin = 2;  // pixels around an object

// What is around an object, with all other groups of pixels as the ground.
struct Crop {
  Picture picture;
  int64_t left = 0;
  int64_t top = 0;
  std::vector<int64_t> group;  // the object's pixels, in `picture`
};

Crop crop_around(const std::vector<int64_t>& group, const Picture& picture, const Rgb& ground,
                 const std::vector<std::vector<int64_t>>& groups) {
  int64_t left = picture.width;
  int64_t right = 0;
  int64_t top = picture.height;
  int64_t bottom = 0;
  for (const int64_t i : group) {
    left = std::min(left, i % picture.width);
    right = std::max(right, i % picture.width);
    top = std::min(top, i / picture.width);
    bottom = std::max(bottom, i / picture.width);
  }
  left = std::max<int64_t>(left - kCropMargin, 0);
  top = std::max<int64_t>(top - kCropMargin, 0);
  right = std::min(right + kCropMargin, picture.width - 1);
  bottom = std::min(bottom + kCropMargin, picture.height - 1);
  Picture alone = picture;
  for (const std::vector<int64_t>& other : groups) {
    for (const int64_t i : other) {
      if (&other != &group) {
        alone.pixels[static_cast<size_t>(i)] = ground;
      }
    }
  }
  Crop crop{.picture = {bottom - top + 1, right - left + 1, {}},
            .left = left,
            .top = top,
            .group = group};
  for (int64_t row = top; row <= bottom; ++row) {
    for (int64_t column = left; column <= right; ++column) {
      crop.picture.pixels.push_back(alone.at(row, column));
    }
  }
  for (int64_t& i : crop.group) {
    i = (i / picture.width - top) * crop.picture.width + (i % picture.width - left);
  }
  return crop;
}

// How far `other` lies from `first` the way that `relation` says.
float distance_along(const data::Placement& first, const data::Placement& other,
                     Relation relation) {
  switch (relation) {
    case Relation::kLeftOf:
      return first.x - other.x;
    case Relation::kRightOf:
      return other.x - first.x;
    case Relation::kAbove:
      return first.y - other.y;
    case Relation::kBelow:
      return other.y - first.y;
  }
  KINORA_UNREACHABLE("[scene_judge] unknown relation");
}

}  // namespace

std::optional<std::vector<FoundObject>> judge_scene(const at::Tensor& image) {
  const Picture picture = to_picture(image, "scene_judge");
  KINORA_CHECK(picture.height == picture.width, kShape,
               "[scene_judge] pictures must be square, got ", image.sizes());
  const Rgb ground = ground_colour({&picture, 1});
  const std::vector<std::vector<int64_t>> groups =
      foreground_groups(picture, ground, kSceneMinContrast);
  const auto num_pixels = static_cast<float>(picture.pixels.size());
  const auto side = static_cast<float>(picture.width);
  float specks = 0.0F;
  std::vector<FoundObject> found;
  for (const std::vector<int64_t>& group : groups) {
    const float fill = static_cast<float>(group.size()) / num_pixels;
    if (fill < kSceneMinFill) {
      specks += fill;
      continue;
    }
    if (std::ssize(found) == data::kMostObjects) {
      return std::nullopt;
    }
    const Crop crop = crop_around(group, picture, ground, groups);
    const std::optional<ShapeFit> fit = fit_shape(crop.picture, ground, crop.group, kSceneSlope);
    if (!fit || fit->overlap < kSceneMinOverlap || fit->lead < kSceneMinLead) {
      return std::nullopt;
    }
    const data::Placement place{(fit->place.centre_x + static_cast<float>(crop.left)) / side,
                                (fit->place.centre_y + static_cast<float>(crop.top)) / side,
                                fit->place.radius / side};
    const ObjectSize size =
        place.radius >= data::kLargeFrom ? ObjectSize::kLarge : ObjectSize::kSmall;
    found.push_back({{size, fit->colour, fit->shape}, place});
  }
  if (specks > kMaxSpecks || found.empty()) {
    return std::nullopt;
  }
  return found;
}

bool shows(const std::vector<FoundObject>& found, const data::SceneContent& content) {
  if (found.size() != content.objects.size()) {
    return false;
  }
  std::vector<data::Placement> places;  // of the asked objects
  for (const data::ObjectKind& kind : content.objects) {
    const auto object = std::find_if(found.begin(), found.end(),
                                     [&kind](const FoundObject& one) { return one.kind == kind; });
    if (object == found.end()) {
      return false;
    }
    places.push_back(object->place);
  }
  for (size_t i = 1; i < places.size(); ++i) {
    if (distance_along(places[0], places[i], content.relations[i - 1]) <
        0.5F * data::kMinSeparation) {
      return false;
    }
  }
  return true;
}

int64_t num_in_boxes(const std::vector<FoundObject>& found, const data::Layout& layout) {
  constexpr double kLeastOverlap = 0.5;
  return std::count_if(layout.begin(), layout.end(), [&found](const data::LayoutObject& asked) {
    const std::optional<data::ObjectKind> kind = data::kind_of(asked.phrase);
    KINORA_CHECK(kind.has_value(), kConfig, "[scene_judge] cannot tell what ", quote(asked.phrase),
                 " should show. Hint: size, colour and shape, such as ",
                 quote(data::name_of(data::ObjectKind{})));
    return std::any_of(found.begin(), found.end(), [&](const FoundObject& object) {
      const data::Box box = data::box_of(object.kind.shape, object.place);
      return object.kind == *kind && data::intersection_over_union(box, asked.box) >= kLeastOverlap;
    });
  });
}

LayoutScore judge_layouts(const at::Tensor& images, std::span<const data::Layout> asked) {
  KINORA_CHECK(images.dim() == 4 && images.size(1) == 3 && images.size(0) == std::ssize(asked),
               kShape, "[scene_judge] images must have shape [", asked.size(), ", 3, H, W], got ",
               images.sizes());
  LayoutScore score;
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto count = std::ssize(asked[i]);
    KINORA_CHECK(count >= 1 && count <= data::kMostObjects, kConfig,
                 "[scene_judge] layouts must have 1 to ", data::kMostObjects, " objects, got ",
                 count);
    const auto kind = static_cast<size_t>(count - 1);
    const auto found =
        judge_scene(images[static_cast<int64_t>(i)]).value_or(std::vector<FoundObject>{});
    const int64_t in_boxes = num_in_boxes(found, asked[i]);
    score.num_in_boxes[kind] += in_boxes;
    score.num_objects[kind] += count;
    score.num_right[kind] += in_boxes == count && std::ssize(found) == count ? 1 : 0;
    ++score.num_images[kind];
  }
  return score;
}

SceneScore judge_scenes(const at::Tensor& images, std::span<const data::SceneContent> asked) {
  KINORA_CHECK(images.dim() == 4 && images.size(1) == 3 && images.size(0) == std::ssize(asked),
               kShape, "[scene_judge] images must have shape [", asked.size(), ", 3, H, W], got ",
               images.sizes());
  std::vector<std::optional<std::vector<FoundObject>>> found;
  for (int64_t i = 0; i < images.size(0); ++i) {
    found.push_back(judge_scene(images[i]));
  }
  SceneScore score;
  std::array<int64_t, data::kMostObjects> num_others{};
  for (size_t i = 0; i < asked.size(); ++i) {
    const size_t kind = asked[i].objects.size() - 1;
    ++score.num_images[kind];
    score.num_right[kind] += found[i] && shows(*found[i], asked[i]) ? 1 : 0;
    for (size_t j = 0; j < asked.size(); ++j) {
      if (j != i && asked[j].objects.size() == asked[i].objects.size()) {
        ++num_others[kind];
        score.chance[kind] += found[i] && shows(*found[i], asked[j]) ? 1.0 : 0.0;
      }
    }
  }
  for (size_t kind = 0; kind < score.chance.size(); ++kind) {
    score.chance[kind] /= static_cast<double>(std::max<int64_t>(num_others[kind], 1));
  }
  return score;
}

}  // namespace kinora::eval
