#include "kinora/data/normalise.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace normalise_test {

TEST(NormaliseTest, MapsBytesToMinusOneToOne) {
  const at::Tensor bytes = at::arange(256, at::kByte);
  const at::Tensor floats = to_float(bytes, at::kCPU);
  EXPECT_EQ(floats.scalar_type(), at::kFloat);
  const auto* values = floats.const_data_ptr<float>();
  EXPECT_EQ(values[0], -1.0F);
  EXPECT_EQ(values[255], 1.0F);
  for (int i = 0; i < 256; ++i) {
    EXPECT_NEAR(values[i], i / 127.5 - 1.0, 1e-7) << i;
  }
  EXPECT_EQ(bytes.const_data_ptr<uint8_t>()[7], 7);  // untouched
}

TEST(NormaliseTest, FloatsPass) {
  const at::Tensor latents = at::arange(-3, 5, at::kFloat);
  EXPECT_TRUE(to_float(latents, at::kCPU).equal(at::arange(-3, 5, at::kFloat)));
}

TEST(NormaliseTest, RefusesOtherTypes) {
  EXPECT_THAT(error_of([] { (void)to_float(at::empty({2}, at::kHalf), at::kCPU); }),
              testing::HasSubstr("uint8, and latents float32, got Half"));
}

}  // namespace normalise_test
}  // namespace kinora::data
