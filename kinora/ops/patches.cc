#include "kinora/ops/patches.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/diffusion_launch.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Carries the shape through the context's IValue map.
struct PatchesHolder : torch::CustomClassHolder {
  explicit PatchesHolder(const kernels::Patches& patches) : patches(patches) {}
  kernels::Patches patches;
};

bool has_kernel(const at::Tensor& tensor, at::ScalarType token_type) {
  return device::is_gpu(tensor.device()) &&
         (token_type == at::kFloat || token_type == at::kHalf || token_type == at::kBFloat16) &&
         cuda::has_block_kernels(tensor.device(), token_type);
}

/// [B, N, C P P] of a contiguous fp32 [B, C, H, W].
at::Tensor tokens_of(const kernels::Patches& patches, const at::Tensor& image) {
  const int64_t area = patches.patch * patches.patch;
  at::Tensor tokens =
      at::empty({patches.batch, patches.height * patches.width / area, patches.channels * area},
                image.options().dtype(device::scalar_type(patches.token_type)));
  cuda::patchify(patches, image, tokens);
  return tokens;
}

/// The contrary.
at::Tensor image_of(const kernels::Patches& patches, const at::Tensor& tokens) {
  at::Tensor image = at::empty({patches.batch, patches.channels, patches.height, patches.width},
                               tokens.options().dtype(at::kFloat));
  cuda::unpatchify(patches, tokens, image);
  return image;
}

struct Patchify : torch::autograd::Function<Patchify> {
  static at::Tensor forward(AutogradContext* context,
                            const c10::intrusive_ptr<PatchesHolder>& holder,
                            const at::Tensor& image) {
    context->saved_data["patches"] = c10::IValue::make_capsule(holder);
    return tokens_of(holder->patches, image);
  }
  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["patches"].toCapsule();
    return {at::Tensor(),
            image_of(static_cast<PatchesHolder*>(holder.get())->patches, incoming[0].contiguous())};
  }
};

struct Unpatchify : torch::autograd::Function<Unpatchify> {
  static at::Tensor forward(AutogradContext* context,
                            const c10::intrusive_ptr<PatchesHolder>& holder,
                            const at::Tensor& tokens) {
    context->saved_data["patches"] = c10::IValue::make_capsule(holder);
    return image_of(holder->patches, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["patches"].toCapsule();
    return {at::Tensor(), tokens_of(static_cast<PatchesHolder*>(holder.get())->patches,
                                    incoming[0].contiguous())};
  }
};

}  // namespace

at::Tensor patchify(const at::Tensor& image, int64_t patch, at::ScalarType type) {
  KINORA_CHECK(
      image.dim() == 4 && patch > 0 && image.size(2) % patch == 0 && image.size(3) % patch == 0,
      kShape, "[patchify] the image must have shape [B, C, H, W] with H and W multiples of ", patch,
      ", got ", image.sizes());
  const int64_t rows = image.size(2) / patch;
  const int64_t columns = image.size(3) / patch;
  if (has_kernel(image, type) && image.scalar_type() == at::kFloat) {
    const kernels::Patches patches = {kernels::PatchOrder::kChannelFirst,
                                      image.size(0),
                                      image.size(1),
                                      image.size(2),
                                      image.size(3),
                                      patch,
                                      device::dtype_of(type)};
    return Patchify::apply(c10::make_intrusive<PatchesHolder>(patches), image.contiguous());
  }
  return image.reshape({image.size(0), image.size(1), rows, patch, columns, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({image.size(0), rows * columns, image.size(1) * patch * patch})
      .to(type);
}

at::Tensor unpatchify(const at::Tensor& tokens, int64_t height, int64_t width, int64_t patch) {
  KINORA_CHECK(patch > 0 && height % patch == 0 && width % patch == 0 && tokens.dim() == 3 &&
                   tokens.size(1) == height * width / (patch * patch) &&
                   tokens.size(2) % (patch * patch) == 0,
               kShape, "[unpatchify] an image of ", height, " x ", width, " in patches of ", patch,
               " must have tokens of shape [B, ", height * width / (patch * patch),
               ", P P C], got ", tokens.sizes());
  const int64_t rows = height / patch;
  const int64_t columns = width / patch;
  const int64_t channels = tokens.size(2) / (patch * patch);
  if (has_kernel(tokens, tokens.scalar_type())) {
    const kernels::Patches patches = {
        kernels::PatchOrder::kChannelLast,     tokens.size(0), channels, height, width, patch,
        device::dtype_of(tokens.scalar_type())};
    return Unpatchify::apply(c10::make_intrusive<PatchesHolder>(patches), tokens.contiguous());
  }
  return tokens.reshape({tokens.size(0), rows, columns, patch, patch, channels})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({tokens.size(0), channels, height, width})
      .to(tokens.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace kinora::ops
