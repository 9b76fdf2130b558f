#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/ops/bucket_hook.h"

/// How a model's blocks run on the plain path.
namespace kinora::models {

/// body(inputs), the block of `bucket`, whose inputs are its streams, such as the tokens of an
/// image and of its text, and then what all blocks read. Returns those streams that go on. Tells
/// `hook`, in backward too, and keeps only the inputs where `recompute`.
[[nodiscard]] std::vector<at::Tensor> run_block(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>& body,
    std::vector<at::Tensor> streams, const std::vector<at::Tensor>& shared, bool recompute,
    const ops::BucketHook& hook, int64_t bucket);

/// The same of one stream, the first of `inputs`.
[[nodiscard]] at::Tensor run_block(
    const std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>& body,
    const std::vector<at::Tensor>& inputs, bool recompute, const ops::BucketHook& hook,
    int64_t bucket);

}  // namespace kinora::models
