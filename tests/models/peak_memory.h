#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kinora {

/// Counts the bytes of CPU tensors while it lives; of one at a time.
class PeakMemory : public c10::Allocator {
 public:
  PeakMemory() : inner_(c10::GetCPUAllocator()) {
    count().alive = 0;
    count().peak = 0;
    c10::SetCPUAllocator(this, kPriority);
  }
  ~PeakMemory() override { c10::SetCPUAllocator(inner_, kPriority); }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  /// The most bytes that were alive at once of those asked for since it was made.
  [[nodiscard]] int64_t bytes() const { return count().peak; }

  c10::DataPtr allocate(size_t bytes) override {
    // Libraries want a block's address to be all that is needed to free it: its size lies before.
    auto* const block = static_cast<std::byte*>(c10::alloc_cpu(bytes + kHeader));
    *reinterpret_cast<size_t*>(block) = bytes;
    count().alive += static_cast<int64_t>(bytes);
    count().peak = std::max<int64_t>(count().peak, count().alive);
    return {block + kHeader, block + kHeader, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr uint8_t kPriority = 10;
  static constexpr size_t kHeader = 64;  // keeps the alignment

  struct Count {
    std::atomic<int64_t> alive = 0;
    std::atomic<int64_t> peak = 0;
  };
  static Count& count() {
    static Count all;  // blocks may live longer than the counting
    return all;
  }
  static void free(void* data) {
    std::byte* const block = static_cast<std::byte*>(data) - kHeader;
    count().alive -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
    c10::free_cpu(block);
  }

  c10::Allocator* inner_;
};

}  // namespace kinora
