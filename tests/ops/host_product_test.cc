#include "kinora/ops/host_product.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace host_product_test {

TEST(HostProductTest, IsThatOfTheWeightForAnyNumberOfVectors) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kWidth = 96;
  const at::Tensor plain = at::randn({kRows, kWidth}).to(at::kBFloat16);
  const QuantisedWeight codes =
      zero_weight(kernels::WeightFormat::kFp8, kRows, kWidth, at::Device(at::kCPU));
  quantise(at::randn({kRows, kWidth}), codes);
  const at::Tensor wide = at::empty({kRows * kWidth});
  dequantise(codes, wide);
  HostProducts products({{.rows = kRows, .width = kWidth, .plain = plain, .codes = {}},
                         {.rows = kRows, .width = kWidth, .plain = {}, .codes = codes}},
                        at::kCPU);
  for (const int64_t num_vectors : {1, 3, 1, 9}) {
    const at::Tensor x = at::randn({num_vectors, kWidth}).to(at::kBFloat16);
    products.begin({0, 1}, x);
    const at::Tensor in = x.to(at::kFloat);
    EXPECT_TRUE(at::allclose(products.result(0), at::linear(in, plain.to(at::kFloat)), 1e-5, 1e-5));
    EXPECT_TRUE(
        at::allclose(products.result(1), at::linear(in, wide.view({kRows, kWidth})), 1e-5, 1e-5));
  }
  EXPECT_THROW(products.begin({0}, at::randn({1, kWidth + 1})), Error);
}

}  // namespace host_product_test
}  // namespace kinora::ops
