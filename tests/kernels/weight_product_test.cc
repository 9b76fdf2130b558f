#include "kinora/kernels/weight_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kinora/kernels/weight_codes.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace weight_product_test {

constexpr int64_t kRows = 7;
constexpr int64_t kVectors = 6;

/// Compares with sums in double of `weight`, whose numbers are what the product reads.
void expect_products(WeightProduct call, const std::vector<float>& weight) {
  const std::vector<float> in = random_values(kVectors * call.width, 3, 1.0F);
  std::vector<float> out(static_cast<size_t>(kVectors * kRows), -1.0F);
  call.rows = kRows;
  call.num_vectors = kVectors;
  call.out = out.data();
  const std::vector<float> ordered = in_order_of_weight(call, in.data());
  multiply_weight(call, ordered, 0, 3);
  multiply_weight(call, ordered, 3, kRows);
  for (int64_t v = 0; v < kVectors; ++v) {
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0.0;
      double most = 0.0;
      for (int64_t i = 0; i < call.width; ++i) {
        const double term = static_cast<double>(in[static_cast<size_t>(v * call.width + i)]) *
                            weight[static_cast<size_t>(row * call.width + i)];
        sum += term;
        most += std::abs(term);
      }
      EXPECT_NEAR(out[static_cast<size_t>(v * kRows + row)], sum, 1e-6 * most) << v << ", " << row;
    }
    // Alone it has the same bits as together with others.
    WeightProduct alone = call;
    std::vector<float> own(static_cast<size_t>(kRows));
    alone.num_vectors = 1;
    alone.out = own.data();
    multiply_weight(alone, in_order_of_weight(alone, in.data() + v * call.width), 0, kRows);
    EXPECT_EQ(own, std::vector<float>(out.begin() + v * kRows, out.begin() + (v + 1) * kRows));
  }
}

TEST(WeightProductTest, OfPlainWeightsIsTheSumOfProducts) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t width : {1, 31, 64, 77}) {
      SCOPED_TRACE(testing::Message() << to_string(type) << ", width " << width);
      std::vector<float> weight = random_values(kRows * width, 5, 0.1F);
      weight[0] = 1e-6F;  // subnormal in fp16
      const std::vector<uint8_t> bytes = encode(weight, type);
      expect_products({.width = width, .type = type, .weight = bytes.data()}, decode(bytes, type));
    }
  }
}

TEST(WeightProductTest, OfCodesIsThatOfWhatTheyStandFor) {
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFp8}) {
    for (const int64_t width : {1, 31, 64, 77}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << ", width " << width);
      std::vector<float> weight = random_values(kRows * width, 7, 0.1F);
      weight.back() *= 1e-3F;  // a subnormal code of fp8
      WeightCodes codes{.format = format, .count = kRows * width, .group = width};
      std::vector<uint8_t> bytes(static_cast<size_t>(code_bytes(format, codes.count)));
      std::vector<float> scales(static_cast<size_t>(kRows));
      codes.codes = bytes.data();
      codes.scales = scales.data();
      quantise_weight(codes, weight.data());
      dequantise_weight(codes, DType::kF32, weight.data());
      expect_products({.width = width, .codes = codes}, weight);
    }
  }
}

}  // namespace weight_product_test
}  // namespace kinora::kernels
