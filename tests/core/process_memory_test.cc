#include "kinora/core/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace kinora {
namespace process_memory_test {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(ProcessMemoryTest, ThePeakRisesWithWhatIsTouchedAndStartsAnew) {
  if (!start_resident_peak_anew()) {
    GTEST_SKIP() << "the kernel does not let this process reset its peak";
  }
  const int64_t before = peak_resident_bytes();
  EXPECT_GT(before, kMiB);  // at least its own code
  // Pages of the kernel, not of the heap: a sanitizer's heap keeps for a while what is freed.
  void* const block =
      ::mmap(nullptr, 128 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, 128 * kMiB);
  ASSERT_EQ(::munmap(block, 128 * kMiB), 0);
  const int64_t with_block = peak_resident_bytes();
  EXPECT_GT(with_block, before + 120 * kMiB);  // although it is gone
  ASSERT_TRUE(start_resident_peak_anew());
  EXPECT_LT(peak_resident_bytes(), with_block - 100 * kMiB);
}

}  // namespace process_memory_test
}  // namespace kinora
