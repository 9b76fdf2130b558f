#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace kinora::device {

/// Bytes that the allocator takes from the GPU for `work`: about what it needs at once. The
/// allocator's unused memory is given back first.
[[nodiscard]] int64_t reserved_by(const std::function<void()>& work);

/// Of the GPU, once the allocator's unused memory has been given back.
[[nodiscard]] int64_t free_bytes();

/// Memory that several graphs share: each takes what the others have left, so together they need
/// little more than the largest. Good for graphs that never run at the same time and whose own
/// tensors nobody reads once another of them ran.
class GraphPool {
 public:
  GraphPool();
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  /// That graphs have taken from the device for it.
  [[nodiscard]] int64_t num_bytes() const;

 private:
  friend class Graph;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Work on a GPU that is recorded once as a CUDA graph and replayed: one launch instead of
/// hundreds. What it reads and writes must stay at the same addresses.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Records `work` without running it. It may neither wait for the device nor copy from pageable
  /// memory; tensors that it makes belong to the graph and hold the results of the last replay.
  /// Must have run before without being recorded (libraries choose their algorithms then). The
  /// allocator's unused memory is given back first, since the graph takes its own. Recording
  /// concerns this thread alone: others keep using the device. pool: whose memory it takes, which
  /// outlives it; null: its own. kCuda if it cannot be recorded, kMemory where its memory is not
  /// there: then the pool is of no more use.
  void record(const std::function<void()>& work, GraphPool* pool = nullptr);

  [[nodiscard]] bool is_recorded() const;
  /// Whether this thread is inside of a record(): values on the device cannot be read.
  [[nodiscard]] static bool is_recording();

  /// Enqueues the recorded work on the current stream.
  void replay();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::device
