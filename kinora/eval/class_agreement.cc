#include "kinora/eval/class_agreement.h"

#include "kinora/core/error.h"

namespace kinora::eval {

ClassAgreement class_agreement(const at::Tensor& logits, const at::Tensor& labels) {
  KINORA_CHECK(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0) &&
                   labels.numel() > 0,
               kShape, "[classes] logits and labels must have shapes [N, K] and [N], got ",
               logits.sizes(), " and ", labels.sizes());
  const auto lowest = labels.min().item<int64_t>();
  const auto highest = labels.max().item<int64_t>();
  KINORA_CHECK(lowest >= 0, kConfig,
               "[classes] every sample must have a class. Hint: by _class-NUMBER in its name, a "
               "folder a class, or --labels");
  KINORA_CHECK(highest < logits.size(1), kConfig, "[classes] classes must be below ",
               logits.size(1), ", as many as the network has, got ", highest);
  return {.num_right = logits.argmax(1).eq(labels).sum().item<int64_t>(),
          .num_samples = labels.size(0)};
}

}  // namespace kinora::eval
