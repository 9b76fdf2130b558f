#pragma once

#include <functional>
#include <string>

namespace kinora::train {

/// Writes what a run can do without, such as its log: a full disk costs these lines, not the run.
class BestEffort {
 public:
  /// `what` as messages name it: "log.jsonl".
  explicit BestEffort(std::string what) : what_(std::move(what)) {}

  /// Runs `write`. Its errors of kind kIo are logged, the first of several in a row, and so is the
  /// first success after them. Returns whether it succeeded.
  bool operator()(const std::function<void()>& write);

 private:
  std::string what_;
  bool failing_ = false;
};

}  // namespace kinora::train
