#include "kinora/device/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdlib>
#include <sstream>

#include "kinora/core/counted.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/rank_limit.h"
#include "kinora/core/text.h"

namespace kinora::device {

at::Device best_device() {
  return cuda_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

void require_cuda() {
  KINORA_CHECK(cuda_available(), kCuda,
               "[device] a GPU was asked for, but none can be used: ", cuda_unavailable_reason(),
               ". Hint: nvidia-smi shows what the "
               "driver sees; kinora --version whether this build has GPU support");
}

std::string describe(at::Device device) {
  std::ostringstream text;
  if (device.is_cpu()) {
    text << "cpu, " << counted(at::get_num_threads(), "thread");
    return text.str();
  }
  const CudaDevice info = cuda_device(device.index());
  text << device << ", " << info.name << ", " << human_bytes(info.total_memory);
  return text.str();
}

void synchronize(at::Device device) {
  if (device.is_cuda()) {
    at::accelerator::synchronizeDevice(device.has_index() ? device.index()
                                                          : at::accelerator::getDeviceIndex());
  }
}

namespace {

int64_t peak_of(at::Device device,
                c10::CachingAllocator::StatArray c10::CachingDeviceAllocator::DeviceStats::*bytes) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return device.is_cuda() ? (at::accelerator::getDeviceStats(device.index()).*bytes)[kAll].peak : 0;
}

}  // namespace

int64_t peak_memory(at::Device device) {
  return peak_of(device, &c10::CachingDeviceAllocator::DeviceStats::allocated_bytes);
}

int64_t peak_reserved(at::Device device) {
  return peak_of(device, &c10::CachingDeviceAllocator::DeviceStats::reserved_bytes);
}

void configure_computation(int64_t num_threads, bool deterministic) {
  check_num_threads(num_threads, num_cores());
  if (num_threads > 0) {
    at::set_num_threads(static_cast<int>(num_threads));
  }
  at::globalContext().setAllowTF32CuDNN(false);  // fp32 convolutions are fp32, as products are
  if (deterministic) {
    // cuBLAS reads this when its first handle is made; without it split-K sums vary.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicCuDNN(true);
    // cuDNN's attention backward adds with atomics; flash attention's has a deterministic form.
    at::globalContext().setSDPUseCuDNN(false);
  }
}

}  // namespace kinora::device
