#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// What the names in a trace of a GPU mean.
namespace kinora::device {

enum class KernelClass : uint8_t {
  kGemm,
  kAttention,
  kNorm,        ///< with the gate, residual and modulation that our kernels do in the same pass
  kActivation,  ///< with the quantisation that our kernels do in the same pass
  kReduction,   ///< column sums and libtorch's sums
  kOptimizer,
  kRandom,
  kCopy,  ///< copies, casts, fills by the copy engines
  kLoss,
  kElementwise,  ///< of libtorch
  kCommunication,
  kOther,
};

/// "gemm", "attention", ...
[[nodiscard]] std::string_view to_string(KernelClass value);

/// The class of a kernel by its demangled name.
[[nodiscard]] KernelClass classify_kernel(std::string_view name);

/// A kernel's demangled name for people, at most `width` bytes: without return type, parameters and
/// the namespaces that say nothing.
[[nodiscard]] std::string short_kernel_name(std::string_view name, size_t width);

/// The call that a name of CUPTI means: "cudaMemcpy" of "cudaMemcpy_ptds_v7000".
[[nodiscard]] std::string_view api_call_name(std::string_view name);

/// Whether a call of CUDA's runtime or driver, named as by api_call_name, keeps the host until the
/// device is done with something: synchronisation, blocking copies, giving memory back.
[[nodiscard]] bool waits_for_device(std::string_view call);

}  // namespace kinora::device
