#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "kinora/comm/group.h"
#include "kinora/comm/transport.h"

/// Internal to the room.
namespace kinora::comm {

/// LastCall, written by the thread that calls the groups, read by any.
class Journal {
 public:
  void add(const Call& call, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    last_ = LastCall{
        call.operation, bytes, call.sequence, call.group, last_ ? last_->num_calls + 1 : 1, true};
    pending_.reset();
  }

  /// What add() announced is on its way. It is not kept from ending.
  void set_pending(const std::shared_ptr<Pending>& pending) {
    const std::lock_guard lock(mutex_);
    pending_ = pending;
  }

  [[nodiscard]] std::optional<LastCall> last() {
    const std::lock_guard lock(mutex_);
    std::optional<LastCall> last = last_;
    if (const auto pending = pending_.lock(); last && pending != nullptr) {
      last->done = pending->is_done();
    }
    return last;
  }

 private:
  std::mutex mutex_;
  std::optional<LastCall> last_;
  std::weak_ptr<Pending> pending_;
};

}  // namespace kinora::comm
