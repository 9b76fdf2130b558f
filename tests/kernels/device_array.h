#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::kernels {

/// A copy of a host array in the GPU's memory, `offset` elements behind an address aligned to 256
/// bytes, with one guard element on each side that the destructor checks.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host, size_t offset = 0)
      : size_(host.size()), start_(offset + kGuard) {
    std::vector<T> all(start_ + size_ + kGuard, guard());
    std::copy(host.begin(), host.end(), all.begin() + static_cast<int64_t>(start_));
    KINORA_CUDA_CHECK(cudaMalloc(&memory_, all.size() * sizeof(T)));
    KINORA_CUDA_CHECK(
        cudaMemcpy(memory_, all.data(), all.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    const std::vector<T> all = everything();
    for (size_t i = 0; i < all.size(); ++i) {
      if (i < start_ || i >= start_ + size_) {
        EXPECT_EQ(all[i], guard()) << "written outside of the array, at " << i;
      }
    }
    cudaFree(memory_);
  }

  [[nodiscard]] T* data() const { return static_cast<T*>(memory_) + start_; }
  [[nodiscard]] std::vector<T> host() const {
    const std::vector<T> all = everything();
    return {all.begin() + static_cast<int64_t>(start_),
            all.begin() + static_cast<int64_t>(start_ + size_)};
  }

 private:
  static constexpr size_t kGuard = 64;  // elements: keeps data() of offset 0 aligned
  static T guard() { return T(77); }

  [[nodiscard]] std::vector<T> everything() const {
    std::vector<T> all(start_ + size_ + kGuard);
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, all.size() * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return all;
  }

  size_t size_;
  size_t start_;
  void* memory_ = nullptr;
};

/// A fixture that skips, saying so, where there is no GPU or no kernel.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_cuda_kernels()) {
      GTEST_SKIP() << "this build has no CUDA kernels of its own (no nvcc)";
    }
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

}  // namespace kinora::kernels
