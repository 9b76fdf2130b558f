#pragma once

#include <functional>
#include <memory>

namespace kinora::device {

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
  /// concerns this thread alone: others keep using the device. kCuda if it cannot be recorded.
  void record(const std::function<void()>& work);

  [[nodiscard]] bool is_recorded() const;

  /// Enqueues the recorded work on the current stream.
  void replay();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::device
