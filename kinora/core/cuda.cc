#include "kinora/core/cuda.h"

#include <cuda_runtime_api.h>

#include "kinora/core/error.h"

namespace kinora {
namespace {

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  KINORA_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

void check_index(int index) {
  const int count = cuda_device_count();
  KINORA_CHECK(count > 0, kCuda,
               "[cuda] there must be a GPU, got none: ", cuda_unavailable_reason());
  KINORA_CHECK(index >= 0 && index < count, kCuda, "[cuda] the device index must lie in 0..",
               count - 1, ", got ", index);
}

}  // namespace

bool cuda_available() {
  return cuda_device_count() > 0;
}

std::string cuda_unavailable_reason() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver == 0) {
    return "no NVIDIA driver found";  // CUDA itself calls it too old
  }
  if (error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  return count > 0 ? "" : "no GPU is visible";
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // no driver, no GPU: an answer, not an error
    return 0;
  }
  return count;
}

CudaDevice cuda_device(int index) {
  check_index(index);
  cudaDeviceProp properties{};
  KINORA_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  CudaDevice device;
  device.name = properties.name;
  device.num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  device.total_memory = static_cast<int64_t>(properties.totalGlobalMem);
  device.major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  device.minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
  return device;
}

int64_t cuda_free_memory(int index) {
  check_index(index);
  int current = 0;
  KINORA_CUDA_CHECK(cudaGetDevice(&current));
  KINORA_CUDA_CHECK(cudaSetDevice(index));
  size_t free = 0;
  size_t total = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  KINORA_CUDA_CHECK(cudaSetDevice(current));
  cuda_check(error, "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

bool cuda_reaches(int from, int to) {
  check_index(from);
  check_index(to);
  int reaches = 0;
  KINORA_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, from, to));
  return reaches != 0;
}

void cuda_check(int error, const char* what) {
  if (error == cudaSuccess) {
    return;
  }
  const auto code = static_cast<cudaError_t>(error);
  static_cast<void>(cudaGetLastError());
  throw_error(ErrorKind::kCuda, "[cuda] ", what, " failed: ", cudaGetErrorName(code), ", ",
              cudaGetErrorString(code),
              code == cudaErrorMemoryAllocation ? ". Hint: lower train.micro_batch" : "");
}

}  // namespace kinora
