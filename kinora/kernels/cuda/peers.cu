// Copies between the memories of GPUs. Stores to another GPU travel over NVLink as they are made:
// what counts is that neighbouring threads store neighbouring vectors, and that enough of them are
// under way; loads are of this GPU's memory.
#include <algorithm>
#include <limits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/peers.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksAPeer = 132;  // twice as many lose a quarter of the speed among four GPUs

__global__ void barrier_kernel(const PeerBarrier barrier) {
  __shared__ uint32_t number;
  PeerFlags* own = barrier.flags[barrier.rank];
  if (threadIdx.x == 0) {
    number = ++own->barriers;
  }
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= barrier.size) {
    return;
  }
  uint32_t* arrival = &barrier.flags[peer]->arrivals[barrier.rank];
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(arrival), "r"(number) : "memory");
  const uint32_t* awaited = &own->arrivals[peer];
  uint32_t seen = 0;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(awaited) : "memory");
  } while (static_cast<int32_t>(seen - number) < 0);  // counts may wrap
}

template <typename Vector>
__global__ void __launch_bounds__(kThreads) peer_scatter_kernel(const PeerScatter scatter) {
  const int peer = scatter.skips_own
                       ? static_cast<int>(scatter.rank + 1 + blockIdx.y) % scatter.size
                       : static_cast<int>(blockIdx.y);
  const auto* source = static_cast<const char*>(scatter.source) + peer * scatter.source_part;
  auto* target = static_cast<char*>(scatter.targets[peer]) + scatter.rank * scatter.target_part;
  const auto run = static_cast<uint32_t>(scatter.run / sizeof(Vector));
  const auto rows = static_cast<uint32_t>(scatter.rows);
  const auto count = static_cast<uint32_t>(scatter.outer) * rows * run;
  const uint32_t step = gridDim.x * kThreads;
  for (uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += step) {
    const auto index = static_cast<uint32_t>(i);
    const uint32_t row_index = index / run;
    const uint32_t outer = row_index / rows;
    const uint32_t row = row_index - outer * rows;
    const int64_t within = static_cast<int64_t>(index - row_index * run) * sizeof(Vector);
    const auto* from = reinterpret_cast<const Vector*>(source + outer * scatter.source_outer +
                                                       row * scatter.source_row + within);
    auto* to = reinterpret_cast<Vector*>(target + outer * scatter.target_outer +
                                         row * scatter.target_row + within);
    *to = *from;
  }
}

constexpr int kAtOnce = 8;  // elements

template <typename T>
__global__ void __launch_bounds__(kThreads) peer_sum_kernel(const PeerSum sum) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kAtOnce;
  if (first >= sum.count) {
    return;
  }
  float values[kAtOnce] = {};
  for (int part = 0; part < sum.size; ++part) {
    float more[kAtOnce];
    unpack<T, kAtOnce>(load_packed<T, kAtOnce>(sum.parts[part], first), more);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[i] += more[i];
    }
  }
  store_floats<T, kAtOnce>(sum.out, first, kAtOnce, /*whole=*/true, values);
}

bool multiples_of(const PeerScatter& scatter, int64_t bytes) {
  auto all = reinterpret_cast<uintptr_t>(scatter.source);
  for (int peer = 0; peer < scatter.size; ++peer) {
    all |= reinterpret_cast<uintptr_t>(scatter.targets[peer]);
  }
  for (const int64_t step :
       {scatter.run, scatter.source_part, scatter.source_outer, scatter.source_row,
        scatter.target_part, scatter.target_outer, scatter.target_row}) {
    all |= static_cast<uintptr_t>(step);
  }
  return all % bytes == 0;
}

template <typename Vector>
cudaError_t launch(const PeerScatter& scatter, cudaStream_t stream) {
  const int64_t vectors =
      scatter.outer * scatter.rows * (scatter.run / static_cast<int64_t>(sizeof(Vector)));
  if (vectors > std::numeric_limits<uint32_t>::max()) {
    return cudaErrorInvalidValue;
  }
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(kBlocksAPeer, ceil_div(vectors, kThreads)));
  const dim3 grid(blocks, static_cast<unsigned>(scatter.size - (scatter.skips_own ? 1 : 0)));
  peer_scatter_kernel<Vector><<<grid, kThreads, 0, stream>>>(scatter);
  return cudaGetLastError();
}

}  // namespace

cudaError_t peer_barrier(const PeerBarrier& barrier, cudaStream_t stream) {
  if (barrier.size > kMaxPeers) {
    return cudaErrorInvalidValue;
  }
  barrier_kernel<<<1, kMaxPeers, 0, stream>>>(barrier);
  return cudaGetLastError();
}

cudaError_t peer_scatter(const PeerScatter& scatter, cudaStream_t stream) {
  if (scatter.size > kMaxPeers) {
    return cudaErrorInvalidValue;
  }
  if (scatter.outer * scatter.rows * scatter.run == 0 || (scatter.skips_own && scatter.size == 1)) {
    return cudaSuccess;
  }
  if (multiples_of(scatter, sizeof(uint4))) {
    return launch<uint4>(scatter, stream);
  }
  return multiples_of(scatter, sizeof(uint16_t)) ? launch<uint16_t>(scatter, stream)
                                                 : launch<uint8_t>(scatter, stream);
}

cudaError_t peer_sum(const PeerSum& sum, cudaStream_t stream) {
  if (sum.size > kMaxPeers || sum.count % kAtOnce != 0) {
    return cudaErrorInvalidValue;
  }
  if (sum.count == 0) {
    return cudaSuccess;
  }
  const int64_t blocks = ceil_div(sum.count / kAtOnce, kThreads);
  return with_type(sum.type, [&](auto example) {
    peer_sum_kernel<decltype(example)><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(sum);
    return cudaGetLastError();
  });
}

}  // namespace kinora::kernels::cuda
