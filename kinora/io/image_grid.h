#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kinora/io/image.h"

namespace kinora::io {

struct GridOptions {
  int64_t rows = 0;  ///< 0: as many as the images need
  int64_t columns =
      0;  ///< 0: with rows = 0 the least square that holds all, else as many as needed
  int64_t padding = 2;                            ///< pixels around and between the images
  std::array<uint8_t, 3> background = {0, 0, 0};  ///< RGB of padding and empty cells
};

/// Lays `images`, all of one size, out row by row. Errors (kShape): no images, different sizes,
/// more images than rows x columns, or a grid with sides beyond kMaxImageSide.
[[nodiscard]] Image make_grid(std::span<const Image> images, const GridOptions& options = {});

/// The images of a grid that make_grid made of `count` ones with these options. kShape for one that
/// it cannot have made.
[[nodiscard]] std::vector<Image> split_grid(const Image& grid, int64_t count,
                                            const GridOptions& options = {});

}  // namespace kinora::io
