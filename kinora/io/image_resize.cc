#include "kinora/io/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::io {
namespace {

// Both axes of two sizes, and the halvings before them.
constexpr size_t kMaxTables = 16;

double box(double x) {
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) {
    return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  }
  if (x < 2.0) {
    return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  }
  return 0.0;
}

double sinc(double x) {
  x *= std::numbers::pi;
  return x == 0.0 ? 1.0 : std::sin(x) / x;
}

double lanczos(double x) {
  return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

/// Where it is not 0, of pixels that are not made smaller.
double support_of(Filter filter) {
  switch (filter) {
    case Filter::kBox:
      return 0.5;
    case Filter::kBicubic:
      return 2.0;
    case Filter::kLanczos:
      return 3.0;
  }
  KINORA_UNREACHABLE("[image_resize] unknown filter");
}

double weight_at(Filter filter, double x) {
  switch (filter) {
    case Filter::kBox:
      return box(x);
    case Filter::kBicubic:
      return bicubic(x);
    case Filter::kLanczos:
      return lanczos(x);
  }
  KINORA_UNREACHABLE("[image_resize] unknown filter");
}

void check_image(const Image& image) {
  KINORA_CHECK(image.channels == 3 && image.height > 0 && image.width > 0 &&
                   static_cast<int64_t>(image.pixels.size()) == image.height * image.width * 3,
               kShape, "[image_resize] the image must be RGB and not empty, got ", image.width,
               " x ", image.height, " with ", image.channels, " channels and ", image.pixels.size(),
               " bytes");
}

void check_target(int64_t height, int64_t width) {
  KINORA_CHECK(height >= 1 && height <= kMaxImageSide && width >= 1 && width <= kMaxImageSide,
               kShape, "[image_resize] the target's sides must be in 1..", kMaxImageSide, ", got ",
               width, " x ", height);
}

// Python's round(): halves to even, which is the default rounding mode.
int64_t round_half_even(double x) {
  return static_cast<int64_t>(std::nearbyint(x));
}

}  // namespace

