#include "kinora/data/bucket_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "kinora/data/loader.h"
#include "tests/data/sized_source.h"
#include "tests/error_of.h"

namespace kinora::data {
namespace bucket_order_test {

using ::testing::Each;
using ::testing::HasSubstr;

BucketOrderOptions order_options(const BucketOptions& table, int64_t batches = 1) {
  return {.table = table, .batches_per_step = batches, .seed = 3, .num_threads = 3};
}

TEST(BucketOrderTest, AnEpochWhoseBucketsComeOutEvenHoldsEachSampleOnce) {
  // 8 images and 6 clips for batches of 4 and 2, of 2 batches a step.
  const SizedSource source(repeat({{sized(40, 40), 8}, {sized(20, 20, 9), 16}, {sized(9, 9), 5}}));
  BucketOrder order(source, order_options(small_table(), 2));
  int64_t position = 0;
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> seen;
    for (int step = 0; step < 3; ++step) {
      const BucketStep drawn = order.next();
      EXPECT_EQ(drawn.first_position, position);
      EXPECT_EQ(drawn.indices.size(), 8U);
      position += 8;
      seen.insert(seen.end(), drawn.indices.begin(), drawn.indices.end());
      for (const int64_t index : drawn.indices) {
        EXPECT_EQ(order.table().largest(source.facts(index)), drawn.bucket);
      }
    }
    epochs.push_back(seen);
    std::sort(seen.begin(), seen.end());
    for (int64_t i = 0; i < 24; ++i) {  // those of 9 x 9 suit no bucket
      EXPECT_EQ(seen[static_cast<size_t>(i)], i);
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(BucketOrderTest, WhatWaitsAtTheEndOfAnEpochComesInTheNext) {
  const SizedSource source(repeat({{sized(40, 40), 5}, {sized(16, 16), 3}}));
  BucketOrder order(source, order_options(small_table()));
  std::map<int64_t, std::vector<int64_t>> counts;  // by bucket
  for (int step = 0; step < 200; ++step) {
    const BucketStep drawn = order.next();
    std::vector<int64_t>& of = counts[drawn.bucket];
    of.resize(8);
    for (const int64_t index : drawn.indices) {
      ++of[static_cast<size_t>(index)];
    }
    // Nobody is an epoch ahead or behind by more than one.
    const auto range = drawn.indices.front() < 5 ? std::pair{0, 5} : std::pair{5, 8};
    const auto [least, most] =
        std::minmax_element(of.begin() + range.first, of.begin() + range.second);
    ASSERT_LE(*most - *least, 1) << step;
  }
  EXPECT_EQ(counts.size(), 2U);
}

TEST(BucketOrderTest, SeekingIsDrawing) {
  std::vector<SampleFacts> sizes;
  for (int64_t i = 0; i < 83; ++i) {
    sizes.push_back(sized(14 + i % 37, 14 + i * 7 % 41, i % 3 == 0 ? 1 : 2 + i % 5));
  }
  const SizedSource source(sizes);
  const BucketOrderOptions options = order_options(small_table(0.5), 2);
  BucketOrder whole(source, options);
  BucketOrder jumping(source, options);
  for (int step = 0; step < 60; ++step) {
    const BucketStep expected = whole.next();
    if (step % 7 == 3) {
      ASSERT_TRUE(jumping.seek(step % 2 == 0 ? 0 : expected.first_position));
      ASSERT_TRUE(jumping.seek(expected.first_position));
    }
    const BucketStep drawn = jumping.next();
    ASSERT_EQ(drawn.bucket, expected.bucket) << step;
    ASSERT_EQ(drawn.indices, expected.indices) << step;
    ASSERT_EQ(drawn.first_position, expected.first_position) << step;
  }
  EXPECT_FALSE(jumping.seek(1));
}

TEST(BucketOrderTest, UnreadableHeadersAreLeftOutAndCounted) {
  SizedSource source(repeat({{sized(40, 40), 6}}));
  source.unreadable = {1, 4};
  BucketOrderOptions options = order_options(small_table());
  BucketOrder order(source, options);
  for (int step = 0; step < 20; ++step) {
    for (const int64_t index : order.next().indices) {
      EXPECT_FALSE(source.unreadable.contains(index));
    }
  }
  options.max_bad = 1;
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return BucketOrder(source, options); }),
              HasSubstr("at most 1 of 6 samples may be unreadable"));
}

TEST(BucketOrderTest, RefusesSetsThatNoBucketTakes) {
  const SizedSource tiny(repeat({{sized(8, 8), 3}, {sized(40, 40, 2), 2}}));
  const std::string none =
      error_of(ErrorKind::kConfig, [&] { return BucketOrder(tiny, order_options(small_table())); });
  EXPECT_THAT(none, HasSubstr("none of the 5 samples suits a bucket"));
  EXPECT_THAT(none, HasSubstr("smaller than every bucket: 3, the first number 0"));
  EXPECT_THAT(none, HasSubstr("fewer frames than every bucket: 2, the first number 3"));

  const SizedSource images(repeat({{sized(40, 40), 3}}));
  BucketOptions never{.rows = {{"32px", 1, {0.0, 4.0}}}};
  BucketOrder order(images, order_options(never));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return order.next(); }),
              HasSubstr("keep probabilities"));
}

