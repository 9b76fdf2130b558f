#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

namespace kinora::device {

/// Calls of functions by the host, in the order of a device's streams, in one thread that runs on
/// the cores near the device.
class HostCalls {
 public:
  explicit HostCalls(c10::Device device);
  /// Waits for a call under way. Later ones are left out.
  ~HostCalls();
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  /// The host calls `function` when all is done that the current stream has been given, and what
  /// the stream is given from now on waits until it has returned. It must not use the device. After
  /// one that has thrown none is called any more. Not for graphs.
  void enqueue(std::function<void()> function);
  /// Keeps `function` for enqueue_kept() by the number that it returns.
  [[nodiscard]] size_t keep(std::function<void()> function);
  /// As enqueue(), also in a graph: each of its replays, which this must outlive, calls it again.
  void enqueue_kept(size_t number);
  /// Throws what a call has thrown.
  void check() const;

 private:
  class Thread;
  c10::Device device_;
  std::shared_ptr<Thread> thread_;          // those that are enqueued have it, too
  std::deque<std::function<void()>> kept_;  // in one place: streams and graphs know it
};

}  // namespace kinora::device
