#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/core/dtype.h"
#include "kinora/core/philox.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/kernels/random.h"

/// The launchers of kernels/cuda/ on tensors and torch's current stream, for the files of this room
/// only. cuda_launch.cc in builds with GPU support, no_cuda_launch.cc in CPU-only ones.
namespace kinora::ops::cuda {

/// Whether our own kernels can run; without them callers take the composed path.
[[nodiscard]] bool available();

/// @param out           fp32 [rows, ...], contiguous, on a GPU.
/// @param sample_index  int64 [rows] on the same GPU, or undefined: one row, of stream.sample.
void random_fill(const at::Tensor& out, int64_t rows, const at::Tensor& sample_index,
                 const RandomStream& stream, int64_t first_element,
                 kernels::Distribution distribution, float scale);

/// kernels::cuda::sum_squares of `grad`, fp32, contiguous.
void add_sum_squares(const at::Tensor& grad, const at::Tensor& control);

void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy);

/// @param like  a tensor of the bucket: its device and number of elements.
void adamw_update(const kernels::AdamwBuffers& buffers, const at::Tensor& like,
                  const kernels::AdamwParameters& parameters, const at::Tensor& control);

void round_to(const at::Tensor& in, DType type, const at::Tensor& out);

}  // namespace kinora::ops::cuda
