#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/nn/sequence.h"
#include "kinora/parallel/ring.h"

namespace kinora::parallel {

/// Attention of this rank's tokens to those of all ranks, whose keys and values come by in rings
/// (Liu et al. 2023, "Ring attention with blockwise transformers"): those of the next part travel
/// while queries attend to the ones here. Nothing is masked but tokens that fill up parts, which
/// are never read.
///
/// packed: [B, T, n, 3, H, D], of which the W parts of n tokens a frame are contiguous ones of
/// `tokens_a_frame`, the last filled up. span: kFrame or kClip. Returns [B, T, n, H, D], zeros for
/// tokens that fill up.
///
/// Each rank sends 2 B T n H D elements W - 1 times; backward twice: keys and values come by again,
/// and their gradients, in packed's type, go back to their owners. Saves this rank's part only.
[[nodiscard]] at::Tensor ring_attention(const Rings& rings, const at::Tensor& packed, nn::Span span,
                                        int64_t tokens_a_frame);

}  // namespace kinora::parallel
