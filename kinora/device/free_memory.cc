#include "kinora/device/free_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "kinora/core/cuda.h"
#include "kinora/core/process_memory.h"
#include "kinora/device/memory_launch.h"

namespace kinora::device {

int64_t free_memory(at::Device device) {
  if (!device.is_cuda()) {
    return available_memory();
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return cuda_free_memory(device.index()) + stats.reserved_bytes[kAll].current -
         stats.allocated_bytes[kAll].current;
}

void limit_memory(at::Device device, int64_t bytes) {
  if (device.is_cuda()) {
    cuda::limit_memory(device, bytes);
  }
}

}  // namespace kinora::device
