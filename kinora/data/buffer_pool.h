#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kinora::data {

/// Buffers for batches of one shape and type, used again and again. A buffer comes back by itself
/// once the last tensor that looks into it is gone, also after the pool's own end.
///
/// Pinned buffers are left to libtorch's host allocator, which reuses them in the same way, but
/// only after the copies to a GPU that still read them are done.
class BufferPool {
 public:
  BufferPool(std::vector<int64_t> shape, at::ScalarType type, bool pinned);

  /// Of the shape and type, values unspecified.
  [[nodiscard]] at::Tensor take();

  /// Buffers made so far; pinned ones are not counted here, but in libtorch's own statistics.
  [[nodiscard]] int64_t num_allocated() const;

 private:
  struct State;

  std::vector<int64_t> shape_;
  at::ScalarType type_;
  bool pinned_;
  std::shared_ptr<State> state_;
};

}  // namespace kinora::data
