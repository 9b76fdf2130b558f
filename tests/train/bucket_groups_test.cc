#include "kinora/parallel/bucket_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace kinora::parallel {
namespace bucket_groups_test {

using ops::BucketMoment;
using testing::ElementsAre;
using Calls = std::vector<std::pair<BucketMoment, int64_t>>;

/// An island, three slabs and ten blocks of 1 MiB each, another island.
class BucketGroupsTest : public testing::Test {
 protected:
  BucketGroupsTest() {
    add("embedders", "");
    for (int i = 0; i < 3; ++i) {
      add("slab." + std::to_string(i), "slabs");
    }
    for (int i = 0; i < 10; ++i) {
      add("block." + std::to_string(i), "blocks");
    }
    add("final", "");
  }

  [[nodiscard]] BucketGroups group(int64_t min_mib) {
    std::vector<nn::NamedParameter> named;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      named.push_back({buckets_[i].parameters.front(), &parameters_[i]});
    }
    return group_buckets(buckets_, named, min_mib << 20);
  }

  void freeze(size_t bucket) { parameters_[bucket].frozen = true; }

  static std::vector<std::string> names(const BucketGroups& groups) {
    std::vector<std::string> result;
    for (const nn::BucketSpec& bucket : groups.buckets) {
      result.push_back(bucket.name);
    }
    return result;
  }

 private:
  void add(const std::string& name, const std::string& ring) {
    buckets_.push_back({.name = name,
                        .parameters = {name + ".weight"},
                        .fp32_island = ring.empty(),
                        .ring = ring});
    parameters_.push_back({.shape = {512, 512}, .init = nn::Init::zero(), .value = {}, .grad = {}});
  }

  std::vector<nn::BucketSpec> buckets_;
  std::vector<nn::Parameter> parameters_;
};

TEST_F(BucketGroupsTest, NothingAskedForLeavesAllAsTheyAre) {
  const BucketGroups groups = group(0);
  EXPECT_EQ(groups.buckets.size(), 15U);
  for (size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(groups.group_of[i], i);
  }
}

TEST_F(BucketGroupsTest, NeighboursOfARingAreDividedEqually) {
  const BucketGroups groups = group(2);
  EXPECT_THAT(names(groups),
              ElementsAre("embedders", "slab.0", "slab.1", "slab.2", "block.0 to block.1",
                          "block.2 to block.3", "block.4 to block.5", "block.6 to block.7",
                          "block.8 to block.9", "final"));
  EXPECT_THAT(groups.buckets[5].parameters, ElementsAre("block.2.weight", "block.3.weight"));
  EXPECT_EQ(groups.buckets[5].ring, "blocks");
  EXPECT_THAT(groups.group_of, ElementsAre(0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9));
}

TEST_F(BucketGroupsTest, FrozenGroupsHaveNoPlaceAndHearNothing) {
  for (const size_t bucket : {0, 2, 4, 5}) {
    freeze(bucket);
  }
  const BucketGroups groups = group(0);
  EXPECT_EQ(groups.buckets.size(), 15U) << "the arena is told of all";
  using std::nullopt;
  EXPECT_THAT(groups.group_of,
              ElementsAre(nullopt, 0, nullopt, 1, nullopt, nullopt, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  std::vector<int64_t> heard;
  const auto hook = groups.translate(
      [&heard](ops::BucketMoment /*moment*/, int64_t bucket) { heard.push_back(bucket); });
  for (int64_t bucket = 0; bucket < 8; ++bucket) {
    hook(ops::BucketMoment::kBeforeForward, bucket);
  }
  EXPECT_THAT(heard, ElementsAre(0, 1, 2, 3));
}

TEST_F(BucketGroupsTest, EnoughStayToOverlap) {
  EXPECT_THAT(names(group(1000)), ElementsAre("embedders", "slab.0", "slab.1", "slab.2",
                                              "block.0 to block.2", "block.3 to block.4",
                                              "block.5 to block.7", "block.8 to block.9", "final"));
}

TEST_F(BucketGroupsTest, AGroupIsUsedFromItsFirstBucketToItsLast) {
  const BucketGroups groups = group(2);
  Calls calls;
  const ops::BucketHook hook = groups.translate(
      [&](BucketMoment moment, int64_t bucket) { calls.emplace_back(moment, bucket); });
  for (int pass = 0; pass < 2; ++pass) {
    calls.clear();
    for (const int64_t block : {4, 5, 6, 7}) {
      hook(BucketMoment::kBeforeForward, block);
      hook(BucketMoment::kAfterForward, block);
    }
    for (const int64_t block : {7, 6, 5, 4}) {
      hook(BucketMoment::kBeforeBackward, block);
      hook(BucketMoment::kAfterBackward, block);
    }
    hook(BucketMoment::kAfterBackward, 3);  // a bucket that stayed, of which nothing else is told
    EXPECT_EQ(calls, (Calls{{BucketMoment::kBeforeForward, 4},
                            {BucketMoment::kAfterForward, 4},
                            {BucketMoment::kBeforeForward, 5},
                            {BucketMoment::kAfterForward, 5},
                            {BucketMoment::kBeforeBackward, 5},
                            {BucketMoment::kAfterBackward, 5},
                            {BucketMoment::kBeforeBackward, 4},
                            {BucketMoment::kAfterBackward, 4},
                            {BucketMoment::kAfterBackward, 3}}));
  }
}

TEST(BucketMibTest, LatencyIsATenthOrLess) {
  using comm::Operation;
  // 20 us and 350 GB/s: 9 * 7e6 bytes are sent, 3 / 4 of the bucket: 80.1 MiB.
  const comm::Link nvlink{2e-5, 3.5e11};
  const int64_t mib = choose_bucket_mib(nvlink, Operation::kReduceScatter, 4);
  EXPECT_EQ(mib, 128);
  const double sent = comm::ring_bytes(Operation::kReduceScatter, 4, 128.0 * (1 << 20));
  EXPECT_LE(nvlink.latency, 0.1 * nvlink.seconds(sent));
  EXPECT_GT(nvlink.latency, 0.1 * nvlink.seconds(sent / 2.0));
  // An all-reduce sends twice as much of the same bucket.
  EXPECT_EQ(choose_bucket_mib(nvlink, Operation::kAllReduce, 4), 64);
  EXPECT_EQ(choose_bucket_mib({0.0, 1e11}, Operation::kReduceScatter, 4), 1);
  EXPECT_EQ(choose_bucket_mib({1.0, 1e11}, Operation::kReduceScatter, 4), 256);
  // Larger messages took no longer.
  EXPECT_EQ(choose_bucket_mib({1e-5, std::numeric_limits<double>::infinity()},
                              Operation::kReduceScatter, 4),
            256);
  EXPECT_EQ(choose_bucket_mib({}, Operation::kReduceScatter, 4), 1);
}

}  // namespace bucket_groups_test
}  // namespace kinora::parallel
