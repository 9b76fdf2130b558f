#pragma once

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/kernels/elements.h"

/// Timing of memory-bound kernels on a GPU by its events.
namespace kinora::kernels {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) {
    KINORA_CUDA_CHECK(cudaMalloc(&data_, std::max(bytes, size_t{1})));
    KINORA_CUDA_CHECK(cudaMemset(data_, 0, std::max(bytes, size_t{1})));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data_); }

  template <typename T = void>
  [[nodiscard]] T* get() const {
    return static_cast<T*>(data_);
  }

  /// Normal numbers of `type`, a million of them again and again.
  void fill_normal(size_t count, DType type, float scale = 1.0F) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal(0.0F, scale);
    const size_t size = std::min(count, size_t{1} << 20);
    std::vector<uint8_t> chunk(size * size_of(type));
    for (size_t i = 0; i < size; ++i) {
      store_element(chunk.data(), static_cast<int64_t>(i), type, normal(engine));
    }
    KINORA_CUDA_CHECK(cudaMemcpy(get(), chunk.data(), chunk.size(), cudaMemcpyHostToDevice));
    for (size_t done = size; done < count; done += size) {
      KINORA_CUDA_CHECK(cudaMemcpy(get<uint8_t>() + done * size_of(type), get(),
                                   std::min(size, count - done) * size_of(type),
                                   cudaMemcpyDeviceToDevice));
    }
  }

 private:
  void* data_ = nullptr;
};

inline bool skip_without_gpu(benchmark::State& state) {
  if (!cuda_available()) {
    state.SkipWithError(("no GPU: " + cuda_unavailable_reason()).c_str());
    return true;
  }
  return false;
}

/// Times `launch(i)`, i = 0, 1, ...: several launches between two events, so that the events' own
/// time does not count. Arrays that together fit into the L2 cache should alternate with i.
/// @param bytes  that a launch has to move at least
template <typename Launch>
void time_launches(benchmark::State& state, int64_t bytes, const Launch& launch) {
  constexpr int kLaunches = 8;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  KINORA_CUDA_CHECK(cudaEventCreate(&start));
  KINORA_CUDA_CHECK(cudaEventCreate(&stop));
  int64_t index = 0;
  KINORA_CUDA_CHECK(launch(index++));
  for (auto _ : state) {
    KINORA_CUDA_CHECK(cudaEventRecord(start, nullptr));
    for (int i = 0; i < kLaunches; ++i) {
      KINORA_CUDA_CHECK(launch(index++));
    }
    KINORA_CUDA_CHECK(cudaEventRecord(stop, nullptr));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    state.SetIterationTime(milliseconds / 1e3 / kLaunches);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  KINORA_CUDA_CHECK(cudaEventDestroy(start));
  KINORA_CUDA_CHECK(cudaEventDestroy(stop));
}

/// The bandwidth of a copy within the GPU, which the kernels' is compared with.
inline void BM_DeviceCopy(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceMemory from(kBytes);
  const DeviceMemory to(kBytes);
  time_launches(state, int64_t{2} * kBytes, [&](int64_t /*i*/) {
    return cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice, nullptr);
  });
}

}  // namespace kinora::kernels
