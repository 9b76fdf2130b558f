// A CPU-only build: nothing of diffusion_launch.h can run, and callers ask has_block_kernels()
// first.
#include "kinora/core/error.h"
#include "kinora/ops/diffusion_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void refuse() {
  KINORA_UNREACHABLE("[ops] a GPU kernel was called in a build without GPU support");
}

}  // namespace

void diffusion_loss(const kernels::DiffusionLoss& /*call*/, int /*device_index*/) {
  refuse();
}

void patchify(const kernels::Patches& /*patches*/, const at::Tensor& /*image*/,
              const at::Tensor& /*tokens*/) {
  refuse();
}

void unpatchify(const kernels::Patches& /*patches*/, const at::Tensor& /*tokens*/,
                const at::Tensor& /*image*/) {
  refuse();
}

}  // namespace kinora::ops::cuda
