#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/data/batch.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/models/model_config.h"

namespace kinora::train {

/// A micro-batch as a model is trained on it, on the host or on its device.
struct MicroBatch {
  at::Tensor images;        ///< as data::Batch has them
  at::Tensor sample_index;  ///< int64 [B]
  diffusion::Conditions conditions;
};

/// What `model` takes of a batch: classes or texts, and the size of its samples; a model of clips
/// takes images as clips of one frame at 120 a second. Nothing is dropped yet, nor are frames
/// given. kConfig where the data lacks what the model needs.
[[nodiscard]] MicroBatch micro_batch_of(const data::Batch& batch, const models::ModelConfig& model);

[[nodiscard]] MicroBatch to_device(const MicroBatch& batch, at::Device device);

/// Samples first, ..., first + size - 1, as views.
[[nodiscard]] MicroBatch narrow(const MicroBatch& batch, int64_t first, int64_t size);

/// Uninitialised, of the shapes of `batch`.
[[nodiscard]] MicroBatch empty_like(const MicroBatch& batch, at::Device device);
void copy(const MicroBatch& from, const MicroBatch& to);

/// Classifier-free guidance: classes become the null class, texts the null embedding.
/// dropped: bool [B] on the device.
void drop_conditions(diffusion::Conditions& conditions, const at::Tensor& dropped,
                     int64_t null_class);

/// Those of the unconditional prediction: what drop_conditions() makes of all of them.
[[nodiscard]] diffusion::Conditions null_of(const diffusion::Conditions& conditions,
                                            int64_t null_class);

}  // namespace kinora::train
