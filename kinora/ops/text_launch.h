#pragma once

#include "kinora/kernels/activation.h"
#include "kinora/kernels/ragged_attention.h"

/// The launchers of a text encoder's kernels on torch's current stream, for text_kernels.cc only.
/// no_text_launch.cc in CPU-only builds.
namespace kinora::ops::cuda {

void gated_activation(const kernels::GatedActivation& call);
/// As kernels::cuda::ragged_attention_supported.
[[nodiscard]] bool ragged_attention_supported(const kernels::RaggedAttention& call);
void ragged_attention(const kernels::RaggedAttention& call);

}  // namespace kinora::ops::cuda
