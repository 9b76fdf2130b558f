#include "kinora/core/error.h"

namespace kinora {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig:
      return "config";
    case ErrorKind::kShape:
      return "shape";
    case ErrorKind::kIo:
      return "io";
    case ErrorKind::kDamaged:
      return "io";
    case ErrorKind::kCuda:
      return "cuda";
    case ErrorKind::kComm:
      return "comm";
    case ErrorKind::kMemory:
      return "memory";
    case ErrorKind::kDiverged:
      return "training";
    case ErrorKind::kInternal:
      return "internal";
  }
  KINORA_UNREACHABLE("[error] unknown kind");
}

}  // namespace kinora
