#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kinora/models/autoencoders/autoencoder.h"

namespace kinora::pipelines {

/// Pixels of latents [N, C, (t,) h, w], a few of them at once on `device`: float32 on the CPU,
/// in [-1, 1] but for what the autoencoder exceeds it by. one_by_one: each as if it were alone
/// (sample.batch_invariant). An autoencoder without a memory budget for which the device's memory
/// is too small gets one, of what is free, and keeps it; not where ranks decode together. Of clips
/// without Autoencoder::decoded_before(). kShape.
[[nodiscard]] at::Tensor decode_latents(models::Autoencoder& autoencoder, const at::Tensor& latents,
                                        at::Device device, bool one_by_one = false);

}  // namespace kinora::pipelines
