#include "kinora/pipelines/decode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kinora::pipelines {
namespace decode_test {

/// Whose pixels are its latents. It has no memory for the whole.
class Short : public models::Autoencoder {
 public:
  explicit Short(models::LatentSpace space, bool fits_in_pieces)
      : Autoencoder(std::move(space)), fits_in_pieces_(fits_in_pieces) {}
  models::LatentMoments encode(const at::Tensor& pixels) override { return {pixels, {}}; }
  at::Tensor decode(const at::Tensor& latents) override {
    budgets.push_back(limits().bytes);
    const bool fits = limits().bytes > 0 && fits_in_pieces_;
    TORCH_CHECK_WITH(OutOfMemoryError, fits, "CUDA out of memory");
    return latents * 2.0;
  }

  std::vector<int64_t> budgets;  // of each call

 private:
  bool fits_in_pieces_;
};

const at::Tensor& latents() {
  static const at::Tensor all = at::arange(6 * 4, at::kFloat).view({6, 1, 2, 2});
  return all;
}

TEST(DecodeLatentsTest, WhatIsTooLargeIsDecodedWithinWhatIsFree) {
  Short autoencoder({.channels = 1}, true);
  const at::Tensor pixels = decode_latents(autoencoder, latents(), at::kCPU);
  EXPECT_TRUE(pixels.equal(latents() * 2.0));
  ASSERT_EQ(autoencoder.budgets.size(), 3U);  // four, four again, two
  EXPECT_EQ(autoencoder.budgets[0], 0);
  EXPECT_GT(autoencoder.budgets[1], 0);
  EXPECT_EQ(autoencoder.budgets[2], autoencoder.budgets[1]) << "tried once";
}

TEST(DecodeLatentsTest, ABudgetThatWasGivenIsKept) {
  Short autoencoder({.channels = 1}, false);
  autoencoder.set_memory_budget(1 << 20);
  EXPECT_THROW((void)decode_latents(autoencoder, latents(), at::kCPU), c10::OutOfMemoryError);
  EXPECT_EQ(autoencoder.budgets, std::vector<int64_t>{1 << 20});
  autoencoder.set_memory_budget(0);
  EXPECT_THROW((void)decode_latents(autoencoder, latents(), at::kCPU), c10::OutOfMemoryError);
  EXPECT_EQ(autoencoder.budgets.size(), 3U) << "not again and again";
}

}  // namespace decode_test
}  // namespace kinora::pipelines
