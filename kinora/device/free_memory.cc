#include "kinora/device/free_memory.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/text.h"
#include "kinora/device/memory_launch.h"

namespace kinora::device {

int64_t free_memory(at::Device device) {
  if (!device.is_cuda()) {
    return available_memory();
  }
  at::globalContext().lazyInitDevice(device.type());  // the allocator's first use, else
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return cuda_free_memory(device.index()) + stats.reserved_bytes[kAll].current -
         stats.allocated_bytes[kAll].current;
}

int64_t budget_bytes(const std::string& name, const std::string& budget, int64_t free) {
  if (budget == "none") {
    return 0;
  }
  if (budget == "auto") {
    return free;
  }
  double number = 0.0;
  const char* end = budget.data() + budget.size();
  const auto parsed = std::from_chars(budget.data(), end, number);
  const std::string_view unit(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
  constexpr double kMiB = 1024.0 * 1024.0;
  constexpr double kMost = 1e6;  // GiB
  const bool is_known = parsed.ec == std::errc() && (unit == "GiB" || unit == "MiB");
  const double bytes = number * (unit == "GiB" ? kGiB : kMiB);
  KINORA_CHECK(is_known && bytes >= 1.0 && bytes < kMost * kGiB, kConfig, "[memory] ", name,
               " must be none, auto or a size such as 8GiB or 600MiB, got ", budget);
  return static_cast<int64_t>(bytes);
}

int64_t gpu_budget(const std::string& name, const std::string& budget, at::Device device) {
  if (budget == "none") {
    return 0;
  }
  KINORA_CHECK(device.is_cuda(), kConfig, "[memory] ", name, " is ", budget,
               ", but this computes on the CPU");
  return std::min(budget_bytes(name, budget, cuda_free_memory(device.index())),
                  cuda_device(device.index()).total_memory);
}

void limit_memory(at::Device device, int64_t bytes) {
  if (device.is_cuda()) {
    cuda::limit_memory(device, bytes);
  }
}

void release_unused(at::Device device) {
  if (device.is_cuda()) {
    at::accelerator::emptyCache();
  }
}

}  // namespace kinora::device
