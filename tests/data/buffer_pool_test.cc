#include "kinora/data/buffer_pool.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace kinora::data {
namespace buffer_pool_test {

TEST(BufferPoolTest, UsesMemoryAgainOnceNobodyLooksIntoIt) {
  BufferPool pool({2, 3, 4, 6}, at::kByte, false);
  at::Tensor first = pool.take();
  EXPECT_EQ(first.sizes(), at::IntArrayRef({2, 3, 4, 6}));
  EXPECT_EQ(first.scalar_type(), at::kByte);
  const void* address = first.const_data_ptr();
  at::Tensor view = first.narrow(0, 0, 1);
  first.reset();
  at::Tensor second = pool.take();
  EXPECT_NE(second.const_data_ptr(), address);  // the view still looks into the first
  EXPECT_EQ(pool.num_allocated(), 2);
  view.reset();
  EXPECT_EQ(pool.take().const_data_ptr(), address);
  EXPECT_EQ(pool.num_allocated(), 2);
}

TEST(BufferPoolTest, BuffersOutliveThePool) {
  auto pool = std::make_unique<BufferPool>(std::vector<int64_t>{1, 3, 4, 4}, at::kByte, false);
  at::Tensor images = pool->take();
  pool.reset();
  images.fill_(3);
  EXPECT_EQ(images.const_data_ptr<uint8_t>()[47], 3);
}

TEST(BufferPoolTest, HoldsFloats) {
  BufferPool pool({2, 4, 3, 5}, at::kFloat, false);
  const at::Tensor latents = pool.take();
  EXPECT_EQ(latents.sizes(), at::IntArrayRef({2, 4, 3, 5}));
  EXPECT_EQ(latents.scalar_type(), at::kFloat);
}

}  // namespace buffer_pool_test
}  // namespace kinora::data
