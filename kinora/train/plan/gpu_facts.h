#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// GPUs by what plans need to know of them.
namespace kinora::train {

/// Of one GPU; 0 where it is not known.
struct GpuFacts {
  std::string name;               ///< as it is asked for: "h200"
  int64_t memory = 0;             ///< bytes, as the driver reports them
  double half_flops = 0.0;        ///< FLOP/s of matrix products in 16 bits with fp32 sums, at best
  double fp32_flops = 0.0;        ///< outside of the matrix units
  bool bf16 = true;               ///< arithmetic in bf16; else fp16 alone
  bool fp8 = false;               ///< products of 8-bit floats
  double bytes_per_s = 0.0;       ///< of its memory, at best
  double link_bytes_per_s = 0.0;  ///< of ring collectives among the GPUs of a host, about
  double host_bytes_per_s = 0.0;  ///< to and from the host's memory, each way at once, about
};

/// "h200", ..., or a number of GiB, of which nothing but its memory is known. kConfig, naming all,
/// for others.
[[nodiscard]] GpuFacts find_gpu(std::string_view asked);

/// The GPU that the driver calls `name`, "NVIDIA H200", and that has `memory` bytes.
[[nodiscard]] GpuFacts gpu_of_driver(std::string_view name, int64_t memory);

/// "h200, h100, ...".
[[nodiscard]] std::string gpu_names();

}  // namespace kinora::train
