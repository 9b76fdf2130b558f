#pragma once

#include <memory>
#include <utility>

namespace kinora::comm {

/// What a Work stands for (transport.h).
class Pending;

/// An operation under way. A value; copies are the same operation. A collective runs without a
/// wait() too, but its error then only shows with the group's next one; sends and receives of CPU
/// tensors must be waited for.
class Work {
 public:
  /// Done already.
  Work() = default;
  explicit Work(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}

  /// CPU: returns when the result is there. GPU: makes the current stream wait, not the host. May
  /// be called again. kComm if the operation failed.
  void wait() const;

  /// CPU: whether it has ended, well or not; a send or receive: whether wait() has returned. GPU:
  /// true, as the host does not wait. Any thread may ask.
  [[nodiscard]] bool is_done() const;

 private:
  friend class Group;

  std::shared_ptr<Pending> pending_;
};

}  // namespace kinora::comm
