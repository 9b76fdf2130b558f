#pragma once

#include <cuda_runtime_api.h>

namespace kinora::kernels::cuda {

/// Puts kernels in the place of a graph's short memsets, which do the same. cuBLASLt and cuDNN
/// clear their counters before most of their kernels, and between two kernels of a graph a memset
/// costs 4 to 6 us (on an H200), a kernel one. Memsets of more than 16 KiB, of several rows and
/// where 4-byte words do not fit stay.
/// @param graph  not instantiated yet; in/out.
[[nodiscard]] cudaError_t replace_memsets(cudaGraph_t graph);

}  // namespace kinora::kernels::cuda
