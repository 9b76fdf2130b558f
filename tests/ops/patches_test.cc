#include "kinora/ops/patches.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace patches_test {

TEST(PatchesTest, ALinearOfPatchesIsAConvolution) {
  const at::Tensor image = normal({2, 3, 6, 4}, 1);
  const at::Tensor weight = normal({5, 3, 2, 2}, 2);
  const at::Tensor tokens = patchify(image, 2, at::kFloat);
  EXPECT_EQ(tokens.sizes(), at::IntArrayRef({2, 6, 12}));
  const at::Tensor convolved = at::conv2d(image, weight, {}, at::IntArrayRef({2, 2}));
  EXPECT_LT(
      relative_error(at::linear(tokens, weight.flatten(1)), convolved.flatten(2).transpose(1, 2)),
      1e-6);
  EXPECT_EQ(patchify(image, 2, at::kBFloat16).scalar_type(), at::kBFloat16);
}

TEST(PatchesTest, UnpatchifyPutsTheChannelsLastElementsIntoPlace) {
  const at::Tensor tokens = normal({2, 6, 12}, 1);
  const at::Tensor image = unpatchify(tokens, 6, 4, 2);
  EXPECT_EQ(image.sizes(), at::IntArrayRef({2, 3, 6, 4}));
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t column = 0; column < 4; ++column) {
      const at::Tensor token = tokens.select(1, row / 2 * 2 + column / 2);
      const int64_t first = (row % 2 * 2 + column % 2) * 3;
      EXPECT_TRUE(at::equal(image.select(2, row).select(2, column), token.narrow(1, first, 3)));
    }
  }
  EXPECT_EQ(unpatchify(tokens.to(at::kHalf), 6, 4, 2).scalar_type(), at::kFloat);
}

TEST(PatchesTest, RefusesOtherShapes) {
  EXPECT_THROW(static_cast<void>(patchify(normal({1, 3, 6, 5}, 1), 2, at::kFloat)), Error);
  EXPECT_THROW(static_cast<void>(unpatchify(normal({1, 5, 12}, 1), 6, 4, 2)), Error);
  EXPECT_THROW(static_cast<void>(unpatchify(normal({1, 6, 13}, 1), 6, 4, 2)), Error);
}

}  // namespace patches_test
}  // namespace kinora::ops
