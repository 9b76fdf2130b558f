#include "kinora/train/bench/bucket_search.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "kinora/core/error.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace bucket_search_test {

using ::testing::HasSubstr;

constexpr int64_t kBytesAPixel = 1000;

// A step takes a microsecond and a kilobyte for each pixel of its samples.
class BucketSearchTest : public ::testing::Test {
 protected:
  [[nodiscard]] BucketSearchResult search(const BucketSearchOptions& options) {
    return search_buckets(buckets_, options, [&](const data::Bucket& bucket, int64_t batch) {
      ++num_measured_;
      sizes_[bucket.resolution + ":" + std::to_string(bucket.frames)] =
          bucket.height * bucket.width;
      const int64_t pixels = batch * bucket.frames * bucket.height * bucket.width;
      return std::optional(StepCost{.seconds = 1e-6 * static_cast<double>(pixels),
                                    .peak_memory = kBytesAPixel * pixels});
    });
  }

  static std::vector<int64_t> batches(const BucketSearchResult& result) {
    std::vector<int64_t> all;
    for (const FoundRow& row : result.rows) {
      all.push_back(row.found.batch);
    }
    return all;
  }

  // 16 * 16 = 256, 4 * 256 and 64 * 64 = 4096 pixels a sample, not in the order of search.
  data::BucketOptions buckets_{
      .rows = {{"16px", 1, {0.5, 12.0}}, {"64px", 1, {1.0, 2.0}}, {"16px", 4, {0.8, 0.3, 2.0}}},
      .ratios = data::AspectRatios::kSquare};
  int64_t num_measured_ = 0;
  std::map<std::string, int64_t> sizes_;
};

TEST_F(BucketSearchTest, AllStepsAreAsLongAsTheFirstRows) {
  const BucketSearchResult result = search({});
  EXPECT_DOUBLE_EQ(result.step_seconds, 12 * 256e-6);
  EXPECT_EQ(batches(result), (std::vector<int64_t>{12, 1, 3}));
  EXPECT_EQ(result.num_measured(), num_measured_);
}

TEST_F(BucketSearchTest, OrAsTheBase) {
  const BucketSearchResult result = search({.base = "64px:1"});
  EXPECT_DOUBLE_EQ(result.step_seconds, 2 * 4096e-6);
  EXPECT_EQ(result.rows[1].found.batch, 2);
  EXPECT_EQ(result.rows[1].found.num_measured, 1);
  EXPECT_EQ(result.rows[2].found.batch, 8);
  EXPECT_NEAR(static_cast<double>(result.rows[0].found.batch), 32.0, 2.0);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return search({.base = "64px:4"}); }),
              HasSubstr("(16px:1, 64px:1, 16px:4), got 64px:4"));
}

TEST_F(BucketSearchTest, OrAsLongAsAsked) {
  const BucketSearchResult result = search({.step_seconds = 5 * 4096e-6});
  EXPECT_EQ(result.rows[1].found.batch, 5);
  EXPECT_EQ(result.rows[2].found.batch, 20);
}

TEST_F(BucketSearchTest, TheLargestThatFit) {
  const BucketSearchResult result = search({.largest = true, .memory = kBytesAPixel * 7 * 1024});
  EXPECT_EQ(batches(result), (std::vector<int64_t>{28, 1, 7}));
  EXPECT_EQ(result.step_seconds, 0.0);
}

TEST_F(BucketSearchTest, MemoryBoundsTimeToo) {
  const BucketSearchResult result = search({.step_seconds = 1.0, .memory = kBytesAPixel * 8192});
  EXPECT_EQ(result.rows[1].found.batch, 2);
  EXPECT_EQ(result.rows[2].found.batch, 8);
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return search({.memory = kBytesAPixel * 11 * 256}); }),
      HasSubstr("16px, 1 frame, 16 x 16, must fit the memory"));
}

TEST_F(BucketSearchTest, RowsThatDoNotFitAreLeftOut) {
  const BucketSearchResult result = search({.largest = true, .memory = kBytesAPixel * 2048});
  EXPECT_EQ(batches(result), (std::vector<int64_t>{8, 0, 2}));
  const ConfigTable found = with_found(buckets_.rows, result);
  EXPECT_EQ(found, (ConfigTable{{"16px", 1, {0.5, 8.0}}, {"16px", 4, {0.8, 0.3, 2.0}}}));
}

TEST_F(BucketSearchTest, ARowIsMeasuredAtItsLargestRatio) {
  buckets_.ratios = data::AspectRatios::kOpenSora2;
  buckets_.multiple = 8;
  (void)search({});
  const data::BucketTable table(buckets_);
  for (const data::Bucket& bucket : table.buckets()) {
    EXPECT_LE(bucket.height * bucket.width,
              sizes_.at(bucket.resolution + ":" + std::to_string(bucket.frames)));
  }
}

}  // namespace bucket_search_test
}  // namespace kinora::train
