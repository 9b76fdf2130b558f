#pragma once

#include <cstdint>
#include <string>

/// CUDA without its headers and without torch. In a build without CUDA (no_cuda.cc) there is no
/// device.
namespace kinora {

/// Facts about a GPU.
struct CudaDevice {
  std::string name;
  int num_multiprocessors = 0;
  int64_t total_memory = 0;  ///< bytes
  int major = 0;             ///< compute capability
  int minor = 0;
};

/// Whether this build can use CUDA and finds a driver and at least one GPU. Never an error.
[[nodiscard]] bool cuda_available();

/// Why cuda_available() is false, in words: "CUDA driver version is insufficient ..."; empty if it
/// is true.
[[nodiscard]] std::string cuda_unavailable_reason();

/// Number of visible GPUs, 0 where cuda_available() is false.
[[nodiscard]] int cuda_device_count();

/// Facts about GPU `index`; takes no memory on it. kCuda if there is no such GPU.
[[nodiscard]] CudaDevice cuda_device(int index);

/// Free bytes on GPU `index`, by the driver. Makes the process's context there, some hundred MB, if
/// it has none yet; the current device stays.
[[nodiscard]] int64_t cuda_free_memory(int index);

/// Whether GPU `from` can read and write the memory of GPU `to`. kCuda if there is no such GPU.
[[nodiscard]] bool cuda_reaches(int from, int to);

/// Throws kCuda with `what` and the error's name and meaning unless `error`, a cudaError_t, is
/// success. Forgets the error in the runtime, so that it is not reported again by a later call.
void cuda_check(int error, const char* what);

}  // namespace kinora

/// Checks a call that returns cudaError_t (for files that include CUDA's headers).
#define KINORA_CUDA_CHECK(call) ::kinora::cuda_check(static_cast<int>(call), #call)
