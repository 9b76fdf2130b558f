#include "kinora/device/host_memory.h"

#include <ATen/ops/zeros.h>

#include <cstring>

#include "kinora/core/error.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/text.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/memory_launch.h"

namespace kinora::device {
namespace {

// Share of the machine's memory that page-locked arrays leave to everything else.
constexpr int64_t kLeft = 20;

}  // namespace

at::Tensor zeros_in_host_memory(int64_t numel, at::ScalarType type, at::Device device) {
  const auto options = at::TensorOptions(type).device(device);
  if (!is_gpu(device)) {
    return at::zeros({numel}, options);
  }
  if (in_dry_run()) {
    const NotCounted not_counted;
    return at::zeros({numel}, options);
  }
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  const int64_t room = available_memory() - physical_memory() / kLeft;
  KINORA_CHECK(bytes <= room, kMemory, "[memory] the host's memory must hold ", human_bytes(bytes),
               " more of what is kept out of the GPU's, and has room for ",
               human_bytes(room < 0 ? 0 : room),
               ". Hint: a smaller share of offload, or a smaller K of train.recompute=offload:K");
  return cuda::pinned_zeros(numel, options);
}

at::Tensor seen_by_host(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda::seen_by_host(tensor) : tensor;
}

void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  KINORA_CHECK(from.nbytes() == to.nbytes() && from.is_contiguous() && to.is_contiguous(), kShape,
               "[memory] what is copied has ", from.nbytes(), " bytes, and its place ",
               to.nbytes());
  if (to.is_meta()) {
    return;
  }
  if (to.is_cuda()) {
    cuda::copy_bytes(from, to);
  } else {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  }
}

}  // namespace kinora::device
