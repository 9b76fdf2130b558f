#include <cmath>
#include <limits>

#include "kinora/kernels/cuda/fp8.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_fp8_test {

using GpuFp8Test = GpuTest;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kFp8Types[] = {DType::kF8E4M3, DType::kF8E5M2};

struct Shape {
  int64_t rows;
  int64_t width;
};

constexpr Shape kBlockShapes[] = {{16, 16}, {128, 128}, {144, 400}, {2048, 1152}};
constexpr Shape kTiledShapes[] = {{16, 16}, {128, 128}, {144, 400}, {2048, 1152},
                                  {1, 16},  {37, 144},  {130, 16},  {2049, 1152}};

size_t transposed_size(const Shape& shape) {
  return static_cast<size_t>(transposed_pitch(shape.rows) * shape.width);
}

/// Values of every size, among them what saturates and what is not finite.
Bytes values_of(const Shape& shape, DType type) {
  Floats values = random_values(shape.rows * shape.width, 1);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::ldexp(1.0F, static_cast<int>(i % 23) - 14);
  }
  return encode(values, type);
}

/// Conversions are exact: the same bits, but for a NaN's sign.
void expect_same_bytes(Bytes got, Bytes want, const char* what) {
  for (Bytes* bytes : {&got, &want}) {
    for (uint8_t& byte : *bytes) {
      byte = (byte & 0x7fU) == 0x7fU ? 0x7fU : byte;
    }
  }
  EXPECT_TRUE(got == want) << what;
}

TEST_F(GpuFp8Test, QuantisedCopiesEqualTheCpu) {
  const float scale = 4.0F;
  for (const DType type : kTypes) {
    for (const DType fp8_type : kFp8Types) {
      for (const Shape& shape : kTiledShapes) {
        SCOPED_TRACE(testing::Message() << to_string(type) << " " << to_string(fp8_type) << " "
                                        << shape.rows << " x " << shape.width);
        const Bytes in = values_of(shape, type);
        const auto numel = static_cast<size_t>(shape.rows * shape.width);
        Bytes data(numel), transposed(transposed_size(shape));
        float amax = 0.0F;
        quantise({shape.rows,
                  shape.width,
                  type,
                  in.data(),
                  {fp8_type, data.data(), transposed.data(), &scale, &amax}});
        const DeviceArray<uint8_t> gpu_in(in);
        const DeviceArray<uint8_t> gpu_data{Bytes(numel)};
        const DeviceArray<uint8_t> gpu_transposed{Bytes(transposed.size(), 1)};
        const DeviceArray<float> gpu_scale(Floats{scale});
        const DeviceArray<float> gpu_amax(Floats{0.0F});
        ASSERT_EQ(cuda::quantise({shape.rows,
                                  shape.width,
                                  type,
                                  gpu_in.data(),
                                  {fp8_type, gpu_data.data(), gpu_transposed.data(),
                                   gpu_scale.data(), gpu_amax.data()}},
                                 nullptr, nullptr),
                  cudaSuccess);
        expect_same_bytes(gpu_data.host(), data, "data");
        expect_same_bytes(gpu_transposed.host(), transposed, "transposed");
        EXPECT_EQ(gpu_amax.host()[0], amax);
      }
    }
  }
}

TEST_F(GpuFp8Test, QuantisingAddsColumnSums) {
  for (const DType type : kTypes) {
    for (const Shape& shape : kTiledShapes) {
      SCOPED_TRACE(testing::Message()
                   << to_string(type) << " " << shape.rows << " x " << shape.width);
      const Bytes in = encode(random_values(shape.rows * shape.width, 2), type);
      const auto numel = static_cast<size_t>(shape.rows * shape.width);
      const auto width = static_cast<size_t>(shape.width);
      Floats sums(width, 0.5F);
      Bytes data(numel), transposed(transposed_size(shape));
      Quantise call{
          .rows = shape.rows, .width = shape.width, .type = type, .in = in.data(), .out = {}};
      call.out = {.data = data.data(), .transposed = transposed.data()};
      call.column_sums = sums.data();
      quantise(call);
      const DeviceArray<uint8_t> gpu_in(in);
      const DeviceArray<uint8_t> gpu_data{Bytes(numel)};
      const DeviceArray<uint8_t> gpu_transposed{Bytes(transposed.size(), 1)};
      const DeviceArray<float> gpu_sums(Floats(width, 0.5F));
      const DeviceArray<uint8_t> workspace{
          Bytes(cuda::quantise_workspace_bytes(shape.rows, shape.width))};
      call.in = gpu_in.data();
      call.out = {.data = gpu_data.data(), .transposed = gpu_transposed.data()};
      call.column_sums = gpu_sums.data();
      ASSERT_EQ(cuda::quantise(call, workspace.data(), nullptr), cudaSuccess);
      expect_same_bytes(gpu_data.host(), data, "data");
      expect_same_bytes(gpu_transposed.host(), transposed, "transposed");
      const Floats got = gpu_sums.host();
      for (size_t c = 0; c < width; ++c) {
        ASSERT_NEAR(got[c], sums[c], 1e-5F * std::sqrt(static_cast<float>(shape.rows))) << c;
      }
    }
  }
}

