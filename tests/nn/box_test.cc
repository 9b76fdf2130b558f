#include "kinora/nn/box.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <vector>

namespace kinora::nn {
namespace box_test {

const std::vector<Box> kBoxes = {
    {.whole = {12, 5}, .dim = 0, .stretches = {12}, .count = 3},
    {.whole = {12, 5}, .dim = 0, .stretches = {4, 6, 2}, .count = 2},  // as qkv, and unequal
    {.whole = {5, 12}, .dim = 1, .stretches = {4, 8}, .count = 4},
    {.whole = {3, 8, 2, 3}, .dim = 1, .stretches = {8}, .count = 2},
    {.whole = {8}, .dim = 0, .stretches = {4, 4}, .count = 4},
};

TEST(BoxTest, RunsAreThoseOfTheCutTensors) {
  for (Box box : kBoxes) {
    SCOPED_TRACE(box.whole.size());
    int64_t numel = 1;
    for (const int64_t size : box.whole) {
      numel *= size;
    }
    const at::Tensor whole = at::arange(numel).view(box.whole);  // each element is its place
    for (box.index = 0; box.index < box.count; ++box.index) {
      const at::Tensor own = box.cut(whole).flatten();
      const auto* places = own.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < own.numel(); ++i) {
        const BoxRun run = box.run_of_own(i);
        EXPECT_EQ(run.index, box.index);
        EXPECT_EQ(run.own, i);
        ASSERT_GT(run.size, 0);
        ASSERT_LE(i + run.size, own.numel());
        for (int64_t k = 0; k < run.size; ++k) {
          EXPECT_EQ(places[i + k], run.whole + k);
        }
        const BoxRun back = box.run_of_whole(run.whole);
        EXPECT_EQ(back.index, box.index);
        EXPECT_EQ(back.whole, run.whole);
        EXPECT_EQ(back.own, i);
        EXPECT_EQ(back.size, run.size);
      }
    }
  }
}

TEST(BoxTest, TheWholeOfAllParts) {
  for (Box box : kBoxes) {
    int64_t numel = 1;
    for (const int64_t size : box.whole) {
      numel *= size;
    }
    const at::Tensor whole = at::arange(numel).view(box.whole);
    std::vector<at::Tensor> parts;
    for (box.index = 0; box.index < box.count; ++box.index) {
      parts.push_back(box.cut(whole));
      EXPECT_EQ(parts.back().sizes(), box.shape());
    }
    EXPECT_TRUE(box.join(parts).equal(whole));
  }
}

}  // namespace box_test
}  // namespace kinora::nn
