#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/core/dtype.h"
#include "kinora/core/philox.h"
#include "kinora/kernels/factored.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/kernels/random.h"
#include "kinora/kernels/weight_codes.h"

namespace kinora::ops {
class BucketTable;
}

/// The launchers of kernels/cuda/ on tensors and torch's current stream, for the files of this room
/// only. cuda_launch.cc in builds with GPU support, no_cuda_launch.cc in CPU-only ones.
namespace kinora::ops::cuda {

/// Whether our own kernels can run; without them callers take the composed path.
[[nodiscard]] bool available();

/// @param out           fp32 [rows, ...], contiguous, on a GPU.
/// @param sample_index  int64 [rows] on the same GPU, or undefined: one row, of stream.sample.
/// @param seed          likewise, or undefined: stream.seed.
void random_fill(const at::Tensor& out, int64_t rows, const at::Tensor& sample_index,
                 const at::Tensor& seed, const RandomStream& stream, const at::Tensor& step,
                 int64_t first_element, kernels::Distribution distribution, float scale);

/// Scratch for add_sum_squares of this table.
[[nodiscard]] at::Tensor sum_squares_workspace(const BucketTable& table);

void add_sum_squares(const BucketTable& table, const at::Tensor& control);

/// @param exchange  in pinned memory, or null.
void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy,
                    const kernels::StepExchange* exchange);

void conclude_update(const at::Tensor& control);

void make_directions(const BucketTable& table, const kernels::UpdateParameters& parameters,
                     const at::Tensor& control);

void adapt_distance(const at::Tensor& control, const kernels::UpdatePolicy& policy);

void update_weights(const BucketTable& table, const kernels::UpdateParameters& parameters,
                    const at::Tensor& control);
void update_and_add_squares(const BucketTable& table, const kernels::UpdateParameters& parameters,
                            const at::Tensor& control);

/// @param table  with pointers to the memory of control's GPU
void run_pass(kernels::FactoredPass pass, const kernels::FactoredTable& table,
              const kernels::FactoredRule& rule, const at::Tensor& control);

/// @param loss      one fp32 element on the device, or undefined.
/// @param exchange  in pinned memory.
void publish_report(const at::Tensor& control, const at::Tensor& loss,
                    kernels::StepExchange* exchange);

/// Throws kCuda if work of the current stream has failed; waits for nothing.
void check_device(at::Device device);

void round_to(const at::Tensor& in, DType type, const at::Tensor& out);

/// @param call  in the memory of out's GPU.
void dequantise_weight(const kernels::WeightCodes& call, DType type, const at::Tensor& out);

}  // namespace kinora::ops::cuda
