#include "kinora/pipelines/images.h"

#include <ATen/TensorOperators.h>

#include <cstring>

#include "kinora/core/error.h"

namespace kinora::pipelines {

std::vector<io::Image> to_images(const at::Tensor& pixels) {
  KINORA_CHECK(pixels.dim() == 4 && (pixels.size(1) == 3 || pixels.size(1) == 1), kShape,
               "[sample] only pixels [B, 3 or 1, H, W] can be shown as images, got ",
               pixels.sizes());
  const at::Tensor bytes = ((pixels.to(at::kFloat) + 1.0) * 127.5)
                               .round()
                               .clamp(0, 255)
                               .to(at::kByte)
                               .expand({-1, 3, -1, -1})
                               .permute({0, 2, 3, 1})
                               .contiguous()
                               .cpu();  // [B, H, W, 3]
  std::vector<io::Image> images;
  for (int64_t i = 0; i < bytes.size(0); ++i) {
    io::Image image{.height = bytes.size(1), .width = bytes.size(2), .channels = 3, .pixels = {}};
    image.pixels.resize(static_cast<size_t>(bytes[i].numel()));
    std::memcpy(image.pixels.data(), bytes[i].const_data_ptr<uint8_t>(), image.pixels.size());
    images.push_back(std::move(image));
  }
  return images;
}

}  // namespace kinora::pipelines
