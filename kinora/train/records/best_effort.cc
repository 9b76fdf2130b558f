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
    if (!failing_) {
      log_warn("[train] ", error.what(), "; the run goes on without ", what_,
               " until it can be written");
    }
    failing_ = true;
    return false;
  }
  if (failing_) {
    log_info("[train] ", what_, " can be written again");
  }
  failing_ = false;
  return true;
}

}  // namespace kinora::train
