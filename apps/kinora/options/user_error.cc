#include "apps/kinora/options/user_error.h"

#include "kinora/train/watchdog.h"

namespace kinora::apps {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig:
      return kExitUsage;
    case ErrorKind::kShape:
      return 3;
    case ErrorKind::kIo:
      return 4;
    case ErrorKind::kDamaged:
      return 4;
    case ErrorKind::kCuda:
      return 5;
    case ErrorKind::kComm:
      return train::kPeerFailedCode;
    case ErrorKind::kDiverged:
      return 10;
    case ErrorKind::kMemory:
      return kExitOutOfMemory;
    case ErrorKind::kInternal:
      return 7;
  }
  return 1;
}

std::string error_text(const Error& error) {
  return std::string(to_string(error.kind())) + " error: " + error.what();
}

}  // namespace kinora::apps
