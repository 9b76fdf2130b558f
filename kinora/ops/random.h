#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "kinora/core/philox.h"
#include "kinora/kernels/random.h"

/// Random tensors that depend on nothing but (seed, sample, step, purpose, element): not on the
/// device, the batch, the number of threads or ranks, nor on what was drawn before.
namespace kinora::ops {

/// The step of a stream: a number, or one in the device's memory (int64, one element), for work
/// that is recorded once and replayed.
struct RandomStep {
  RandomStep(uint32_t value) : value(value) {}  // NOLINT(google-explicit-constructor)
  explicit RandomStep(at::Tensor on_device) : on_device(std::move(on_device)) {}

  uint32_t value = 0;
  at::Tensor on_device;  ///< used where defined
};

/// The seed of a stream: a number, or one for each row.
struct RandomSeed {
  RandomSeed(uint64_t value) : value(value) {}  // NOLINT(google-explicit-constructor)
  explicit RandomSeed(at::Tensor of_each) : of_each(std::move(of_each)) {}

  uint64_t value = 0;
  at::Tensor of_each;  ///< int64 [B] on the CPU or the device, its bits; used where defined
};

/// Standard normals, fp32 `shape` = [B, ...] on `device`: row b is the stream of sample
/// sample_index[b], its elements in C order. GPU work goes to the current stream; without our own
/// kernels the numbers are made on the CPU and copied (the same bits).
/// @param sample_index  int64 [B] on the CPU or on `device`.
/// Throws kShape.
[[nodiscard]] at::Tensor random_normal(at::IntArrayRef shape, const at::Tensor& sample_index,
                                       const RandomSeed& seed, const RandomStep& step,
                                       RandomPurpose purpose, at::Device device);

/// As random_normal, but uniform in (0, 1).
[[nodiscard]] at::Tensor random_uniform(at::IntArrayRef shape, const at::Tensor& sample_index,
                                        const RandomSeed& seed, const RandomStep& step,
                                        RandomPurpose purpose, at::Device device);

/// Fills `out` (fp32, contiguous, any shape and device) with elements first_element,
/// first_element + 1, ... of one stream: initial parameters. A shard passes where its slice starts.
/// Throws kShape.
void random_fill(const at::Tensor& out, const RandomStream& stream,
                 kernels::Distribution distribution, double scale, int64_t first_element = 0);

}  // namespace kinora::ops
