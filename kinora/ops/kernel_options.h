#pragma once

#include <cstdint>

namespace kinora::ops {

/// Whether a part of the fast path runs by its own kernels.
enum class Switch : uint8_t {
  kAuto,  ///< where they can
  kOn,    ///< kConfig where they cannot
  kOff,   ///< composed of libtorch's calls
};

/// The keys kernels.*, one for each part of the fast path.
struct KernelOptions {
  Switch adaln = Switch::kAuto;      ///< gate + residual + norm + modulation
  Switch attention = Switch::kAuto;  ///< off: unfused, softmax(Q K^T) V
  Switch epilogue = Switch::kAuto;   ///< bias, GELU and their gradients within the products
  Switch optimizer = Switch::kAuto;
  Switch graphs = Switch::kAuto;

  bool operator==(const KernelOptions&) const = default;
};

}  // namespace kinora::ops
