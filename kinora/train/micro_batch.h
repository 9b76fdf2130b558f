#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/data/batch.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/models/model_config.h"

namespace kinora::train {

/// A micro-batch as a model is trained on it, on the host or on its device.
struct MicroBatch {
  at::Tensor images;        ///< as data::Batch has them
  at::Tensor sample_index;  ///< int64 [B]
  diffusion::Conditions conditions;
  at::Tensor mask;  ///< as data::Batch has it
};

/// A batch with what `model` takes of it (inference/conditions.h).
[[nodiscard]] MicroBatch micro_batch_of(const data::Batch& batch, const models::ModelConfig& model);

/// NoisedBatch::place_weights of a mask, for samples of the size of `x0`, on its device: the mean
/// of the pixels that a place stands for (Kohya's masked loss). Undefined without a mask.
[[nodiscard]] at::Tensor place_weights(const at::Tensor& mask, const at::Tensor& x0);

/// Samples first, ..., first + size - 1, as views.
[[nodiscard]] MicroBatch narrow(const MicroBatch& batch, int64_t first, int64_t size);

/// Whether a graph recorded with `right` can take `left`: the same tensors, shapes and types.
[[nodiscard]] bool same_shapes(const MicroBatch& left, const MicroBatch& right);

[[nodiscard]] int64_t num_bytes(const MicroBatch& batch);

/// Uninitialised, of the shapes of `batch`.
[[nodiscard]] MicroBatch empty_like(const MicroBatch& batch, at::Device device);
void copy(const MicroBatch& from, const MicroBatch& to);

}  // namespace kinora::train
