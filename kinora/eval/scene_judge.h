#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kinora/data/scenes.h"

/// Tells exactly what a picture of the generated scenes (data/scenes.h) shows, by geometry and hue,
/// not by a trained model and without knowing what was asked for.
namespace kinora::eval {

/// An object as it was found; places in sides of the picture.
struct FoundObject {
  data::ObjectKind kind;
  data::Placement place;
};

/// The objects of `image`, square [3, H, W] of uint8 or of float in [-1, 1]. Nothing unless it
/// shows whole shapes of the colours on a plain ground, apart from each other, and nothing else.
/// Bears the faults of sampled pictures: blur of about half a pixel at 32 x 32, noise of standard
/// deviation 0.05 (of the range 0 to 1).
[[nodiscard]] std::optional<std::vector<FoundObject>> judge_scene(const at::Tensor& image);

/// Whether just the objects of `content` are there, and each lies as it says: half of
/// data::kMinSeparation that way from the first or more.
[[nodiscard]] bool shows(const std::vector<FoundObject>& found, const data::SceneContent& content);

/// Of how many objects of `layout` one of its kind was found in its box: they overlap by half or
/// more (intersection over union). kConfig for a phrase that names no kind.
[[nodiscard]] int64_t num_in_boxes(const std::vector<FoundObject>& found,
                                   const data::Layout& layout);

/// How many objects lie in the boxes that were asked for, and in how many pictures all of them do
/// and nothing else is there, by number of objects.
struct LayoutScore {
  std::array<int64_t, data::kMostObjects> num_in_boxes{};
  std::array<int64_t, data::kMostObjects> num_objects{};
  std::array<int64_t, data::kMostObjects> num_right{};
  std::array<int64_t, data::kMostObjects> num_images{};
};

/// Of images [B, 3, H, W], of which the i-th was to show asked[i], 1 to kMostObjects objects.
/// Throws Error (kShape), kConfig.
[[nodiscard]] LayoutScore judge_layouts(const at::Tensor& images,
                                        std::span<const data::Layout> asked);

/// Right ones by number of objects.
struct SceneScore {
  std::array<int64_t, data::kMostObjects> num_right{};
  std::array<int64_t, data::kMostObjects> num_images{};
  /// Right ones if each picture is judged by every other asked content of as many objects.
  std::array<double, data::kMostObjects> chance{};
};

/// Of images [B, 3, H, W], of which the i-th was to show asked[i]. Throws Error (kShape).
[[nodiscard]] SceneScore judge_scenes(const at::Tensor& images,
                                      std::span<const data::SceneContent> asked);

}  // namespace kinora::eval
