#include "kinora/eval/picture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::eval {

using data::Rgb;

namespace {

constexpr int64_t kMaxSide = 64;  // larger pictures are reduced to at most this

}  // namespace

Picture to_picture(const at::Tensor& image, const char* judge) {
  KINORA_CHECK(image.dim() == 3 && image.size(0) == 3 && image.numel() > 0, kShape, "[", judge,
               "] an image must have shape [3, H, W], got ", image.sizes());
  const bool bytes = image.scalar_type() == at::kByte;
  KINORA_CHECK(bytes || image.is_floating_point(), kShape, "[", judge,
               "] an image must be of type uint8 or float, got ", image.scalar_type());
  const at::Tensor values = image.to(at::kCPU, at::kFloat).contiguous();
  const float scale = bytes ? 1.0F / 255.0F : 0.5F;
  const float offset = bytes ? 0.0F : 0.5F;
  const auto* data = values.const_data_ptr<float>();
  const int64_t height = values.size(1);
  const int64_t width = values.size(2);
  const int64_t box = ceil_div(std::max(height, width), kMaxSide);
  Picture picture{height / box, width / box, {}};
  picture.pixels.resize(static_cast<size_t>(picture.height * picture.width));
  for (int64_t row = 0; row < picture.height; ++row) {
    for (int64_t column = 0; column < picture.width; ++column) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        float sum = 0.0F;
        for (int64_t y = row * box; y < (row + 1) * box; ++y) {
          for (int64_t x = column * box; x < (column + 1) * box; ++x) {
            const float value = data[(channel * height + y) * width + x] * scale + offset;
            sum += std::clamp(value, 0.0F, 1.0F);
          }
        }
        picture.pixels[static_cast<size_t>(row * picture.width + column)]
                      [static_cast<size_t>(channel)] = sum / static_cast<float>(box * box);
      }
    }
  }
  return picture;
}

Rgb median(std::vector<Rgb>& values) {
  Rgb result{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  for (size_t channel = 0; channel < 3; ++channel) {
    std::nth_element(values.begin(), middle, values.end(),
                     [channel](const Rgb& a, const Rgb& b) { return a[channel] < b[channel]; });
    result[channel] = (*middle)[channel];
  }
  return result;
}

float distance(const Rgb& a, const Rgb& b) {
  const float red = a[0] - b[0];
  const float green = a[1] - b[1];
  const float blue = a[2] - b[2];
  return std::sqrt(red * red + green * green + blue * blue);
}

Rgb ground_colour(std::span<const Picture> pictures) {
  std::vector<Rgb> border;
  for (const Picture& picture : pictures) {
    for (int64_t row = 0; row < picture.height; ++row) {
      for (int64_t column = 0; column < picture.width; ++column) {
        if (row == 0 || column == 0 || row == picture.height - 1 || column == picture.width - 1) {
          border.push_back(picture.at(row, column));
        }
      }
    }
  }
  return median(border);
}

std::vector<std::vector<int64_t>> foreground_groups(const Picture& picture, const Rgb& ground,
                                                    float contrast) {
  const int64_t size = picture.height * picture.width;
  std::vector<bool> open(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    open[static_cast<size_t>(i)] =
        distance(picture.pixels[static_cast<size_t>(i)], ground) > contrast;
  }
  std::vector<std::vector<int64_t>> groups;
  std::vector<int64_t> group;
  const auto visit = [&](int64_t i) {
    if (open[static_cast<size_t>(i)]) {
      open[static_cast<size_t>(i)] = false;
      group.push_back(i);
    }
  };
  for (int64_t start = 0; start < size; ++start) {
    group.clear();
    visit(start);
    for (size_t next = 0; next < group.size(); ++next) {
      const int64_t i = group[next];
      const int64_t column = i % picture.width;
      if (column > 0) {
        visit(i - 1);
      }
      if (column < picture.width - 1) {
        visit(i + 1);
      }
      if (i >= picture.width) {
        visit(i - picture.width);
      }
      if (i < size - picture.width) {
        visit(i + picture.width);
      }
    }
    if (!group.empty()) {
      groups.push_back(group);
    }
  }
  return groups;
}

Foreground foreground(const Picture& picture, const Rgb& ground, float contrast) {
  Foreground result;
  for (std::vector<int64_t>& group : foreground_groups(picture, ground, contrast)) {
    result.num_different += std::ssize(group);
    if (group.size() > result.largest.size()) {
      result.largest = std::move(group);
    }
  }
  return result;
}

Centre centre_of(const std::vector<int64_t>& group, const Picture& picture) {
  const auto num_pixels = static_cast<float>(group.size());
  Centre centre;
  for (const int64_t i : group) {
    const int64_t row = i / picture.width;
    centre.x += (static_cast<float>(i % picture.width) + 0.5F) / num_pixels;
    centre.y += (static_cast<float>(row) + 0.5F) / num_pixels;
  }
  return centre;
}

}  // namespace kinora::eval
