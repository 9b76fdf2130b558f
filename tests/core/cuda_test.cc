#include "kinora/core/cuda.h"

#include <gtest/gtest.h>

#include "kinora/core/build_info.h"
#include "kinora/core/error.h"

namespace kinora {
namespace cuda_test {

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TEST(CudaTest, MissingGpuIsAnAnswerNotAnError) {
  EXPECT_EQ(cuda_available(), cuda_device_count() > 0);
  EXPECT_EQ(cuda_available(), cuda_unavailable_reason().empty());
  EXPECT_TRUE(build_info().has_cuda || !cuda_available());
}

TEST(CudaTest, UnknownDeviceIsRefused) {
  const int count = cuda_device_count();
  EXPECT_EQ(kind_of([&] { (void)cuda_device(count); }), ErrorKind::kCuda);
  EXPECT_EQ(kind_of([&] { (void)cuda_device(-1); }), ErrorKind::kCuda);
  EXPECT_EQ(kind_of([&] { (void)cuda_free_memory(count); }), ErrorKind::kCuda);
}

TEST(CudaTest, FactsOfEveryDeviceAreSensible) {
  if (!cuda_available()) {
    GTEST_SKIP() << cuda_unavailable_reason();
  }
  for (int i = 0; i < cuda_device_count(); ++i) {
    const CudaDevice device = cuda_device(i);
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.num_multiprocessors, 0);
    EXPECT_GE(device.major, 5);
    const int64_t free = cuda_free_memory(i);
    EXPECT_GT(free, 0);
    EXPECT_LE(free, device.total_memory);
  }
}

TEST(CudaTest, CheckThrowsOnlyForErrors) {
  EXPECT_NO_THROW(KINORA_CUDA_CHECK(0));
  constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue
  try {
    KINORA_CUDA_CHECK(kInvalidValue);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCuda);
    EXPECT_NE(std::string(error.what()).find("kInvalidValue failed"), std::string::npos);
  }
}

}  // namespace cuda_test
}  // namespace kinora
