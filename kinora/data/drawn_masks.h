#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kinora/core/philox.h"
#include "kinora/data/wrapped_source.h"
#include "kinora/io/image.h"

/// Which part of a picture a U-Net for inpainting learns to fill in, where no file says it.
namespace kinora::data {

/// A mask, white in that part, by the elements 0 and up of `stream`: one in four is white as a
/// whole, as Stable Diffusion's U-Net for inpainting was trained; of the others one half are 1 to 4
/// rectangles, the other half 1 to 5 chains of up to 5 wide strokes, each of the sizes that LaMa's
/// wide masks have at 256 x 256 pixels (Suvorov et al. 2022, "Resolution-robust large mask
/// inpainting"), in proportion to the shorter side.
[[nodiscard]] io::Image drawn_mask(int64_t height, int64_t width, const RandomStream& stream);

/// Gives the pictures of another source such masks: by Sample::mask_draws or, without, by `seed`
/// and the sample's number, always the same.
class DrawnMaskSource : public WrappedSource {
 public:
  DrawnMaskSource(std::unique_ptr<Source> inner, uint64_t seed)
      : WrappedSource(std::move(inner)), seed_(seed) {}

  [[nodiscard]] PicturesBeside beside() const override {
    PicturesBeside beside = WrappedSource::beside();
    beside.mask = true;
    return beside;
  }
  void read(int64_t index, Sample& out) const override;

 private:
  uint64_t seed_;
};

}  // namespace kinora::data
