#pragma once

#include <functional>
#include <string>

namespace kinora::train {

/// Writes what a run can do without, such as its log: a full disk costs these lines, not the run.
class BestEffort {
 public:
  /// `what` as messages name it: "log.jsonl".
  explicit BestEffort(std::string what) : what_(std::move(what)) {}

  /// Runs `write`, and returns whether it succeeded. Of its errors of kind kIo the first is logged.
  bool operator()(const std::function<void()>& write);

 private:
  std::string what_;
  bool has_failed_ = false;
};

}  // namespace kinora::train
