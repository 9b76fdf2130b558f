#include "kinora/core/error.h"
#include "kinora/device/host_calls_launch.h"

namespace kinora::device::cuda {

void call_on_host(c10::Device /*device*/, std::function<void()> /*call*/) {
  KINORA_UNREACHABLE("[device] a CPU-only build was asked to order calls by a GPU's stream");
}

void call_kept_on_host(c10::Device /*device*/, const std::function<void()>& /*call*/) {
  KINORA_UNREACHABLE("[device] a CPU-only build was asked to order calls by a GPU's stream");
}

std::string bus_address(c10::Device /*device*/) {
  KINORA_UNREACHABLE("[device] a CPU-only build was asked for a GPU's address");
}

}  // namespace kinora::device::cuda
