#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kinora/kernels/random.h"

/// Launchers of CUDA kernels. The folder exists only in builds with GPU support (KINORA_HAS_CUDA):
/// its headers need the CUDA runtime's, which kernels/*.h never do. A launcher takes device
/// pointers, enqueues on `cuda_stream`, neither allocates nor synchronises, and returns the
/// launch's error. In a build without nvcc no_nvcc.cc stands in for the .cu files: every launcher
/// returns cudaErrorNotSupported, and has_cuda_kernels() says so beforehand.
namespace kinora::kernels::cuda {

/// Whether our own CUDA kernels are in this build.
[[nodiscard]] bool has_cuda_kernels();

/// The compute capability, 10 major + minor, that they may count on: that of the current GPU, or of
/// what they were compiled for where the driver has translated older code for it. 0: no GPU, or
/// none of their code is for it.
[[nodiscard]] int kernel_capability();

/// out[b, i] = element first_element + i of the stream of row b, the same bits as
/// kernels::random_fill.
/// @param out           [rows, row_size], any alignment (16 bytes and row_size % 4 == 0 is
/// fastest).
/// @param sample_index  [rows]; row b's stream is `stream` with sample sample_index[b]. May be
/// null:
///                      then every row's sample is stream.sample.
/// @param seed          [rows]; row b's stream has seed seed[b] (the bits of an unsigned one). May
///                      be null: then it is stream.seed.
/// @param step          one number, that of stream.step, in device memory, for launches that are
///                      replayed; null: stream.step.
[[nodiscard]] cudaError_t random_fill(float* out, int64_t rows, int64_t row_size,
                                      const int64_t* sample_index, const int64_t* seed,
                                      const RandomStream& stream, const int64_t* step,
                                      uint64_t first_element, Distribution distribution,
                                      float scale, cudaStream_t cuda_stream);

}  // namespace kinora::kernels::cuda
