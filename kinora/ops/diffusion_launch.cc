#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/diffusion_launch.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/device/dry_run.h"
#include "kinora/kernels/cuda/diffusion_loss.h"
#include "kinora/kernels/cuda/patches.h"

namespace kinora::ops::cuda {

void diffusion_loss(const kernels::DiffusionLoss& call, int device_index) {
  if (device::in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_index));
  const auto bytes = kernels::cuda::diffusion_loss_workspace_bytes(call.batch, call.sample_size);
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(at::kCUDA));
  KINORA_CUDA_CHECK(
      kernels::cuda::diffusion_loss(call, workspace.data_ptr(), c10::cuda::getCurrentCUDAStream()));
}

void patchify(const kernels::Patches& patches, const at::Tensor& image, const at::Tensor& tokens) {
  if (device::in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(image.device());
  KINORA_CUDA_CHECK(kernels::cuda::patchify(patches, image.const_data_ptr<float>(),
                                            tokens.data_ptr(), c10::cuda::getCurrentCUDAStream()));
}

void unpatchify(const kernels::Patches& patches, const at::Tensor& tokens,
                const at::Tensor& image) {
  if (device::in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(image.device());
  KINORA_CUDA_CHECK(kernels::cuda::unpatchify(patches, tokens.const_data_ptr(),
                                              image.data_ptr<float>(),
                                              c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::ops::cuda
