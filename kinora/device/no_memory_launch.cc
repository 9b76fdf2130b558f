#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/device/memory_launch.h"

namespace kinora::device::cuda {

at::Tensor pinned_zeros(int64_t /*numel*/, const at::TensorOptions& /*options*/) {
  KINORA_UNREACHABLE("[memory] a CPU-only build was asked for memory that a GPU reads");
}

at::Tensor seen_by_host(const at::Tensor& /*tensor*/) {
  KINORA_UNREACHABLE("[memory] a CPU-only build was asked where a GPU's tensor lies");
}

void copy_bytes(const at::Tensor& /*from*/, const at::Tensor& /*to*/) {
  KINORA_UNREACHABLE("[memory] a CPU-only build was asked to copy on a GPU");
}

void limit_memory(at::Device /*device*/, int64_t /*bytes*/) {
  KINORA_UNREACHABLE("[memory] a CPU-only build was asked to limit a GPU's memory");
}

}  // namespace kinora::device::cuda
