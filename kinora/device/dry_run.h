#pragma once

#include <c10/core/Device.h>

#include <cstdint>

/// The memory that code needs, without the memory: tensors of libtorch's meta device have no data,
/// but they are made and freed in the order in which the code makes and frees real ones.
namespace kinora::device {

/// While one lives, tensors of the meta device are counted, and launchers of kernels do nothing
/// with them. Code that asks for a device (inference::choose_device) computes on them as it would
/// on the device that they stand for, with the same tensors at the same times, but for
///   - what libraries take besides tensors, such as the workspaces of cuBLAS;
///   - scratch of our own launchers, which they hand back at once, except for attention's;
///   - ways to compute a part that a GPU would choose by timing: the first possible one is taken.
/// One at a time, and one thread, since the memory is counted for the whole process.
class DryRun {
 public:
  /// kInternal while there is another.
  explicit DryRun(c10::DeviceType stands_for);
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;
  ~DryRun();

  /// Bytes of the tensors that now live, and the most at once since the last start_peak_anew(). Of
  /// a GPU each is rounded up as CUDACachingAllocator does with small ones.
  [[nodiscard]] static int64_t live_bytes();
  [[nodiscard]] static int64_t peak_bytes();
  static void start_peak_anew();
};

/// While one lives in a dry run, new tensors count for nothing: they stand for such as lie
/// elsewhere than on the device.
class NotCounted {
 public:
  NotCounted();
  NotCounted(const NotCounted&) = delete;
  NotCounted& operator=(const NotCounted&) = delete;
  ~NotCounted();
};

[[nodiscard]] bool in_dry_run();

/// Whether tensors of `device` are on a GPU, or stand for such.
[[nodiscard]] bool is_gpu(c10::Device device);

}  // namespace kinora::device