// What the ranks draw in a number of steps: the samples' labels and positions in order, by step.
struct Steps {
  std::vector<std::vector<int64_t>> labels;
  std::vector<std::vector<int64_t>> positions;
  std::vector<std::vector<int64_t>> shapes;  // of images
  int64_t end = 0;                           // position behind them

  bool operator==(const Steps&) const = default;
};

Steps load(const Source& source, int64_t ranks, int64_t threads, int64_t steps,
           int64_t first_position = 0) {
  constexpr int64_t kBatches = 4;
  Steps result;
  result.labels.resize(static_cast<size_t>(steps));
  result.positions = result.labels;
  result.shapes = result.labels;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    LoaderOptions options;
    options.buckets = small_table(0.6);
    options.bucket_batches = kBatches;
    options.rank = rank;
    options.num_ranks = ranks;
    options.seed = 17;
    options.num_threads = threads;
    options.first_position = first_position;
    Loader loader(source, options);
    for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
      for (int64_t pass = 0; pass < kBatches / ranks; ++pass) {
        const Batch batch = loader.next();
        const std::vector<int64_t> shape = batch.images.sizes().vec();
        if (result.shapes[step].empty()) {
          result.shapes[step] = shape;
        }
        EXPECT_EQ(result.shapes[step], shape);  // all ranks, in all passes
        for (int64_t i = 0; i < batch.labels.size(0); ++i) {
          result.labels[step].push_back(batch.labels.const_data_ptr<int64_t>()[i]);
          result.positions[step].push_back(batch.sample_index.const_data_ptr<int64_t>()[i]);
          const auto* pixels =
              batch.images.const_data_ptr<uint8_t>() + i * (batch.images.numel() / shape[0]);
          EXPECT_EQ(pixels[0], result.labels[step].back() % 251);
        }
      }
      result.end = result.positions[step].back() + 1;
    }
  }
  return result;
}

TEST(BucketOrderTest, TheSameSamplesForAnyRanksThreadsAndAfterAResume) {
  std::vector<SampleFacts> sizes;
  for (int64_t i = 0; i < 120; ++i) {
    sizes.push_back(sized(20 + i % 37, 20 + i * 7 % 41, i % 3 == 0 ? 1 : 3 + i % 4));
  }
  const SizedSource source(sizes);
  constexpr int64_t kSteps = 24;
  const Steps one = load(source, 1, 1, kSteps);
  EXPECT_EQ(one, load(source, 1, 5, kSteps));
  EXPECT_EQ(one, load(source, 2, 3, kSteps));
  EXPECT_EQ(one, load(source, 4, 2, kSteps));
  std::set<std::vector<int64_t>> shapes(one.shapes.begin(), one.shapes.end());
  EXPECT_GT(shapes.size(), 3U);
  EXPECT_TRUE(
      std::any_of(shapes.begin(), shapes.end(), [](const auto& s) { return s.size() == 5; }));
  EXPECT_TRUE(
      std::any_of(shapes.begin(), shapes.end(), [](const auto& s) { return s.size() == 4; }));

  const Steps before = load(source, 2, 2, 9);
  const Steps after = load(source, 4, 2, kSteps - 9, before.end);
  EXPECT_TRUE(std::equal(after.labels.begin(), after.labels.end(), one.labels.begin() + 9));
  EXPECT_TRUE(
      std::equal(after.positions.begin(), after.positions.end(), one.positions.begin() + 9));
}

// A step of several buckets: by position of a batch's first sample, its labels and shape.
using MixedBatches = std::map<int64_t, std::pair<std::vector<int64_t>, std::vector<int64_t>>>;

// Of each step, those of all ranks; ranks that have the same must have the same samples.
std::vector<MixedBatches> load_mixed(const Source& source, int64_t ranks, int64_t steps,
                                     const std::function<bool(int64_t rank, size_t batch)>& is_own,
                                     int64_t first_position = 0) {
  std::vector<MixedBatches> result(static_cast<size_t>(steps));
  std::vector<int64_t> num_samples(static_cast<size_t>(steps));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    LoaderOptions options;
    options.buckets = small_table(0.6);
    options.bucket_batches = 5;  // no multiple of the ranks
    options.rank = rank;
    options.num_ranks = ranks;
    options.seed = 17;
    options.num_threads = 3;
    options.first_position = first_position;
    options.share_out = [&](const std::vector<Bucket>& step) {
      std::vector<OwnBatch> own;
      for (size_t i = 0; i < step.size(); ++i) {
        if (is_own(rank, i)) {
          own.push_back({.batch = i, .ranks = 1});
        }
      }
      return own;
    };
    Loader loader(source, options);
    for (size_t step = 0; step < result.size(); ++step) {
      const MixedStep planned = loader.next_step();
      EXPECT_EQ(planned.num_batches, 5);
      num_samples[step] = planned.num_samples;
      for (size_t i = 0; i < planned.own.size(); ++i) {
        const Batch batch = loader.next();
        const auto* labels = batch.labels.const_data_ptr<int64_t>();
        const std::pair drawn{std::vector(labels, labels + batch.labels.size(0)),
                              batch.images.sizes().vec()};
        const auto [known, is_new] =
            result[step].emplace(batch.sample_index[0].item<int64_t>(), drawn);
        EXPECT_TRUE(is_new || known->second == drawn);
      }
    }
  }
  for (size_t step = 0; step < result.size(); ++step) {
    int64_t sum = 0;
    for (const auto& [position, batch] : result[step]) {
      sum += std::ssize(batch.first);
    }
    EXPECT_EQ(sum, num_samples[step]);
  }
  return result;
}

