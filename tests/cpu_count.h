#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace kinora {

/// While it lives, libtorch reports the bytes of tensors on the CPU that this thread makes and
/// frees, as it does to its profiler.
class CpuCount {
 public:
  CpuCount() : reports_(std::make_shared<Reports>()), guard_(kKind, reports_) {}

  [[nodiscard]] int64_t peak() const { return reports_->peak; }

 private:
  static constexpr auto kKind = c10::DebugInfoKind::PROFILER_STATE;
  struct Reports : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*pointer*/, int64_t size, size_t /*allocated*/,
                           size_t /*reserved*/, c10::Device /*device*/) override {
      live += size;
      peak = std::max(peak, live);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    int64_t live = 0;
    int64_t peak = 0;
  };

  std::shared_ptr<Reports> reports_;
  c10::DebugInfoGuard guard_;
};

}  // namespace kinora
