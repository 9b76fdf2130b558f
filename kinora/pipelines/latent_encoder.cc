#include "kinora/pipelines/latent_encoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kinora/data/normalise.h"
#include "kinora/ops/random.h"

namespace kinora::pipelines {

models::LatentMoments LatentEncoder::encode(const at::Tensor& pixels, bool mirrored) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> stds;
  const at::Tensor on_device = pixels.to(device_, /*non_blocking=*/true);
  for (int64_t first = 0; first < pixels.size(0); first += micro_batch_) {
    const int64_t size = std::min(micro_batch_, pixels.size(0) - first);
    at::Tensor part = data::to_float(on_device.narrow(0, first, size), device_);
    if (mirrored) {
      part = part.flip({-1});
    }
    const models::LatentMoments moments = autoencoder_.encode(part);
    means.push_back(moments.mean.to(at::kFloat));
    if (moments.std.defined()) {
      stds.push_back(moments.std.to(at::kFloat));
    }
  }
  return {.mean = at::cat(means), .std = stds.empty() ? at::Tensor() : at::cat(stds)};
}

LatentEncoder::Shape LatentEncoder::shape_of(int64_t frames, int64_t height, int64_t width) const {
  std::vector<int64_t> sizes = {1, 3, height, width};
  if (frames > 1) {
    sizes.insert(sizes.begin() + 2, frames);
  }
  const models::LatentMoments moments = encode(at::zeros(sizes, at::kByte));
  return {.latent = moments.mean.sizes().slice(1).vec(), .std = moments.std.defined()};
}

at::Tensor draw_latents(const models::LatentMoments& moments, const at::Tensor& sample_index,
                        uint64_t seed) {
  if (!moments.std.defined()) {
    return moments.mean;
  }
  const at::Tensor noise = ops::random_normal(moments.mean.sizes(), sample_index, seed, /*step=*/0,
                                              RandomPurpose::kLatent, moments.mean.device());
  return at::addcmul(moments.mean, moments.std, noise);
}

}  // namespace kinora::pipelines