TEST(BucketOrderTest, StepsOfSeveralBucketsAreTheSameHoweverTheyAreSharedOut) {
  std::vector<SampleFacts> sizes;
  for (int64_t i = 0; i < 120; ++i) {
    sizes.push_back(sized(20 + i % 37, 20 + i * 7 % 41, i % 3 == 0 ? 1 : 3 + i % 4));
  }
  const SizedSource source(sizes);
  constexpr int64_t kSteps = 12;
  const auto all = [](int64_t, size_t) { return true; };
  const std::vector<MixedBatches> one = load_mixed(source, 1, kSteps, all);
  EXPECT_EQ(one, load_mixed(source, 2, kSteps, all));
  // The third rank never has any.
  EXPECT_EQ(one, load_mixed(source, 3, kSteps, [](int64_t rank, size_t batch) {
              return rank == static_cast<int64_t>(batch % 2);
            }));
  const auto is_mixed = [](const MixedBatches& step) {
    std::set<std::vector<int64_t>> shapes;
    for (const auto& [position, batch] : step) {
      shapes.insert(batch.second);
    }
    return shapes.size() > 1;
  };
  EXPECT_TRUE(std::ranges::any_of(one, is_mixed));
  // After a resume behind the fourth step.
  const auto& [first, last] = *one[3].rbegin();
  const std::vector<MixedBatches> after =
      load_mixed(source, 2, kSteps - 4, all, first + std::ssize(last.first));
  EXPECT_TRUE(std::ranges::equal(after, std::vector(one.begin() + 4, one.end())));
}

TEST(BucketOrderTest, ABadSampleIsReplacedByOneOfItsBucket) {
  SizedSource source(repeat({{sized(40, 40), 9}, {sized(40, 40, 5), 9}}));
  source.bad = {2, 3, 11};
  const Steps drawn = load(source, 1, 2, 30);
  for (size_t step = 0; step < drawn.labels.size(); ++step) {
    for (const int64_t label : drawn.labels[step]) {
      EXPECT_FALSE(source.bad.contains(label));
      EXPECT_EQ(label >= 9, drawn.shapes[step].size() == 5) << label;
    }
  }
  EXPECT_EQ(drawn, load(source, 2, 4, 30));
}

TEST(BucketOrderTest, AReplacementHasTheRatioUnlessThereIsNone) {
  SizedSource source(repeat({{sized(40, 40), 1}, {sized(32, 64), 1}, {sized(40, 40), 1}}));
  const auto is_square = [](const std::vector<int64_t>& shape) {
    return shape[shape.size() - 1] == shape[shape.size() - 2];
  };
  source.bad = {0};
  const Steps drawn = load(source, 1, 1, 20);
  for (size_t step = 0; step < drawn.labels.size(); ++step) {
    EXPECT_THAT(drawn.labels[step], Each(is_square(drawn.shapes[step]) ? 2 : 1));
  }
  source.bad = {1};  // the only wide one: another is cropped
  const Steps cropped = load(source, 1, 1, 20);
  EXPECT_FALSE(std::ranges::all_of(cropped.shapes, is_square));
}

TEST(BucketOrderTest, BuffersAreMadeOnceForEachSize) {
  const SizedSource source(repeat({{sized(40, 40), 40}, {sized(20, 20), 40}}));
  LoaderOptions options;
  options.buckets = small_table();
  options.num_threads = 2;
  options.queue_depth = 2;
  Loader loader(source, options);
  for (int i = 0; i < 200; ++i) {
    (void)loader.next();
  }
  // Two sizes, each with at most those in the queue and one handed out, of three tensors.
  EXPECT_LE(loader.stats().num_buffers, 2 * 3 * 3);
}

TEST(BucketOrderTest, BatchesMustBeDividedAmongTheRanks) {
  const SizedSource source(repeat({{sized(40, 40), 40}}));
  LoaderOptions options;
  options.buckets = small_table();
  options.bucket_batches = 3;
  options.num_ranks = 2;
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         (void)Loader(source, options);
                         return 0;
                       }),
              HasSubstr("data.bucket_batches must be a multiple of the 2 ranks, got 3"));
}

}  // namespace bucket_order_test
}  // namespace kinora::data
