#include "kinora/device/out_of_memory.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <stdexcept>

#include "kinora/core/error.h"

namespace kinora::device {
namespace out_of_memory_test {

std::optional<std::string> text_of(const std::function<void()>& failure) {
  try {
    failure();
  } catch (const std::exception& error) {
    return out_of_memory_text(error);
  }
  return std::nullopt;
}

TEST(OutOfMemoryTest, KnowsWhatLibtorchTheSystemAndWeSay) {
  EXPECT_EQ(text_of([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA has no more"); }),
            "CUDA has no more");
  EXPECT_THAT(text_of([] { TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory"); }),
              testing::Optional(testing::HasSubstr("can't allocate memory")));
  EXPECT_TRUE(text_of([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(text_of([] { throw std::runtime_error("CUDA error: out of memory"); }));
  EXPECT_EQ(text_of([] { throw_error(ErrorKind::kMemory, "too large"); }), "too large");
}

TEST(OutOfMemoryTest, OtherErrorsAreNotItsAffair) {
  EXPECT_FALSE(text_of([] { TORCH_CHECK(false, "shapes differ"); }));
  EXPECT_FALSE(text_of([] { throw std::runtime_error("no such file"); }));
  // What another rank had is not this one's.
  EXPECT_FALSE(text_of([] { throw_error(ErrorKind::kComm, "rank 1 failed: out of memory"); }));
}

}  // namespace out_of_memory_test
}  // namespace kinora::device
