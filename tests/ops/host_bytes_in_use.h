#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace kinora::ops {

/// Counts the bytes of tensors on the CPU that this thread has made and not freed since.
class HostBytesInUse {
 public:
  [[nodiscard]] int64_t bytes() const { return counter_->bytes; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*pointer*/, int64_t size, size_t /*allocated*/,
                           size_t /*reserved*/, c10::Device /*device*/) override {
      bytes += size;
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    int64_t bytes = 0;
  };

  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace kinora::ops
