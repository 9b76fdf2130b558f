#include "kinora/device/host_calls_launch.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

#include "kinora/core/cuda.h"

namespace kinora::device::cuda {

void call_on_host(c10::Device device, std::function<void()> call) {
  const c10::cuda::CUDAGuard guard(device);
  auto kept = std::make_unique<std::function<void()>>(std::move(call));
  KINORA_CUDA_CHECK(cudaLaunchHostFunc(
      c10::cuda::getCurrentCUDAStream(device.index()),
      [](void* data) {
        const std::unique_ptr<std::function<void()>> mine(
            static_cast<std::function<void()>*>(data));
        (*mine)();
      },
      kept.get()));
  (void)kept.release();  // the call's now
}

void call_kept_on_host(c10::Device device, const std::function<void()>& call) {
  const c10::cuda::CUDAGuard guard(device);
  KINORA_CUDA_CHECK(cudaLaunchHostFunc(
      c10::cuda::getCurrentCUDAStream(device.index()),
      [](void* data) { (*static_cast<const std::function<void()>*>(data))(); },
      const_cast<std::function<void()>*>(&call)));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

std::string bus_address(c10::Device device) {
  constexpr int kLength = 32;
  char address[kLength] = {};
  const c10::cuda::CUDAGuard guard(device);
  KINORA_CUDA_CHECK(cudaDeviceGetPCIBusId(address, kLength, c10::cuda::current_device()));
  std::string result(address);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace kinora::device::cuda