TEST_F(GpuFp8Test, RowsMayLieApart) {
  constexpr int64_t kRows = 133;
  constexpr int64_t kWidth = 144;
  constexpr int64_t kStride = 400;
  for (const DType type : kTypes) {
    const Bytes in = values_of({kRows, kStride}, type);
    const DeviceArray<uint8_t> gpu_in(in);
    for (const bool has_transposed : {false, true}) {
      Bytes data(kRows * kWidth), transposed(transposed_size({kRows, kWidth}));
      float amax = 0.0F;
      Quantise call{.rows = kRows, .width = kWidth, .type = type, .in = in.data(), .out = {}};
      call.row_stride = kStride;
      call.out.data = data.data();
      call.out.transposed = has_transposed ? transposed.data() : nullptr;
      call.out.amax = &amax;
      quantise(call);
      const DeviceArray<uint8_t> gpu_data{Bytes(data.size())};
      const DeviceArray<uint8_t> gpu_transposed{Bytes(transposed.size())};
      const DeviceArray<float> gpu_amax(Floats{0.0F});
      call.in = gpu_in.data();
      call.out.data = gpu_data.data();
      call.out.transposed = has_transposed ? gpu_transposed.data() : nullptr;
      call.out.amax = gpu_amax.data();
      ASSERT_EQ(cuda::quantise(call, nullptr, nullptr), cudaSuccess);
      expect_same_bytes(gpu_data.host(), data, "data");
      expect_same_bytes(gpu_transposed.host(), transposed, "transposed");
      EXPECT_EQ(gpu_amax.host()[0], amax);
    }
  }
}

TEST_F(GpuFp8Test, PlainCopiesEqualTheCpuAtOddSizesAndAlignments) {
  for (const DType type : kTypes) {
    for (const int64_t count : {1, 7, 8, 9, 2049, 1'000'003}) {
      for (const size_t offset : {0, 1}) {
        const Bytes in = values_of({1, count}, type);
        Bytes data(static_cast<size_t>(count));
        float amax = 0.0F;
        quantise(
            {1, count, type, in.data(), {DType::kF8E4M3, data.data(), nullptr, nullptr, &amax}});
        const DeviceArray<uint8_t> gpu_in(in, offset * size_of(type));
        const DeviceArray<uint8_t> gpu_data(Bytes(data.size()), offset);
        const DeviceArray<float> gpu_amax(Floats{0.0F, 1e30F});
        ASSERT_EQ(
            cuda::quantise({1,
                            count,
                            type,
                            gpu_in.data(),
                            {DType::kF8E4M3, gpu_data.data(), nullptr, nullptr, gpu_amax.data()}},
                           nullptr, nullptr),
            cudaSuccess);
        ASSERT_EQ(cuda::quantise({1, count, type, gpu_in.data(), {.amax = gpu_amax.data() + 1}},
                                 nullptr, nullptr),
                  cudaSuccess);
        expect_same_bytes(gpu_data.host(), data, "data");
        EXPECT_EQ(gpu_amax.host(), (Floats{amax, 1e30F}));
      }
    }
  }
}

TEST_F(GpuFp8Test, NanIsTheLargestMagnitude) {
  Floats in(3000, 1.0F);
  in[5] = std::numeric_limits<float>::infinity();
  const DeviceArray<float> amax(Floats{0.0F, 0.0F});
  {
    const DeviceArray<float> gpu_in(in);
    ASSERT_EQ(cuda::quantise({1, 3000, DType::kF32, gpu_in.data(), {.amax = amax.data()}}, nullptr,
                             nullptr),
              cudaSuccess);
  }
  in[2999] = -std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> gpu_in(in);
  ASSERT_EQ(cuda::quantise({1, 3000, DType::kF32, gpu_in.data(), {.amax = amax.data() + 1}},
                           nullptr, nullptr),
            cudaSuccess);
  EXPECT_TRUE(std::isinf(amax.host()[0]));
  EXPECT_TRUE(std::isnan(amax.host()[1]));
}

