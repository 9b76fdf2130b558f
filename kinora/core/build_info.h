#pragma once

#include <string_view>

namespace kinora {

/// What this program was built from, and how.
struct BuildInfo {
  std::string_view version;  ///< "0.1.0"
  std::string_view commit;  ///< 12 digits, with "-dirty" after local changes; "unknown" without git
  std::string_view compiler;    ///< "GNU 12.2.0"
  std::string_view build_type;  ///< "Release"
  std::string_view libtorch;    ///< "2.11.0"
  std::string_view
      cuda_architectures;  ///< of our own kernels: "89-real 90a-real"; empty without them
  bool has_cuda;           ///< can use a GPU
  bool has_own_kernels;    ///< else libtorch's own kernels serve
};

[[nodiscard]] const BuildInfo& build_info();

}  // namespace kinora
