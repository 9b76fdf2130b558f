#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kinora/device/kernel_class.h"

/// What a trace of a GPU (gpu_trace.h) says in sum.
namespace kinora::device {

/// A kernel, copy or memset on the device. Times are nanoseconds since any moment.
struct GpuEvent {
  enum class Kind : uint8_t {
    kKernel,
    kHostToDevice,
    kDeviceToHost,
    kDeviceToDevice,
    kOtherCopy,  ///< host to host, arrays
    kMemset,
  };
  Kind kind = Kind::kKernel;
  size_t name = 0;     ///< of a kernel: its place in GpuRecords::names
  int64_t stream = 0;  ///< its number
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;      ///< of copies and memsets
  bool pageable = false;  ///< a copy from or to memory that is not pinned: the host may wait
};

/// Everything between start and stop of a trace.
struct GpuRecords {
  std::vector<std::string> names;  ///< demangled
  std::vector<GpuEvent> events;    ///< in any order
  std::vector<std::string> waits;  ///< calls of the host that waited: "cudaStreamSynchronize"
  int64_t dropped = 0;             ///< records that were lost: the sums are too small
};

struct KernelTotal {
  std::string name;  ///< a kernel's, or "[copy host to device]", "[memset]"
  KernelClass kind = KernelClass::kOther;
  int64_t launches = 0;
  double seconds = 0.0;
  int64_t bytes = 0;  ///< of copies and memsets
};

struct ClassTotal {
  KernelClass kind = KernelClass::kOther;
  int64_t launches = 0;
  double seconds = 0.0;
};

struct GpuProfile {
  std::vector<KernelTotal> kernels;  ///< a name each, the most expensive first
  std::vector<ClassTotal> classes;   ///< likewise
  double span_seconds = 0.0;         ///< from the first start to the last end
  double busy_seconds = 0.0;         ///< of the span, when something ran; the rest are gaps
  double longest_gap_seconds = 0.0;
  /// Of busy_seconds, when nothing but communication ran.
  double exposed_communication_seconds = 0.0;
  int64_t synchronise_calls = 0;
  std::map<std::string, int64_t> waits;  ///< these calls by name
  int64_t device_to_host_copies = 0;
  int64_t pageable_copies = 0;
  int64_t dropped = 0;
};

[[nodiscard]] GpuProfile profile_of(const GpuRecords& records);

/// The records as a page for chrome://tracing or Perfetto (the Trace Event Format's complete
/// events, JSON): a process `rank`, a thread a stream, times from the first event on.
[[nodiscard]] std::string chrome_trace(const GpuRecords& records, int64_t rank);

}  // namespace kinora::device
