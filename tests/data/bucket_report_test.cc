#include "kinora/data/bucket_report.h"

#include <gmock/gmock.h>

#include <sstream>
#include <string_view>

#include "tests/data/sized_source.h"

namespace kinora::data {
namespace bucket_report_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// 11 images for the large square, 5 clips for the small one; the others suit no bucket.
std::vector<SampleFacts> few_samples() {
  return repeat({{sized(40, 40), 11},
                 {sized(20, 20, 9), 5},
                 {sized(9, 9), 3},
                 {sized(40, 40, 2), 2},
                 {sized(40, 40), 1}});
}

BucketReport report_of(const Source& source, const BucketOptions& table, int64_t batches) {
  return report_on_buckets(source, {.table = table, .batches_per_step = batches, .seed = 3});
}

const BucketUse& use_of(const BucketReport& report, std::string_view resolution, int64_t frames,
                        double ratio) {
  for (const BucketUse& use : report.buckets) {
    if (use.bucket.resolution == resolution && use.bucket.frames == frames &&
        use.bucket.ratio == ratio) {
      return use;
    }
  }
  throw Error(ErrorKind::kInternal, "[test] no such bucket");
}

TEST(BucketReportTest, CountsByHand) {
  SizedSource source(few_samples());
  source.unreadable = {21};
  const BucketReport report = report_of(source, small_table(), 2);
  EXPECT_EQ(report.num_samples, 22);
  EXPECT_EQ(report.num_taken(), 16);
  EXPECT_EQ(report.num_not_kept, 0);
  const BucketUse& images = use_of(report, "32px", 1, 1.0);  // 8 a step
  EXPECT_EQ(images.num_samples, 11);
  EXPECT_EQ(images.steps(), 1);
  EXPECT_EQ(images.num_waiting(), 3);
  EXPECT_FALSE(images.is_short());
  const BucketUse& clips = use_of(report, "16px", 4, 1.0);  // 8 a step
  EXPECT_EQ(clips.num_samples, 5);
  EXPECT_EQ(clips.steps(), 0);
  EXPECT_EQ(clips.num_waiting(), 5);
  EXPECT_TRUE(clips.is_short());
  int64_t num_empty = 0;
  for (const BucketUse& use : report.buckets) {
    num_empty += use.num_samples == 0 ? 1 : 0;
    EXPECT_FALSE(use.num_samples == 0 && use.is_short());
  }
  const size_t num_ratios = heights_over_widths(AspectRatios::kOpenSora2).size();
  EXPECT_EQ(report.buckets.size(), 4 * num_ratios);
  EXPECT_EQ(num_empty, std::ssize(report.buckets) - 2);

  ASSERT_EQ(report.left_out.size(), 3U);
  EXPECT_EQ(report.left_out[0].cause, "fewer frames than every bucket");
  EXPECT_EQ(report.left_out[0].count, 2);
  EXPECT_EQ(report.left_out[0].first, "number 19");
  EXPECT_EQ(report.left_out[1].cause, "smaller than every bucket");
  EXPECT_EQ(report.left_out[1].count, 3);
  EXPECT_EQ(report.left_out[1].first, "number 16");
  EXPECT_EQ(report.left_out[2].cause, "unreadable");
  EXPECT_EQ(report.left_out[2].count, 1);
}

TEST(BucketReportTest, OtherBatchSizes) {
  const SizedSource source(few_samples());
  // 12 images of 4 and 5 clips of 4 at once, twice a step.
  const std::vector<ScaledBatches> scaled = report_of(source, small_table(), 2).scaled();
  ASSERT_EQ(scaled.size(), 5U);
  const auto expect = [&](size_t i, double factor, int64_t steps, int64_t waiting, int64_t few) {
    EXPECT_EQ(scaled[i].factor, factor);
    EXPECT_EQ(scaled[i].steps, steps) << factor;
    EXPECT_EQ(scaled[i].num_waiting, waiting) << factor;
    EXPECT_EQ(scaled[i].num_short_buckets, few) << factor;
  };
  expect(0, 0.25, 6 + 2, 0 + 1, 0);
  expect(1, 0.5, 3 + 1, 0 + 1, 0);
  expect(2, 1.0, 1 + 0, 4 + 5, 1);
  expect(3, 2.0, 0, 12 + 5, 2);
  expect(4, 4.0, 0, 12 + 5, 2);
}

TEST(BucketReportTest, ABatchIsNeverLessThanOne) {
  const SizedSource source(repeat({{sized(40, 40), 7}}));
  const BucketOptions table{.rows = {{"32px", 1, {1.0, 2.0}}}};
  const std::vector<ScaledBatches> scaled = report_of(source, table, 1).scaled();
  EXPECT_EQ(scaled[0].steps, 7);
  EXPECT_EQ(scaled[1].steps, 7);
  EXPECT_EQ(scaled[2].steps, 3);
}

TEST(BucketReportTest, IsWhatAnEpochHandsOut) {
  std::vector<SampleFacts> sizes;
  for (int64_t i = 0; i < 4000; ++i) {
    sizes.push_back(sized(9 + i % 41, 9 + i * 7 % 43, i % 3 == 0 ? 1 : 2 + i % 5));
  }
  const SizedSource source(sizes);
  BucketOptions table = small_table(0.5);
  for (ConfigTableRow& row : table.rows) {
    row.numbers.front() = 0.6;  // the small rows leave some out too
  }
  const BucketReport report = report_of(source, table, 2);
  EXPECT_GT(report.num_not_kept, 0);

  BucketOrder order(source, {.table = table, .batches_per_step = 2, .seed = 3});
  std::vector<int64_t> steps(report.buckets.size());
  int64_t num_steps = 0;
  for (const BucketUse& use : report.buckets) {
    num_steps += use.steps();
  }
  EXPECT_GT(num_steps, 10);
  std::set<int64_t> seen;
  for (int64_t step = 0; step < num_steps; ++step) {
    const BucketStep drawn = order.next();
    ++steps[static_cast<size_t>(drawn.bucket)];
    for (const int64_t index : drawn.indices) {
      EXPECT_TRUE(seen.insert(index).second) << index;  // still the first epoch
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i], report.buckets[i].steps()) << report.buckets[i].bucket.text();
  }
  EXPECT_NE(order.counts(0), order.counts(1));  // chance decides anew
}

TEST(BucketReportTest, AsText) {
  SizedSource source(few_samples());
  source.unreadable = {21};
  std::ostringstream out;
  print(out, report_of(source, small_table(), 2));
  EXPECT_THAT(
      out.str(),
      AllOf(HasSubstr("first epoch of train.seed 3, 2 batches of one bucket a step"),
            HasSubstr("    32px             1   1.00          32 x 32       4         11        1  "
                      "      3\n"),
            HasSubstr("    16px             4   1.00          16 x 16       4          5        0  "
                      "      5  no step in this epoch\n"),
            HasSubstr("samples in a bucket: 16 of 22"),
            HasSubstr("smaller than every bucket: 3, the first number 16"),
            HasSubstr("empty buckets: 58 of 60"), HasSubstr("32px, 4 frames: all ratios"),
            HasSubstr("32px, 1 frame: ratios 0.42"), HasSubstr("x 1: 1, 8, 1  <- as configured"),
            Not(HasSubstr("keep probabilities"))));
}

}  // namespace bucket_report_test
}  // namespace kinora::data
