#include "kinora/io/image_grid.h"

#include <cstring>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::io {
namespace {

struct Cells {
  int64_t rows;
  int64_t columns;
};

Cells cells_of(int64_t count, const GridOptions& options) {
  KINORA_CHECK(count > 0, kShape, "[image_grid] a grid must have at least one image, got none");
  for (const int64_t value : {options.rows, options.columns, options.padding}) {
    KINORA_CHECK(value >= 0 && value <= kMaxImageSide, kShape,
                 "[image_grid] rows, columns and padding must be in 0..", kMaxImageSide, ", got ",
                 options.rows, ", ", options.columns, " and ", options.padding);
  }
  int64_t columns = options.columns;
  if (columns == 0 && options.rows > 0) {
    columns = ceil_div(count, options.rows);
  }
  while (columns == 0 || (options.columns == 0 && options.rows == 0 && columns * columns < count)) {
    ++columns;
  }
  return {.rows = options.rows > 0 ? options.rows : ceil_div(count, columns), .columns = columns};
}

}  // namespace

Image make_grid(std::span<const Image> images, const GridOptions& options) {
  const auto count = static_cast<int64_t>(images.size());
  const auto [rows, columns] = cells_of(count, options);
  const Image& like = images.front();
  for (const Image& image : images) {
    KINORA_CHECK(image.height == like.height && image.width == like.width && image.channels == 3 &&
                     image.height > 0 && image.width > 0 &&
                     static_cast<int64_t>(image.pixels.size()) == image.height * image.width * 3,
                 kShape, "[image_grid] all images must be RGB of the first one's size, ",
                 like.width, " x ", like.height, ", got ", image.width, " x ", image.height,
                 " with ", image.channels, " channels and ", image.pixels.size(), " bytes");
  }
  const int64_t cell_height = like.height + options.padding;
  const int64_t cell_width = like.width + options.padding;
  const int64_t room = kMaxImageSide - options.padding;
  KINORA_CHECK(rows <= room / cell_height && columns <= room / cell_width, kShape,
               "[image_grid] the grid's sides must be at most ", kMaxImageSide, " pixels, got ",
               columns, " columns of ", cell_width, " and ", rows, " rows of ", cell_height);
  KINORA_CHECK(rows * columns >= count, kShape, "[image_grid] the grid must hold all ", count,
               " images, got ", rows, " rows of ", columns);

  Image grid;
  grid.height = rows * cell_height + options.padding;
  grid.width = columns * cell_width + options.padding;
  grid.pixels.resize(static_cast<size_t>(grid.height * grid.width * 3));
  for (size_t i = 0; i < grid.pixels.size(); i += 3) {
    std::memcpy(grid.pixels.data() + i, options.background.data(), 3);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t top = options.padding + i / columns * cell_height;
    const int64_t left = options.padding + i % columns * cell_width;
    const Image& image = images[static_cast<size_t>(i)];
    for (int64_t y = 0; y < image.height; ++y) {
      std::memcpy(grid.pixels.data() + ((top + y) * grid.width + left) * 3,
                  image.pixels.data() + y * image.width * 3, static_cast<size_t>(image.width * 3));
    }
  }
  return grid;
}

std::vector<Image> split_grid(const Image& grid, int64_t count, const GridOptions& options) {
  const auto [rows, columns] = cells_of(count, options);
  const int64_t cell_height = (grid.height - options.padding) / rows;
  const int64_t cell_width = (grid.width - options.padding) / columns;
  const Image like{.height = cell_height - options.padding,
                   .width = cell_width - options.padding,
                   .channels = 3,
                   .pixels = {}};
  KINORA_CHECK(like.height > 0 && like.width > 0 && grid.channels == 3 && rows * columns >= count &&
                   rows * cell_height + options.padding == grid.height &&
                   columns * cell_width + options.padding == grid.width,
               kShape, "[image_grid] a grid of ", count, " images in ", rows, " rows and ", columns,
               " columns cannot be ", grid.width, " x ", grid.height, " pixels");
  std::vector<Image> images(static_cast<size_t>(count), like);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t top = options.padding + i / columns * cell_height;
    const int64_t left = options.padding + i % columns * cell_width;
    Image& image = images[static_cast<size_t>(i)];
    for (int64_t y = 0; y < image.height; ++y) {
      const auto begin = grid.pixels.begin() + ((top + y) * grid.width + left) * 3;
      image.pixels.insert(image.pixels.end(), begin, begin + image.width * 3);
    }
  }
  return images;
}

}  // namespace kinora::io
