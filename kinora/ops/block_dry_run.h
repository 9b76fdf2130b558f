#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kinora/kernels/attention.h"

/// What a dry run (dry_run.h) takes fused attention for, for the files of this room only.
namespace kinora::ops::cuda {

/// Empty, or why neither our own kernels nor cuDNN's have that shape.
[[nodiscard]] std::string dry_attention_refusal(const kernels::AttentionShape& shape);

/// Whether the kernels of low-rank updates have a linear of these sizes, with a rank that they
/// have.
[[nodiscard]] bool dry_low_rank_supported(DType type, int64_t in, int64_t out);

/// Scratch of its backward: the gradient of the queries is added up in fp32 beside a number for
/// each row, as in FlashAttention-2 (Dao 2023, section 3.1.2) and cuDNN; or cuDNN's plan that keeps
/// the gradients of the scores in 16 bits, where that is more and the first step times it.
[[nodiscard]] at::Tensor dry_attention_workspace(const kernels::AttentionShape& shape);

}  // namespace kinora::ops::cuda
