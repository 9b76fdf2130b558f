#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kinora/io/image.h"

/// Pictures of few colours, for GIF.
namespace kinora::io {

using Colour = std::array<uint8_t, 3>;  ///< RGB

/// At most 256 colours for RGB images, and what each of their pixels becomes.
class Palette {
 public:
  /// All colours of `images` where these are at most 256. Otherwise median cut (P. Heckbert, "Color
  /// image quantization for frame buffer display", 1982) of the colour cube in steps of 8: the box
  /// with the largest squared error is cut at its mean across its longest spread, again and again.
  explicit Palette(std::span<const Image> images);

  [[nodiscard]] const std::vector<Colour>& colours() const { return colours_; }

  /// The positions of the colours of `image`, one of those that the palette was made for. Where
  /// colours had to be left out, errors go on to the neighbours (R. Floyd and L. Steinberg, 1976).
  [[nodiscard]] std::vector<uint8_t> apply(const Image& image);

 private:
  /// The position of `colour`, or of one near it.
  [[nodiscard]] uint8_t find(const Colour& colour);

  std::vector<Colour> colours_;
  bool is_exact_ = false;  // colours_ are sorted then
  std::vector<int16_t>
      nearest_;  // by the upper five bits of red, green and blue; -1: not known yet
};

}  // namespace kinora::io
