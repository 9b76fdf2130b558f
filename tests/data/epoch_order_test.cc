#include "kinora/data/epoch_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace epoch_order_test {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> epoch(EpochOrder& order, int64_t count, int64_t number) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(order.at(number * count + i));
  }
  return indices;
}

// From an independent Philox4x32-10 and shuffle in Python, which reproduces Random123's known
// answers. The order is part of what a resumed run relies on: it must never change.
TEST(EpochOrderTest, IsTheDocumentedShuffle) {
  EpochOrder order(10, 7);
  EXPECT_THAT(epoch(order, 10, 0), ElementsAre(0, 9, 2, 5, 7, 1, 4, 8, 3, 6));
  EXPECT_THAT(epoch(order, 10, 1), ElementsAre(1, 0, 8, 7, 3, 2, 9, 6, 5, 4));
}

TEST(EpochOrderTest, EveryEpochHoldsEverySampleOnce) {
  for (const int64_t count : {1, 2, 3, 17, 1000}) {
    EpochOrder order(count, 3);
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t number = 0; number < 3; ++number) {
      std::vector<int64_t> indices = epoch(order, count, number);
      std::sort(indices.begin(), indices.end());
      EXPECT_EQ(indices, all) << count;
    }
  }
}

TEST(EpochOrderTest, CanBeAskedAnywhere) {
  EpochOrder forward(97, 5);
  std::vector<int64_t> indices;
  for (int64_t position = 0; position < 400; ++position) {
    indices.push_back(forward.at(position));
  }
  EpochOrder backward(97, 5);
  for (int64_t position = 399; position >= 0; --position) {
    EXPECT_EQ(backward.at(position), indices[static_cast<size_t>(position)]);
  }
}

TEST(EpochOrderTest, SeedsAndEpochsDiffer) {
  EpochOrder a(100, 1);
  EpochOrder b(100, 2);
  EXPECT_NE(epoch(a, 100, 0), epoch(b, 100, 0));
  EXPECT_NE(epoch(a, 100, 0), epoch(a, 100, 1));
}

TEST(EpochOrderTest, PutsASampleAnywhereWithEqualChance) {
  constexpr int64_t kCount = 16;
  constexpr int64_t kEpochs = 4096;
  EpochOrder order(kCount, 11);
  std::vector<int64_t> times(kCount);
  for (int64_t number = 0; number < kEpochs; ++number) {
    const std::vector<int64_t> indices = epoch(order, kCount, number);
    const auto place = std::find(indices.begin(), indices.end(), 5) - indices.begin();
    ++times[static_cast<size_t>(place)];
  }
  double chi_squared = 0.0;
  for (const int64_t observed : times) {
    const double expected = static_cast<double>(kEpochs) / kCount;
    const double difference = static_cast<double>(observed) - expected;
    chi_squared += difference * difference / expected;
  }
  EXPECT_LT(chi_squared, 37.7);  // 15 degrees of freedom, 0.1 %
}

TEST(EpochOrderTest, ReplacementsGoThroughTheEpoch) {
  EpochOrder order(10, 7);
  EXPECT_EQ(order.replacement(18, 1), order.at(19));
  EXPECT_EQ(order.replacement(18, 2), order.at(10));  // from its end to its start
}

TEST(EpochOrderTest, RefusesAnEmptySet) {
  EXPECT_THAT(error_of([] { EpochOrder(0, 1); }), HasSubstr("got 0"));
}

TEST(SplitTest, PartsAreDisjointAndWhole) {
  const Split parts = split(100, 30, 9);
  EXPECT_EQ(parts.validation.size(), 30U);
  EXPECT_EQ(parts.train.size(), 70U);
  std::vector<int64_t> all = parts.train;
  all.insert(all.end(), parts.validation.begin(), parts.validation.end());
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
  EXPECT_EQ(split(100, 30, 9).validation, parts.validation);
  EXPECT_NE(split(100, 30, 10).validation, parts.validation);
  // From the Python implementation above: the shuffle 4 2 3 9 ... of stream step 1.
  EXPECT_THAT(split(10, 4, 7).validation, ElementsAre(2, 3, 4, 9));
}

TEST(SplitTest, LeavesSomethingToTrainOn) {
  EXPECT_EQ(split(10, 8, 1).train.size(), 2U);
  EXPECT_THAT(error_of([] { (void)split(10, 9, 1); }), HasSubstr("got 9 of 10"));
  EXPECT_THAT(error_of([] { (void)split(10, -1, 1); }), HasSubstr("got -1"));
}

}  // namespace epoch_order_test
}  // namespace kinora::data