TEST_F(GpuFp8Test, TransposesBytes) {
  for (const Shape& shape : kTiledShapes) {
    Bytes in(static_cast<size_t>(shape.rows * shape.width));
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = static_cast<uint8_t>(i * 7 + i / 251);
    }
    Bytes want(transposed_size(shape));
    transpose_bytes(in.data(), shape.rows, shape.width, want.data());
    const DeviceArray<uint8_t> gpu_in(in);
    const DeviceArray<uint8_t> out{Bytes(want.size(), 1)};
    ASSERT_EQ(cuda::transpose_bytes(gpu_in.data(), shape.rows, shape.width, out.data(), nullptr),
              cudaSuccess);
    EXPECT_TRUE(out.host() == want) << shape.rows << " x " << shape.width;
    EXPECT_EQ(
        cuda::transpose_bytes(gpu_in.data(), shape.rows, shape.width - 1, out.data(), nullptr),
        cudaErrorInvalidValue);
  }
}

TEST_F(GpuFp8Test, ScalesEqualTheCpu) {
  constexpr int64_t kCount = 19;
  for (const int64_t window : {0, 1, 16, 33, 1024}) {
    const auto history_size = static_cast<size_t>(kCount * window);
    Floats history(history_size), scale(kCount, 1.0F), inverse(kCount), largest(kCount);
    for (size_t i = 0; i < largest.size(); ++i) {
      largest[i] = i % 2 == 0 ? kLargestE4M3 : kLargestE5M2;
    }
    const DeviceArray<float> gpu_history(history), gpu_scale(scale), gpu_inverse(inverse);
    const DeviceArray<float> gpu_largest(largest);
    for (uint64_t step = 0; step < 40; ++step) {
      Floats amax = random_values(kCount, step, 10.0F);
      for (float& value : amax) {
        value = std::abs(value);
      }
      amax[3] = 0.0F;
      amax[4] = step % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
      amax[5] = step % 3 == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
      amax[6] = 1e-42F;
      const DeviceArray<float> gpu_amax(amax);
      ASSERT_EQ(cuda::update_scales({kCount, gpu_amax.data(), gpu_history.data(), window,
                                     gpu_largest.data(), 1, gpu_scale.data(), gpu_inverse.data()},
                                    nullptr),
                cudaSuccess);
      update_scales({kCount, amax.data(), history.data(), window, largest.data(), 1, scale.data(),
                     inverse.data()});
      EXPECT_EQ(gpu_amax.host(), amax);
    }
    EXPECT_EQ(gpu_history.host(), history) << window;
    EXPECT_EQ(gpu_scale.host(), scale) << window;
    EXPECT_EQ(gpu_inverse.host(), inverse) << window;
  }
}

TEST_F(GpuFp8Test, BlocksEqualTheCpu) {
  for (const DType type : kTypes) {
    for (const DType fp8_type : kFp8Types) {
      for (const Shape& shape : kBlockShapes) {
        for (const bool is_square : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << to_string(type) << " " << to_string(fp8_type) << " " << shape.rows
                       << " x " << shape.width << (is_square ? ", square" : ""));
          const Bytes in = values_of(shape, type);
          Bytes data(static_cast<size_t>(shape.rows * shape.width)), transposed(data.size());
          Floats factors(static_cast<size_t>(block_factors(shape.rows, shape.width, is_square)));
          Floats other(static_cast<size_t>(block_factors(shape.width, shape.rows, is_square)));
          BlockQuantise call;
          call.rows = shape.rows;
          call.width = shape.width;
          call.type = type;
          call.is_square = is_square;
          call.out_type = fp8_type;
          const DeviceArray<uint8_t> gpu_in(in), gpu_data(data), gpu_transposed(transposed);
          const DeviceArray<float> gpu_factors(factors), gpu_other(other);
          BlockQuantise gpu_call = call;
          gpu_call.in = gpu_in.data();
          gpu_call.data = gpu_data.data();
          gpu_call.factors = gpu_factors.data();
          gpu_call.transposed = gpu_transposed.data();
          gpu_call.transposed_factors = gpu_other.data();
          ASSERT_EQ(cuda::block_quantise(gpu_call, nullptr), cudaSuccess);
          call.in = in.data();
          call.data = data.data();
          call.factors = factors.data();
          call.transposed = transposed.data();
          call.transposed_factors = other.data();
          block_quantise(call);
          EXPECT_EQ(gpu_factors.host(), factors);
          EXPECT_EQ(gpu_other.host(), other);
          expect_same_bytes(gpu_data.host(), data, "data");
          expect_same_bytes(gpu_transposed.host(), transposed, "transposed");
        }
      }
    }
  }
}

}  // namespace gpu_fp8_test
}  // namespace kinora::kernels
