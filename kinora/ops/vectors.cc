#include "kinora/ops/vectors.h"

#include <ATen/core/grad_mode.h>

namespace kinora::ops {

std::optional<at::Tensor> in_vectors(const at::Tensor& x) {
  constexpr int64_t kBytes = 16;
  const auto fits = [bytes = static_cast<int64_t>(x.element_size())](int64_t elements) {
    return elements * bytes % kBytes == 0;
  };
  if (x.dim() == 0 || x.stride(-1) != 1 || !fits(x.size(-1)) || !fits(x.storage_offset()) ||
      (at::GradMode::is_enabled() && x.requires_grad())) {
    return std::nullopt;
  }
  for (int64_t dim = 0; dim < x.dim() - 1; ++dim) {
    if (!fits(x.stride(dim))) {
      return std::nullopt;
    }
  }
  return x.view(at::kComplexDouble);
}

void copy_in_vectors(const at::Tensor& from, const at::Tensor& to) {
  const std::optional<at::Tensor> source = in_vectors(from);
  const std::optional<at::Tensor> target = in_vectors(to);
  if (source && target) {
    at::Tensor(*target).copy_(*source);
  } else {
    at::Tensor(to).copy_(from);
  }
}

}  // namespace kinora::ops
