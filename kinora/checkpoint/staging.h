#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kinora/optim/arena.h"

/// Arrays on their way between the arena's device and files: by several threads at once, on a GPU
/// each with a pinned buffer and a stream of its own, of the lowest priority, so that training goes
/// on meanwhile.
namespace kinora::checkpoint {

/// What is moved at once, and the unit of checksums. Large enough for the full rate of a disk and
/// of PCI Express, small enough that the pinned buffers of a host's ranks do not matter.
inline constexpr int64_t kChunkBytes = int64_t{32} << 20;

/// One thread's. `values` below are contiguous, with one dim and at most kChunkBytes in the type
/// that they have on the host. Work of other streams on them must be done.
class StagingBuffer {
 public:
  /// arena: of whose state what lies on a disk may be moved, too; null: of none.
  StagingBuffer(at::Device device, const optim::Arena* arena);

  /// The values on the host: themselves, or a copy that lives until the next call.
  [[nodiscard]] at::Tensor on_host(const at::Tensor& values);

  /// Memory of `type` on the host to be filled and then given to put(): the values' own, or the
  /// buffer.
  [[nodiscard]] at::Tensor space_for(const at::Tensor& values, at::ScalarType type);
  /// Makes `values` what `host`, from space_for(values), holds.
  void put(const at::Tensor& host, const at::Tensor& values);

 private:
  void copy(const at::Tensor& to, const at::Tensor& from);

  [[nodiscard]] bool is_on_disk(const at::Tensor& values) const;

  const optim::Arena* arena_;
  at::Tensor memory_;                  // uint8 [kChunkBytes], pinned for a GPU
  std::optional<c10::Stream> stream_;  // of a GPU
};

class Staging {
 public:
  explicit Staging(at::Device device, const optim::Arena* arena = nullptr);

  /// Calls task(i, buffer) for every i in [0, count), each thread with another buffer. After a task
  /// has thrown no other starts, and the first error is thrown here.
  void for_each(int64_t count, const std::function<void(int64_t, StagingBuffer&)>& task);

 private:
  std::vector<StagingBuffer> buffers_;
};

}  // namespace kinora::checkpoint
