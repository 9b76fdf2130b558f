#include "kinora/pipelines/class_to_image.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>

#include "kinora/core/error.h"

namespace kinora::pipelines {

at::Tensor sample_classes(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                          const SamplingConfig& config, const ClassToImageRequest& request,
                          at::IntArrayRef sample_shape, int64_t null_class, at::Device device,
                          const std::function<void(double)>& progress) {
  KINORA_CHECK(!request.classes.empty() && request.count > 0 && request.batch > 0, kConfig,
               "[sample] classes, count and batch must not be empty or 0");
  for (const int64_t label : request.classes) {
    KINORA_CHECK(label >= 0 && label < null_class, kConfig, "[sample] classes must lie in 0 to ",
                 null_class - 1, ", got ", label);
  }
  const auto num_classes = static_cast<int64_t>(request.classes.size());
  const diffusion::Guidance guidance_of_all{.scale = config.guidance,
                                            .channels = config.guidance_channels,
                                            .low = config.guidance_interval[0],
                                            .high = config.guidance_interval[1]};
  diffusion::RecordedSampler recorded(denoiser, sampler, guidance_of_all, request.seed, device);
  std::vector<at::Tensor> results;
  for (int64_t done = 0; done < request.count; done += request.batch) {
    const int64_t batch = std::min(request.batch, request.count - done);
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < batch; ++i) {
      labels.push_back(
          request.classes[static_cast<size_t>((request.first_index + done + i) % num_classes)]);
    }
    diffusion::Guidance guidance = guidance_of_all;
    guidance.null.labels = at::full({batch}, null_class, at::device(device).dtype(at::kLong));
    std::vector<int64_t> shape = {batch};
    shape.insert(shape.end(), sample_shape.begin(), sample_shape.end());
    const auto report = [&](const diffusion::SampleProgress& step) {
      if (progress) {
        progress(static_cast<double>(done) +
                 static_cast<double>(batch * step.step) / static_cast<double>(step.total));
      }
    };
    const int64_t first = request.first_index + done;
    const diffusion::Conditions conditions{.labels = at::tensor(labels, at::kLong).to(device)};
    const at::Tensor sample_index = at::arange(first, first + batch, at::kLong);
    if (request.graphs && request.count >= 2 * request.batch && batch == request.batch) {
      results.push_back(recorded.sample(shape, conditions, guidance.null, sample_index).cpu());
      if (progress) {
        progress(static_cast<double>(done + batch));
      }
    } else {
      results.push_back(diffusion::sample(denoiser, sampler, shape, conditions, guidance,
                                          {.seed = request.seed, .sample_index = sample_index},
                                          device, report)
                            .cpu());
    }
  }
  return at::cat(results);
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
