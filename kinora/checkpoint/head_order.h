#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// The two orders of a head's dims that rotary positions turn in pairs (nn::OtherName::split_head),
/// and those of queries, keys and values in one tensor (nn::OtherName::packed_head).
namespace kinora::checkpoint {

/// Rows [heads head, ...], of which dims 2 d and 2 d + 1 of a head are a pair, in the order in
/// which d and d + head / 2 are one. A copy.
[[nodiscard]] at::Tensor half_split(const at::Tensor& values, int64_t head);

/// The way back.
[[nodiscard]] at::Tensor interleaved(const at::Tensor& values, int64_t head);

/// Rows [3 heads head, ...], all queries, then all keys and values, in the order in which those of
/// a head lie together. A copy.
[[nodiscard]] at::Tensor packed_by_head(const at::Tensor& values, int64_t head);

/// The way back.
[[nodiscard]] at::Tensor packed_by_kind(const at::Tensor& values, int64_t head);

}  // namespace kinora::checkpoint
