// A build without GPU support, or one that found no headers of CUPTI: nothing can be traced.
#include "kinora/core/error.h"
#include "kinora/device/gpu_trace.h"

namespace kinora::device {

struct GpuTrace::Impl {};

GpuTrace::GpuTrace() = default;
GpuTrace::~GpuTrace() = default;

void GpuTrace::start() {
  throw_error(
      ErrorKind::kCuda,
      "[trace] this build cannot trace a GPU: it has no GPU support, or CUPTI's headers were "
      "not found when it was built");
}

GpuRecords GpuTrace::stop() {
  KINORA_UNREACHABLE("[trace] nothing was started");
}

}  // namespace kinora::device
