#include "kinora/train/records/best_effort.h"

#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::train {

bool BestEffort::operator()(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) {
      throw;
    }
    if (!has_failed_) {
      log_warn("[train] ", error.what(), "; while it cannot be written, the run goes on without ",
               what_);
    }
    has_failed_ = true;
    return false;
  }
  return true;
}

}  // namespace kinora::train
