#include "kinora/pipelines/decode.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/device/free_memory.h"

namespace kinora::pipelines {
namespace {

/// Of free memory what activations may take: libraries want workspaces besides.
constexpr double kShare = 0.9;

at::Tensor decode(models::Autoencoder& autoencoder, const at::Tensor& latents) {
  try {
    return autoencoder.decode(latents);
  } catch (const c10::OutOfMemoryError&) {
    // Ranks that decode together would no longer make the same calls.
    if (autoencoder.limits().bytes > 0 || autoencoder.limits().ranks.size() > 1) {
      throw;
    }
  }
  // Only here is freed what the call had.
  const at::Device device = latents.device();
  device::release_unused(device);
  const auto bytes =
      static_cast<int64_t>(kShare * static_cast<double>(device::free_memory(device)));
  log_info(
      "[decode] the whole at once takes more memory than there is: from here on in pieces "
      "within ",
      human_bytes(bytes), " (autoencoder.memory_gib)");
  autoencoder.set_memory_budget(bytes);
  return autoencoder.decode(latents);
}

}  // namespace

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
    pixels.push_back(decode(autoencoder, latents.narrow(0, first, count).clone().to(device))
                         .to(at::kCPU, at::kFloat)
                         .contiguous());
  }
  const at::Tensor all = at::cat(pixels, 0);
  const int64_t before = autoencoder.decoded_before();
  const bool leaves_out = all.dim() == 5 && before > 0 && all.size(2) > before;
  return leaves_out ? all.narrow(2, before, all.size(2) - before) : all;
}

}  // namespace kinora::pipelines
