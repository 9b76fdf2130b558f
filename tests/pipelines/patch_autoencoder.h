#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>

#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/ops/random.h"

namespace kinora {

/// An autoencoder in one line, for tests: every channel's mean and deviation are fixed random
/// weighted sums of a patch of 4 x 4 pixels. In double precision, so that how many pictures are
/// computed at once does not show.
class PatchAutoencoder : public models::Autoencoder {
 public:
  static constexpr int64_t kPatch = 4;
  static constexpr int64_t kChannels = 3;

  /// frame_compression: what it says of itself, frames stay as many.
  explicit PatchAutoencoder(bool variational = true, int64_t frame_compression = 1)
      : Autoencoder({.channels = kChannels,
                     .compression = kPatch,
                     .frame_compression = frame_compression,
                     .scale = {0.5}}),
        variational_(variational),
        weights_(ops::random_normal({2, kChannels * 3 * kPatch * kPatch},
                                    at::arange(0, 2, at::kLong), 7, 0, RandomPurpose::kTest,
                                    at::kCPU)
                     .to(at::kDouble)
                     .view({2, kChannels, 3, kPatch, kPatch})) {}

  models::LatentMoments encode(const at::Tensor& pixels) override {
    if (pixels.dim() == 5) {  // frame by frame
      const int64_t batch = pixels.size(0);
      const int64_t frames = pixels.size(2);
      const models::LatentMoments flat = encode(pixels.transpose(1, 2).flatten(0, 1));
      const auto clips = [&](const at::Tensor& tensor) {
        return tensor.defined() ? tensor.unflatten(0, {batch, frames}).transpose(1, 2) : tensor;
      };
      return {.mean = clips(flat.mean), .std = clips(flat.std)};
    }
    KINORA_CHECK(pixels.size(2) % kPatch == 0 && pixels.size(3) % kPatch == 0, kShape,
                 "[patch] pictures must be of whole patches, got ", pixels.sizes());
    const at::Tensor patches = pixels.to(at::kDouble)
                                   .unflatten(2, {pixels.size(2) / kPatch, kPatch})
                                   .unflatten(4, {pixels.size(3) / kPatch, kPatch});
    const auto sums = [&](int64_t which) {
      return at::einsum("bcypxq,kcpq->bkyx", {patches, weights_[which].to(pixels.device())});
    };
    const double scale = space().scale.front();
    models::LatentMoments moments{.mean = (sums(0) * scale).to(at::kFloat), .std = {}};
    if (variational_) {
      moments.std = (sums(1).abs() * scale).to(at::kFloat);
    }
    return moments;
  }

  at::Tensor decode(const at::Tensor& /*latents*/) override {
    KINORA_UNREACHABLE("[patch] nothing decodes");
  }

 private:
  bool variational_;
  at::Tensor weights_;
};

}  // namespace kinora
