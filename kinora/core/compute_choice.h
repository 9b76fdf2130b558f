#pragma once

/// How and where to compute, as recipes and options name it.
namespace kinora {

/// Type of the arithmetic.
enum class Precision { kFp32, kBf16, kFp16 };

/// kAuto: a GPU if there is one.
enum class DeviceChoice { kAuto, kCpu, kCuda };

}  // namespace kinora
