#pragma once

#include <ATen/core/Tensor.h>

/// Attention to keys and values that come part by part: each part's softmax is over its own keys,
/// and the parts' results add up to that over all (Milakov and Gimelshein 2018, "Online normalizer
/// calculation for softmax"; Liu et al. 2023, "Ring attention").
///
/// Shapes: B sequences, N queries, M keys of a part, H heads, D their width. The scale is
/// 1 / sqrt(D). Without autograd. CUDA tensors of 16 bits go through libtorch's flash attention,
/// fp32 ones through its memory-efficient one; on a CPU, where double is taken too, a part's [B, H,
/// N, M] logits are held in memory.
namespace kinora::ops {

/// What queries have seen so far.
struct Attended {
  at::Tensor out;  ///< [B, N, H, D]
  at::Tensor
      log_normaliser;  ///< fp32 (of double: double) [B, H, N]: log of sum over keys of e^logit
};

/// q: [B, N, H, D]; k, v: [B, M, H, D], M and N at least 1, the last dim contiguous. Returns q's
/// type.
[[nodiscard]] Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// `seen` becomes what the queries saw of the keys of both, in fp32 (of double: double). An empty
/// `seen` (undefined tensors) has seen none. Stable however large or far apart the logits are: only
/// their difference counts.
void merge(Attended* seen, const Attended& part);

/// Gradients.
struct AttendGradients {
  at::Tensor q;  ///< the part's share: shares add up over the parts
  at::Tensor k;
  at::Tensor v;
};

/// Those of a part's keys and values and of the queries through them. `all`: the merged result of
/// all parts, `out` in q's type. gradient: of that, [B, N, H, D] in q's type. All contiguous but
/// for q, k and v, of which the last dim is.
[[nodiscard]] AttendGradients attend_backward(const at::Tensor& gradient, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const Attended& all);

}  // namespace kinora::ops
