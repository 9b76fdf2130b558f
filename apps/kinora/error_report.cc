#include "apps/kinora/error_report.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "kinora/core/error.h"
#include "kinora/train/watchdog.h"

namespace kinora::apps {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitOutOfMemory = 8;

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig:
      return kExitUsage;
    case ErrorKind::kShape:
      return 3;
    case ErrorKind::kIo:
      return 4;
    case ErrorKind::kCuda:
      return 5;
    case ErrorKind::kComm:
      return train::kPeerFailedCode;
    case ErrorKind::kInternal:
      return 7;
  }
  return kExitFailure;
}

}  // namespace

ErrorReport report_current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return {std::string(to_string(error.kind())) + " error: " + error.what(),
            exit_code(error.kind())};
  } catch (const c10::OutOfMemoryError& error) {
    return {std::string("out of GPU memory: ") + error.what_without_backtrace() +
                "\nHint: a smaller train.micro_batch (the global batch stays), or "
                "train.recompute=block",
            kExitOutOfMemory};
  } catch (const std::bad_alloc&) {
    return {"out of memory. Hint: a smaller train.micro_batch", kExitOutOfMemory};
  } catch (const c10::Error& error) {
    return {std::string("error in libtorch: ") + error.what_without_backtrace(), kExitFailure};
  } catch (const std::exception& error) {
    return {std::string("error: ") + error.what(), kExitFailure};
  }
}

}  // namespace kinora::apps
