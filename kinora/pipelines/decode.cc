#include "kinora/pipelines/decode.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::pipelines {

at::Tensor decode_latents(models::Autoencoder& autoencoder, const at::Tensor& latents,
                          at::Device device, bool one_by_one) {
  constexpr int64_t kBatch = 4;  // what one takes fills a GPU
  const int64_t batch = one_by_one ? 1 : kBatch;
  KINORA_CHECK(latents.dim() >= 4 && latents.size(0) > 0, kShape,
               "[decode] latents must have shape [N, C, (t,) h, w], got ", latents.sizes());
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> pixels;
  for (int64_t first = 0; first < latents.size(0); first += batch) {
    const int64_t count = std::min(batch, latents.size(0) - first);
    // In memory of their own: kernels may go by how it is aligned.
    pixels.push_back(autoencoder.decode(latents.narrow(0, first, count).clone().to(device))
                         .to(at::kCPU, at::kFloat)
                         .contiguous());
  }
  return at::cat(pixels, 0);
}

}  // namespace kinora::pipelines
