#include "kinora/ops/vectors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

namespace kinora::ops {
namespace vectors_test {

TEST(VectorsTest, PartsOfTokensAreCopied) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const int64_t width : {16, 32, 12, 7}) {  // the last two are not made of vectors
      const at::Tensor all = (10.0 * at::randn({3, 9, width})).to(type);
      const at::Tensor copy = at::zeros({3, 4, width}, all.options());
      copy_in_vectors(all.narrow(1, 5, 4), copy);
      EXPECT_TRUE(at::equal(copy, all.narrow(1, 5, 4))) << type << " " << width;
      const at::Tensor back = at::zeros_like(all);
      copy_in_vectors(copy, back.narrow(1, 5, 4));
      EXPECT_TRUE(at::equal(back.narrow(1, 5, 4), copy));
      EXPECT_TRUE(at::equal(back.narrow(1, 0, 5), at::zeros({3, 5, width}, all.options())));
    }
  }
}

TEST(VectorsTest, OnlyWhatIsMadeOfThemIsSeenSo) {
  const at::Tensor x = at::randn({3, 9, 16});
  EXPECT_EQ(in_vectors(x).value().sizes(), (at::IntArrayRef{3, 9, 4}));
  EXPECT_FALSE(in_vectors(x.narrow(2, 1, 8)));  // begins within one
  EXPECT_FALSE(in_vectors(x.narrow(2, 0, 6)));
  EXPECT_FALSE(in_vectors(x.transpose(1, 2)));
  EXPECT_FALSE(in_vectors(at::randn({3, 9, 17}).narrow(2, 0, 16)));  // rows do
  EXPECT_FALSE(in_vectors(at::randn({4}).requires_grad_()));
}

}  // namespace vectors_test
}  // namespace kinora::ops
