#include "kinora/ops/edges.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/replication_pad3d.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinora/ops/random.h"

namespace kinora::ops {
namespace edges_test {

at::Tensor normal(std::vector<int64_t> shape, int64_t number) {
  shape.insert(shape.begin(), 1);
  return random_normal(shape, at::arange(number, number + 1, at::kLong), 1, 0, RandomPurpose::kTest,
                       at::kCPU)
      .squeeze(0);
}

/// The gradient of sum(result * weights) by x.
at::Tensor gradient(const at::Tensor& x, const at::Tensor& result) {
  torch::autograd::backward({(result * normal(result.sizes().vec(), 7)).sum()}, {});
  return x.grad();
}

class EdgesTest : public testing::TestWithParam<at::MemoryFormat> {
 protected:
  at::Tensor input() {
    return normal({2, 3, 4, 5, 6}, 1).contiguous(GetParam()).requires_grad_(true);
  }
};

TEST_P(EdgesTest, RepeatsAsReplicationPaddingDoes) {
  const at::Tensor x = input();
  const at::Tensor y = input();
  const at::Tensor got = repeat_edges(x, {{2, 0}, {1, 3}, {0, 2}});
  const at::Tensor expected = at::replication_pad3d(y, {0, 2, 1, 3, 2, 0});
  EXPECT_TRUE(got.equal(expected));
  EXPECT_TRUE(got.is_contiguous(GetParam()));
  EXPECT_LT((gradient(x, got) - gradient(y, expected)).abs().max().item<double>(), 1e-5);
}

TEST_P(EdgesTest, PlacesRepeatAsNearestNeighboursDo) {
  for (const int64_t frames : {1, 2}) {
    const at::Tensor x = input();
    const at::Tensor y = input();
    const at::Tensor got = repeat_places(x, frames);
    const at::Tensor expected = at::upsample_nearest3d(y, {4 * frames, 10, 12});
    EXPECT_TRUE(got.equal(expected));
    EXPECT_LT((gradient(x, got) - gradient(y, expected)).abs().max().item<double>(), 1e-5);
  }
}

TEST_P(EdgesTest, PlacesRepeatWithEdgesAroundAWindow) {
  for (const int64_t frames : {1, 2, 3}) {
    const at::Tensor x = input();
    const at::Tensor y = input();
    const at::Tensor got = repeat_places_with_edges(x, frames, {{frames - 1, 0}, {1, 0}, {0, 1}},
                                                    {{2, 0}, {0, 1}, {1, 1}});
    const at::Tensor window = at::upsample_nearest3d(y, {4 * frames, 10, 12})
                                  .narrow(2, frames - 1, 3 * frames + 1)
                                  .narrow(3, 1, 9)
                                  .narrow(4, 0, 11);
    const at::Tensor expected = at::replication_pad3d(window, {1, 1, 0, 1, 2, 0});
    EXPECT_TRUE(got.equal(expected));
    EXPECT_LT((gradient(x, got) - gradient(y, expected)).abs().max().item<double>(), 1e-5);
  }
}

// Rows of larger clips, whose channels make whole vectors or do not; two dims of which are one.
TEST_P(EdgesTest, RowsAreJoinedAndPackedAsTheyAre) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t channels : {3, 8, 16}) {
      const at::Tensor x = normal({1, channels, 2, 7, 6}, 1).to(type).contiguous(GetParam());
      const at::Tensor y = normal({1, channels, 2, 1, 6}, 2).to(type).contiguous(GetParam());
      const std::vector<at::Tensor> parts = {x.narrow(3, 1, 2), y, x.narrow(3, 4, 3)};
      EXPECT_TRUE(cat_places(parts, -2).equal(at::cat(parts, -2)));
      EXPECT_TRUE(cat_places({x, x}, 2).equal(at::cat({x, x}, 2)));
      const at::Tensor packed = packed_places(parts[0]);
      EXPECT_TRUE(packed.equal(parts[0]));
      EXPECT_TRUE(packed.is_contiguous(at::MemoryFormat::ChannelsLast3d));
      if (GetParam() == at::MemoryFormat::ChannelsLast3d) {
        EXPECT_TRUE(cat_places(parts, 3).is_contiguous(GetParam()));
      }
    }
  }
  const at::Tensor x = normal({1, 8, 2, 7, 6}, 1).contiguous(GetParam()).requires_grad_(true);
  EXPECT_TRUE(cat_places({x.narrow(3, 0, 2), x}, 3).requires_grad());
}

INSTANTIATE_TEST_SUITE_P(Layouts, EdgesTest,
                         testing::Values(at::MemoryFormat::Contiguous,
                                         at::MemoryFormat::ChannelsLast3d));

TEST(EdgesImageTest, AnImageIsAClipOfOneFrame) {
  const at::Tensor x = normal({2, 3, 5, 6}, 1);
  EXPECT_TRUE(repeat_places(x).equal(repeat_places(x.unsqueeze(2)).squeeze(2)));
  EXPECT_TRUE(repeat_edges(x, {{1, 1}, {2, 0}})
                  .equal(repeat_edges(x.unsqueeze(2), {{0, 0}, {1, 1}, {2, 0}}).squeeze(2)));
}

}  // namespace edges_test
}  // namespace kinora::ops
