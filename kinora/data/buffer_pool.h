#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace kinora::data {

/// Image buffers of one size, used again and again. A buffer comes back by itself once the last
/// tensor that looks into it is gone, also after the pool's own end.
///
/// Pinned buffers are left to libtorch's host allocator, which reuses them in the same way, but
/// only after the copies to a GPU that still read them are done.
class BufferPool {
 public:
  BufferPool(int64_t batch, int64_t height, int64_t width, bool pinned);

  /// uint8 [batch, 3, height, width], values unspecified.
  [[nodiscard]] at::Tensor take();

  /// Buffers made so far (pinned ones: taken so far).
  [[nodiscard]] int64_t num_allocated() const;

 private:
  struct State;

  int64_t shape_[4];
  bool pinned_;
  std::shared_ptr<State> state_;
};

}  // namespace kinora::data
