#include "kinora/io/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::io {
namespace {

constexpr int kPrecisionBits = 32 - 8 - 2;  // 8-bit pixels, 2 bits of headroom for overshoot
constexpr int32_t kHalf = 1 << (kPrecisionBits - 1);
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

uint8_t to_pixel(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
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

const Resizer::Table& Resizer::table(int64_t in_size, int64_t out_size, Window window,
                                     Filter filter) {
  for (Table& known : tables_) {
    if (known.in_size == in_size && known.out_size == out_size &&
        known.window.begin == window.begin && known.window.count == window.count &&
        known.filter == filter) {
      known.last_use = ++num_uses_;
      return known;
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
  const double support = (filter == Filter::kBox ? 0.5 : 2.0) * filter_scale;
  const double inverse = 1.0 / filter_scale;
  table.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  table.first.resize(static_cast<size_t>(window.count));
  table.taps.resize(static_cast<size_t>(window.count));
  table.weights.assign(static_cast<size_t>(window.count * table.stride), 0);
  std::vector<double> exact(static_cast<size_t>(table.stride));
  for (int64_t i = 0; i < window.count; ++i) {
    const double center = (static_cast<double>(window.begin + i) + 0.5) * scale;
    const int64_t first = static_cast<int64_t>(std::max(std::floor(center - support + 0.5), 0.0));
    const int64_t last =
        std::min(static_cast<int64_t>(std::floor(center + support + 0.5)), in_size);
    double total = 0.0;
    for (int64_t k = first; k < last; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) * inverse;
      exact[static_cast<size_t>(k - first)] = filter == Filter::kBox ? box(x) : bicubic(x);
      total += exact[static_cast<size_t>(k - first)];
    }
    table.first[static_cast<size_t>(i)] = first;
    table.taps[static_cast<size_t>(i)] = last - first;
    int32_t* weights = table.weights.data() + i * table.stride;
    for (int64_t k = 0; k < last - first; ++k) {
      double weight = exact[static_cast<size_t>(k)];
      if (total != 0.0) {
        weight /= total;
      }
      weights[k] =
          static_cast<int32_t>((weight < 0.0 ? -0.5 : 0.5) + weight * (1 << kPrecisionBits));
    }
  }
  return table;
}

void Resizer::resize_window(const Image& image, int64_t height, int64_t width, Window rows,
                            Window columns, Filter filter, Image& out) {
  // The input rows that the pass along columns will read.
  const bool filter_rows = image.width != width;
  const bool filter_columns = image.height != height;
  const Table* vertical = nullptr;
  Window in_rows = rows;
  if (filter_columns) {
    vertical = &table(image.height, height, rows, filter);
    in_rows.begin = vertical->first.front();
    in_rows.count = vertical->first.back() + vertical->taps.back() - in_rows.begin;
  }
  const size_t row_bytes = static_cast<size_t>(columns.count) * 3;
  set_size(out, rows.count, columns.count);
  uint8_t* along = out.pixels.data();
  if (filter_columns) {
    rows_.resize(static_cast<size_t>(in_rows.count) * row_bytes);
    along = rows_.data();
  }

  // Along rows.
  const Table* horizontal = filter_rows ? &table(image.width, width, columns, filter) : nullptr;
  for (int64_t row = 0; row < in_rows.count; ++row) {
    const uint8_t* in = image.pixels.data() + (in_rows.begin + row) * image.width * 3;
    uint8_t* to = along + static_cast<size_t>(row) * row_bytes;
    if (horizontal == nullptr) {
      std::memcpy(to, in + columns.begin * 3, row_bytes);
      continue;
    }
    const int32_t* weights = horizontal->weights.data();
    for (size_t i = 0; i < static_cast<size_t>(columns.count); ++i) {
      const uint8_t* pixel = in + horizontal->first[i] * 3;
      const int64_t taps = horizontal->taps[i];
      int32_t red = kHalf;
      int32_t green = kHalf;
      int32_t blue = kHalf;
      for (int64_t k = 0; k < taps; ++k) {
        red += pixel[3 * k] * weights[k];
        green += pixel[3 * k + 1] * weights[k];
        blue += pixel[3 * k + 2] * weights[k];
      }
      to[3 * i] = to_pixel(red);
      to[3 * i + 1] = to_pixel(green);
      to[3 * i + 2] = to_pixel(blue);
      weights += horizontal->stride;
    }
  }
  if (!filter_columns) {
    return;
  }

  // Along columns, a whole row at a time.
  sums_.resize(row_bytes);
  int32_t* const sums = sums_.data();
  for (size_t i = 0; i < static_cast<size_t>(rows.count); ++i) {
    std::fill(sums_.begin(), sums_.end(), kHalf);
    const int32_t* weights = vertical->weights.data() + static_cast<int64_t>(i) * vertical->stride;
    const uint8_t* in =
        rows_.data() + static_cast<size_t>(vertical->first[i] - in_rows.begin) * row_bytes;
    for (int64_t k = 0; k < vertical->taps[i]; ++k, in += row_bytes) {
      const int32_t weight = weights[k];
      for (size_t x = 0; x < row_bytes; ++x) {
        sums[x] += in[x] * weight;
      }
    }
    uint8_t* to = out.pixels.data() + i * row_bytes;
    for (size_t x = 0; x < row_bytes; ++x) {
      to[x] = to_pixel(sums[x]);
    }
  }
}

void Resizer::resize(const Image& image, int64_t height, int64_t width, Filter filter, Image& out) {
  check_image(image);
  check_target(height, width);
  resize_window(image, height, width, {0, height}, {0, width}, filter, out);
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
  const double scale = std::max(static_cast<double>(height) / static_cast<double>(from->height),
                                static_cast<double>(width) / static_cast<double>(from->width));
  const int64_t full_height = round_half_even(static_cast<double>(from->height) * scale);
  const int64_t full_width = round_half_even(static_cast<double>(from->width) * scale);
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
