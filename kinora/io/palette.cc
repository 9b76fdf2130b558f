#include "kinora/io/palette.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>

namespace kinora::io {
namespace {

constexpr size_t kMaxColours = 256;
constexpr size_t kNumCells = 1 << 15;

Colour colour_at(const Image& image, size_t pixel) {
  return {image.pixels[3 * pixel], image.pixels[3 * pixel + 1], image.pixels[3 * pixel + 2]};
}

size_t cell_of(const Colour& colour) {
  return static_cast<size_t>(colour[0] >> 3) << 10 | static_cast<size_t>(colour[1] >> 3) << 5 |
         static_cast<size_t>(colour[2] >> 3);
}

/// All colours in order; more than kMaxColours of them if there are more.
std::vector<Colour> colours_of(std::span<const Image> images) {
  std::set<Colour> colours;
  for (const Image& image : images) {
    Colour last = colour_at(image, 0);
    colours.insert(last);
    for (size_t i = 1; i < image.pixels.size() / 3 && colours.size() <= kMaxColours; ++i) {
      const Colour colour = colour_at(image, i);
      if (colour != last) {
        colours.insert(colour);
        last = colour;
      }
    }
  }
  return {colours.begin(), colours.end()};
}

/// The pixels whose colours lie in one cell of the colour cube.
struct Cell {
  double count = 0.0;
  std::array<double, 3> sum = {};

  [[nodiscard]] double mean(size_t channel) const { return sum[channel] / count; }
};

std::vector<Cell> cells_of(std::span<const Image> images) {
  std::vector<Cell> cells(kNumCells);
  for (const Image& image : images) {
    for (size_t i = 0; i < image.pixels.size() / 3; ++i) {
      const Colour colour = colour_at(image, i);
      Cell& cell = cells[cell_of(colour)];
      cell.count += 1.0;
      for (size_t channel = 0; channel < 3; ++channel) {
        cell.sum[channel] += colour[channel];
      }
    }
  }
  std::erase_if(cells, [](const Cell& cell) { return cell.count == 0.0; });
  return cells;
}

/// Neighbouring cells that become one colour.
struct Box {
  explicit Box(std::span<Cell> all) : cells(all) {
    for (const Cell& cell : cells) {
      count += cell.count;
      for (size_t c = 0; c < 3; ++c) {
        mean[c] += cell.sum[c];
      }
    }
    std::array<double, 3> errors = {};
    for (size_t c = 0; c < 3; ++c) {
      mean[c] /= count;
      for (const Cell& cell : cells) {
        errors[c] += cell.count * (cell.mean(c) - mean[c]) * (cell.mean(c) - mean[c]);
      }
    }
    widest = static_cast<size_t>(std::max_element(errors.begin(), errors.end()) - errors.begin());
    error = cells.size() > 1 ? errors[0] + errors[1] + errors[2] : 0.0;
  }

  std::span<Cell> cells;
  double count = 0.0;
  std::array<double, 3> mean = {};
  size_t widest = 0;   // channel
  double error = 0.0;  // what cutting could win
};

std::vector<Colour> median_cut(std::vector<Cell> cells) {
  std::vector<Box> boxes = {Box(cells)};
  const auto by_error = [](const Box& a, const Box& b) { return a.error < b.error; };
  while (boxes.size() < kMaxColours && boxes.front().error > 0.0) {
    std::pop_heap(boxes.begin(), boxes.end(), by_error);
    const Box box = boxes.back();
    boxes.pop_back();
    const auto cut = std::partition(box.cells.begin(), box.cells.end(), [&box](const Cell& cell) {
      return cell.mean(box.widest) < box.mean[box.widest];
    });
    for (const std::span<Cell> half :
         {std::span(box.cells.begin(), cut), std::span(cut, box.cells.end())}) {
      boxes.emplace_back(half);
      std::push_heap(boxes.begin(), boxes.end(), by_error);
    }
  }
  std::vector<Colour> colours;
  for (const Box& box : boxes) {
    Colour& colour = colours.emplace_back();
    for (size_t c = 0; c < 3; ++c) {
      colour[c] = static_cast<uint8_t>(std::lround(box.mean[c]));
    }
  }
  return colours;
}

}  // namespace

Palette::Palette(std::span<const Image> images) : colours_(colours_of(images)) {
  is_exact_ = colours_.size() <= kMaxColours;
  if (!is_exact_) {
    colours_ = median_cut(cells_of(images));
    nearest_.assign(kNumCells, -1);
  }
}

uint8_t Palette::find(const Colour& colour) {
  if (is_exact_) {
    return static_cast<uint8_t>(std::lower_bound(colours_.begin(), colours_.end(), colour) -
                                colours_.begin());
  }
  int16_t& nearest = nearest_[cell_of(colour)];
  if (nearest < 0) {
    const auto distance = [&colour](const Colour& other) {
      int64_t sum = 0;
      for (size_t c = 0; c < 3; ++c) {
        const int64_t centre = (colour[c] & 0xf8) + 4;
        sum += (centre - other[c]) * (centre - other[c]);
      }
      return sum;
    };
    nearest = static_cast<int16_t>(std::min_element(colours_.begin(), colours_.end(),
                                                    [&](const Colour& a, const Colour& b) {
                                                      return distance(a) < distance(b);
                                                    }) -
                                   colours_.begin());
  }
  return static_cast<uint8_t>(nearest);
}

std::vector<uint8_t> Palette::apply(const Image& image) {
  const auto width = static_cast<size_t>(image.width);
  std::vector<uint8_t> positions(image.pixels.size() / 3);
  // In sixteenths, of this row and the next, with a pixel of room at both ends.
  std::vector<std::array<int, 3>> here(width + 2);
  std::vector<std::array<int, 3>> below(width + 2);
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t x = i % width;
    if (x == 0) {
      here.swap(below);
      below.assign(width + 2, {});
    }
    Colour wanted = colour_at(image, i);
    for (size_t c = 0; c < 3; ++c) {
      wanted[c] = static_cast<uint8_t>(std::clamp(wanted[c] + (here[x + 1][c] + 8) / 16, 0, 255));
    }
    positions[i] = find(wanted);
    const Colour& got = colours_[positions[i]];
    for (size_t c = 0; c < 3; ++c) {
      const int error = wanted[c] - got[c];
      here[x + 2][c] += 7 * error;
      below[x][c] += 3 * error;
      below[x + 1][c] += 5 * error;
      below[x + 2][c] += error;
    }
  }
  return positions;
}

}  // namespace kinora::io
