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
namespace {

/// While one lives the autoencoder is one of `ranks`, where these divide so many rows of latents.
class UsedRanks {
 public:
  UsedRanks(models::Autoencoder& autoencoder, const comm::Group& ranks, int64_t rows)
      : autoencoder_(autoencoder), before_(autoencoder.limits().ranks) {
    if (ranks.size() > 1 && models::Autoencoder::divides(rows, ranks.size())) {
      autoencoder.use_ranks(ranks);
    }
  }
  UsedRanks(const UsedRanks&) = delete;
  UsedRanks& operator=(const UsedRanks&) = delete;
  ~UsedRanks() { autoencoder_.use_ranks(before_); }

 private:
  models::Autoencoder& autoencoder_;
  comm::Group before_;
};

}  // namespace

LatentEncoder LatentEncoder::together(const comm::Group& ranks) const {
  LatentEncoder result = *this;
  result.ranks_ = ranks;
  return result;
}

models::LatentMoments LatentEncoder::encode(const at::Tensor& pixels, bool mirrored) const {
  const at::NoGradGuard no_grad;
  const UsedRanks used(autoencoder_, ranks_, pixels.size(-2) / space().compression);
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
