#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kinora/device/gpu_profile.h"
#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

/// What the benchmarks of training (benchmark_step.h), sampling (benchmark_sample.h) and of the
/// switches (benchmark_ablation.h) share.
namespace kinora::train {

/// Of the inputs and weights of every benchmark.
inline constexpr uint64_t kBenchmarkSeed = 1;

/// What a device reaches at best, to judge other figures by.
struct DeviceCeilings {
  double gemm_tflops = 0.0;       ///< a large matrix product in the compute type
  double fp8_gemm_tflops = 0.0;   ///< likewise of E4M3 numbers; 0 where there is none
  double copy_bytes_per_s = 0.0;  ///< read and written by a large copy within the device's memory
};

/// Measures them. Takes 3 GiB of a GPU's memory.
[[nodiscard]] DeviceCeilings measure_ceilings(at::ScalarType type, at::Device device);

/// The middle one of at least one value.
[[nodiscard]] double median(std::vector<double> values);

/// Median over up to five blocks of the seconds of one call: a block enqueues its calls one behind
/// the other and waits for the device once, at its end. `enqueue` gets the number of the call.
[[nodiscard]] double median_call_seconds(at::Device device, int64_t calls,
                                         const std::function<void(int64_t)>& enqueue);

/// kConfig unless the device is a GPU: before minutes are spent on the figures that come first.
void check_can_trace(at::Device device);

/// What the device does in `calls` more calls, and for what the host waits meanwhile. The errors of
/// check_can_trace() and device::GpuTrace.
[[nodiscard]] device::GpuRecords trace_calls(at::Device device, int64_t calls,
                                             const std::function<void(int64_t)>& enqueue);

/// Replaces initial zeros by small random numbers: products of zeros are faster than real ones.
void randomise_zeros(const std::vector<nn::NamedParameter>& parameters, optim::Arena& arena);

/// Whether the exception that is being handled says that memory, of the GPU or the host, did not
/// suffice. Only in a catch block.
[[nodiscard]] bool caught_out_of_memory();

/// Gives back memory that nothing holds, and starts the peak of device::peak_memory() anew.
void start_memory_anew(at::Device device);

}  // namespace kinora::train