const AxisFilter& Resizer::axis_filter(int64_t in_size, int64_t out_size, Window window,
                                       Filter filter) {
  for (Table& known : tables_) {
    if (known.in_size == in_size && known.out_size == out_size &&
        known.window.begin == window.begin && known.window.count == window.count &&
        known.filter == filter) {
      known.last_use = ++num_uses_;
      return known.axis;
    }
  }
  if (tables_.size() < kMaxTables) {
    tables_.reserve(kMaxTables);  // so that references stay valid
    tables_.emplace_back();
  }
  Table& table = *std::min_element(
      tables_.begin(), tables_.end(),
      [](const Table& a, const Table& b) { return a.last_use < b.last_use; });  // a new one has 0
  table.last_use = ++num_uses_;
  table.in_size = in_size;
  table.out_size = out_size;
  table.window = window;
  table.filter = filter;

  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double filter_scale = std::max(scale, 1.0);
  const double support = support_of(filter) * filter_scale;
  const double inverse = 1.0 / filter_scale;
  AxisFilter& axis = table.axis;
  axis.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  axis.first.resize(static_cast<size_t>(window.count));
  axis.taps.resize(static_cast<size_t>(window.count));
  axis.weights.assign(static_cast<size_t>(window.count * axis.stride), 0);
  std::vector<double> exact(static_cast<size_t>(axis.stride));
  for (int64_t i = 0; i < window.count; ++i) {
    const double center = (static_cast<double>(window.begin + i) + 0.5) * scale;
    const int64_t first = static_cast<int64_t>(std::max(std::floor(center - support + 0.5), 0.0));
    const int64_t last =
        std::min(static_cast<int64_t>(std::floor(center + support + 0.5)), in_size);
    double total = 0.0;
    for (int64_t k = first; k < last; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) * inverse;
      exact[static_cast<size_t>(k - first)] = weight_at(filter, x);
      total += exact[static_cast<size_t>(k - first)];
    }
    axis.first[static_cast<size_t>(i)] = first;
    axis.taps[static_cast<size_t>(i)] = last - first;
    int32_t* weights = axis.weights.data() + i * axis.stride;
    for (int64_t k = 0; k < last - first; ++k) {
      double weight = exact[static_cast<size_t>(k)];
      if (total != 0.0) {
        weight /= total;
      }
      weights[k] = static_cast<int32_t>((weight < 0.0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
    }
  }
  return axis;
}

void Resizer::resize_window(const Image& image, int64_t height, int64_t width, Window rows,
                            Window columns, Filter filter, Image& out) {
  const int64_t row_bytes = columns.count * 3;
  set_size(out, rows.count, columns.count);
  const AxisFilter* vertical =
      image.height != height ? &axis_filter(image.height, height, rows, filter) : nullptr;
  Rows along{.pixels = image.pixels.data() + rows.begin * image.width * 3,
             .count = rows.count,
             .stride = image.width * 3};
  if (vertical != nullptr) {  // those that the pass along columns will read
    along.pixels = image.pixels.data() + vertical->begin() * image.width * 3;
    along.count = vertical->end() - vertical->begin();
  }
  if (image.width != width) {
    uint8_t* filtered = out.pixels.data();
    if (vertical != nullptr) {
      rows_.resize(static_cast<size_t>(along.count * row_bytes));
      filtered = rows_.data();
    }
    filter_along_rows(along, axis_filter(image.width, width, columns, filter), scratch_, filtered);
    along = {.pixels = filtered, .count = along.count, .stride = row_bytes};
  } else {
    along.pixels += columns.begin * 3;
  }
  if (vertical != nullptr) {
    filter_along_columns(along, *vertical, row_bytes, out.pixels.data());
  } else if (along.pixels != out.pixels.data()) {
    for (int64_t row = 0; row < rows.count; ++row) {
      std::memcpy(out.pixels.data() + row * row_bytes, along.pixels + row * along.stride,
                  static_cast<size_t>(row_bytes));
    }
  }
}

void Resizer::resize(const Image& image, int64_t height, int64_t width, Filter filter, Image& out) {
  check_image(image);
  check_target(height, width);
  resize_window(image, height, width, {0, height}, {0, width}, filter, out);
}

Region center_crop_region(ImageSize size, int64_t height, int64_t width) {
  // Input pixels for one of the output. All steps keep the middle where it is.
  const double scale = std::min(static_cast<double>(size.height) / static_cast<double>(height),
                                static_cast<double>(size.width) / static_cast<double>(width));
  // On both sides the bicubic filter reaches 2 pixels far, as wide as it shrinks, halvings 1, and
  // rounding of sizes moves the window by up to 2.
  const double reach = 5.0 * std::max(scale, 1.0);
  const auto begin = [&](int64_t side, int64_t window) {
    const double first = (static_cast<double>(side) - static_cast<double>(window) * scale) / 2.0;
    return static_cast<int64_t>(std::max(0.0, std::floor(first - reach)));
  };
  const int64_t top = begin(size.height, height);
  const int64_t left = begin(size.width, width);
  return {.top = top, .left = left, .bottom = size.height - top, .right = size.width - left};
}

namespace {

/// The size of which center_crop cuts, after its halvings to `size`.
ImageSize covering_size(ImageSize size, int64_t height, int64_t width) {
  const double scale = std::max(static_cast<double>(height) / static_cast<double>(size.height),
                                static_cast<double>(width) / static_cast<double>(size.width));
  return {round_half_even(static_cast<double>(size.height) * scale),
          round_half_even(static_cast<double>(size.width) * scale)};
}

}  // namespace

ImageSize center_crop_offset(ImageSize size, int64_t height, int64_t width) {
  check_target(height, width);
  while (size.height >= 2 * height && size.width >= 2 * width) {
    size = {size.height / 2, size.width / 2};
  }
  const ImageSize covering = covering_size(size, height, width);
  return {(covering.height - height) / 2, (covering.width - width) / 2};
}

void Resizer::center_crop(const Image& image, int64_t height, int64_t width, Image& out) {
  check_image(image);
  check_target(height, width);
  const Image* from = &image;
  for (size_t turn = 0; from->height >= 2 * height && from->width >= 2 * width; turn ^= 1) {
    const int64_t half_height = from->height / 2;
    const int64_t half_width = from->width / 2;
    resize_window(*from, half_height, half_width, {0, half_height}, {0, half_width}, Filter::kBox,
                  halved_[turn]);
    from = &halved_[turn];
  }
  const auto [full_height, full_width] = covering_size({from->height, from->width}, height, width);
  // Only the pixels that stay are computed: a strip of extreme shape costs no more than others.
  resize_window(*from, full_height, full_width, {(full_height - height) / 2, height},
                {(full_width - width) / 2, width}, Filter::kBicubic, out);
}

Image resize(const Image& image, int64_t height, int64_t width, Filter filter) {
  Image out;
  Resizer().resize(image, height, width, filter, out);
  return out;
}

Image center_crop(const Image& image, int64_t height, int64_t width) {
  Image out;
  Resizer().center_crop(image, height, width, out);
  return out;
}

}  // namespace kinora::io
