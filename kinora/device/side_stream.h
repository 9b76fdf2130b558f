#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace kinora::device {

/// A stream of a GPU beside the current one, with marks on it that the current one waits for. While
/// a graph is recorded, what is run belongs to it, and the graph must wait for it. A graph may also
/// wait for marks that were set outside: then every replay waits for what was marked last. The host
/// never waits. On a CPU work is done at once, and there is nothing to wait for.
class SideStream {
 public:
  SideStream(c10::Device device, size_t num_marks);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// Runs `work` with the side stream as the current one. It begins when all is done that the
  /// current stream has been given.
  void run(const std::function<void()>& work);
  /// Within `work`: what was given so far is mark `i`.
  void mark(size_t i);
  /// The current stream waits for mark i.
  void wait(size_t i) const;
  /// The current stream waits for all that was given.
  void wait_for_all() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null on a CPU
};

}  // namespace kinora::device
