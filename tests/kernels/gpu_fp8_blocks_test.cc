#include <cmath>
#include <limits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/fp8_blocks.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_fp8_blocks_test {

using GpuFp8BlocksTest = GpuTest;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

struct Case {
  int64_t sums;
  int64_t terms;
  int64_t count;
};

constexpr Case kCases[] = {{1, 1, 1},     {1, 2, 128},  {3, 1, 257},
                           {4, 1, 20480}, {2, 5, 1000}, {1, 8, 300'001}};

/// Every byte occurs, NaN too, and so do factors that are NaN, tiny or huge.
TEST_F(GpuFp8BlocksTest, SumsEqualTheCpu) {
  for (const Case& sizes : kCases) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const size_t offset : {0, 1}) {
        SCOPED_TRACE(testing::Message()
                     << sizes.sums << " x " << sizes.terms << " x " << sizes.count << " "
                     << to_string(type) << ", offset " << offset);
        BlockSums call;
        call.sums = sizes.sums;
        call.terms = sizes.terms;
        call.count = sizes.count;
        call.pitch = round_up(sizes.count, 128);
        call.scale = 0.3F;
        call.type = type;
        Bytes data(static_cast<size_t>(call.sums * call.terms * call.pitch));
        for (size_t i = 0; i < data.size(); ++i) {
          data[i] = static_cast<uint8_t>(i * 37 + i / 97);
        }
        Floats factors = random_values(static_cast<int64_t>(data.size()) / 128, 3);
        factors.back() *= 1e-20F;
        if (factors.size() > 8) {
          factors[1] = std::numeric_limits<float>::quiet_NaN();
          factors[2] = 1e34F;
        }
        Bytes out(static_cast<size_t>(call.sums * call.count) * size_of(type));
        const DeviceArray<uint8_t> gpu_data(data);
        const DeviceArray<float> gpu_factors(factors);
        const DeviceArray<uint8_t> gpu_out(out, offset * size_of(type));
        BlockSums gpu_call = call;
        gpu_call.data = gpu_data.data();
        gpu_call.factors = gpu_factors.data();
        gpu_call.out = gpu_out.data();
        ASSERT_EQ(cuda::block_sums(gpu_call, nullptr), cudaSuccess);
        call.data = data.data();
        call.factors = factors.data();
        call.out = out.data();
        block_sums(call);
        const Floats want = decode(out, type);
        const Floats got = decode(gpu_out.host(), type);
        for (size_t i = 0; i < want.size(); ++i) {
          if (got[i] != want[i] && !(std::isnan(got[i]) && std::isnan(want[i]))) {
            FAIL() << "element " << i << " is " << got[i] << ", must be " << want[i];
          }
        }
      }
    }
  }
}

TEST_F(GpuFp8BlocksTest, UnsuitableArraysAreRefused) {
  const DeviceArray<uint8_t> data{Bytes(512)};
  const DeviceArray<float> factors{Floats(4)};
  const DeviceArray<float> out{Floats(256)};
  BlockSums call;
  call.sums = 1;
  call.terms = 1;
  call.count = 200;
  call.pitch = 200;
  call.data = data.data();
  call.factors = factors.data();
  call.out = out.data();
  EXPECT_EQ(cuda::block_sums(call, nullptr), cudaErrorInvalidValue);
  call.pitch = 128;
  EXPECT_EQ(cuda::block_sums(call, nullptr), cudaErrorInvalidValue);
  call.pitch = 256;
  EXPECT_EQ(cuda::block_sums(call, nullptr), cudaSuccess);
  call.data = data.data() + 1;
  EXPECT_EQ(cuda::block_sums(call, nullptr), cudaErrorInvalidValue);
}

}  // namespace gpu_fp8_blocks_test
}  // namespace kinora::kernels
