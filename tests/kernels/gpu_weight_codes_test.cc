#include <gtest/gtest.h>

#include <cmath>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/weight_codes.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_weight_codes_test {

using GpuWeightCodesTest = GpuTest;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

struct Case {
  int64_t rows;
  int64_t width;
};

constexpr Case kCases[] = {{1, 1}, {3, 5}, {7, 16}, {5, 37}, {64, 64}, {33, 96}, {300, 1152}};

/// Every code occurs, those that are NaN, too.
TEST_F(GpuWeightCodesTest, EqualTheCpu) {
  for (const auto& [rows, width] : kCases) {
    for (const WeightFormat format :
         {WeightFormat::kInt8, WeightFormat::kFp8, WeightFormat::kNf4}) {
      for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << width << ", format "
                                        << static_cast<int>(format) << " " << to_string(type));
        WeightCodes call{.format = format,
                         .count = rows * width,
                         .group = format == WeightFormat::kNf4 ? kNf4Group : width};
        Bytes codes(static_cast<size_t>(code_bytes(format, call.count)));
        for (size_t i = 0; i < codes.size(); ++i) {
          codes[i] = static_cast<uint8_t>(i * 37 + i / 97);
        }
        Floats scales = random_values(ceil_div(call.count, call.group), 3);
        scales.back() *= 1e-20F;
        Bytes out(static_cast<size_t>(call.count) * size_of(type));
        const DeviceArray<uint8_t> gpu_codes(codes);
        const DeviceArray<float> gpu_scales(scales);
        WeightCodes gpu_call = call;
        gpu_call.codes = gpu_codes.data();
        gpu_call.scales = gpu_scales.data();
        call.codes = codes.data();
        call.scales = scales.data();
        dequantise_weight(call, type, out.data());
        const Floats want = decode(out, type);
        const std::vector<int64_t> gaps =
            width % 16 == 0 ? std::vector<int64_t>{0, 16, 48} : std::vector<int64_t>{0};
        for (const int64_t gap : gaps) {
          constexpr uint8_t kUntouched = 0x3c;
          const DeviceArray<uint8_t> gpu_out(
              Bytes(static_cast<size_t>(rows * (width + gap)) * size_of(type), kUntouched));
          ASSERT_EQ(cuda::dequantise_weight(gpu_call, type, gpu_out.data(), width, gap, nullptr),
                    cudaSuccess);
          const Bytes bytes = gpu_out.host();
          const Floats got = decode(bytes, type);
          for (int64_t i = 0; i < rows * (width + gap); ++i) {
            const int64_t column = i % (width + gap);
            if (column >= width) {
              ASSERT_EQ(bytes[static_cast<size_t>(i) * size_of(type)], kUntouched) << i;
              continue;
            }
            const float value = got[static_cast<size_t>(i)];
            const float right = want[static_cast<size_t>(i / (width + gap) * width + column)];
            ASSERT_TRUE(value == right || (std::isnan(value) && std::isnan(right)))
                << "gap " << gap << " element " << i << " is " << value << ", must be " << right;
          }
        }
      }
    }
  }
}

TEST_F(GpuWeightCodesTest, RefusesWhatIsNotAligned) {
  const DeviceArray<uint8_t> codes(Bytes(64), 1);
  const DeviceArray<float> scales(Floats(1));
  const DeviceArray<float> out(Floats(64));
  const WeightCodes call{.format = WeightFormat::kNf4,
                         .count = 64,
                         .group = kNf4Group,
                         .codes = codes.data(),
                         .scales = scales.data()};
  EXPECT_EQ(cuda::dequantise_weight(call, DType::kF32, out.data(), 64, 0, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace gpu_weight_codes_test
}  // namespace kinora::kernels
