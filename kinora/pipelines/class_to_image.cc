#include "kinora/pipelines/class_to_image.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cstring>

#include "kinora/core/error.h"
#include "kinora/pipelines/draw.h"

namespace kinora::pipelines {

at::Tensor sample_classes(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                          const SamplingConfig& config, const ClassToImageRequest& request,
                          at::IntArrayRef sample_shape, int64_t null_class, at::Device device,
                          const std::function<void(double)>& progress) {
  KINORA_CHECK(!request.classes.empty(), kConfig, "[sample] classes must not be empty");
  for (const int64_t label : request.classes) {
    KINORA_CHECK(label >= 0 && label < null_class, kConfig, "[sample] classes must lie in 0 to ",
                 null_class - 1, ", got ", label);
  }
  const auto num_classes = static_cast<int64_t>(request.classes.size());
  const auto conditions_of = [&](int64_t first, int64_t size) {
    std::vector<int64_t> labels;
    for (int64_t i = first; i < first + size; ++i) {
      labels.push_back(request.classes[static_cast<size_t>(i % num_classes)]);
    }
    return DrawConditions{
        .conditions = {.labels = at::tensor(labels, at::kLong).to(device)},
        .null = {.labels = at::full({size}, null_class, at::device(device).dtype(at::kLong))}};
  };
  return draw(denoiser, sampler, config,
              {.count = request.count,
               .first_index = request.first_index,
               .batch = request.batch,
               .seed = request.seed,
               .graphs = request.graphs},
              sample_shape, conditions_of, device, progress);
}

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
