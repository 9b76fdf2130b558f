// A CPU-only build: nothing of diffusion_launch.h can run but dry, and callers ask
// has_block_kernels() first.
#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/ops/diffusion_launch.h"

namespace kinora::ops::cuda {
namespace {

void refuse_unless_dry() {
  KINORA_CHECK(device::in_dry_run(), kInternal,
               "[ops] a GPU kernel was called in a build without GPU support");
}

}  // namespace

void diffusion_loss(const kernels::DiffusionLoss& /*call*/, int /*device_index*/) {
  refuse_unless_dry();
}

void patchify(const kernels::Patches& /*patches*/, const at::Tensor& /*image*/,
              const at::Tensor& /*tokens*/) {
  refuse_unless_dry();
}

void unpatchify(const kernels::Patches& /*patches*/, const at::Tensor& /*tokens*/,
                const at::Tensor& /*image*/) {
  refuse_unless_dry();
}

}  // namespace kinora::ops::cuda
