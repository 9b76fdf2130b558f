#include "kinora/data/bucket.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/error_of.h"

namespace kinora::data {
namespace bucket_test {

using ::testing::HasSubstr;

BucketOptions options(ConfigTable rows) {
  return {.rows = std::move(rows)};
}

SampleFacts clip(int64_t height, int64_t width, int64_t frames) {
  return {.height = height, .width = width, .num_frames = frames};
}

const Bucket& found(const BucketTable& table, const SampleFacts& sample) {
  const auto number = table.largest(sample);
  EXPECT_TRUE(number.has_value()) << table.misfit(sample);
  return table.buckets().at(static_cast<size_t>(number.value_or(0)));
}

TEST(BucketTest, ResolutionsHaveThePixelsThatOpenSoraGivesThem) {
  // The areas in Open-Sora 1.0's and 2.0's tables of aspect ratios.
  for (const auto& [name, pixels] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"256", 65536},
                                                              {"240p", 102240},
                                                              {"360p", 230400},
                                                              {"512", 262144},
                                                              {"480p", 409920},
                                                              {"720p", 921600},
                                                              {"1024", 1048576},
                                                              {"1080p", 2073600},
                                                              {"144p", 36864},
                                                              {"768px", 589824}}) {
    EXPECT_EQ(resolution_pixels(name), pixels) << name;
  }
  for (const char* name : {"", "p", "px", "480q", "-5", "0p", "1e3p", "999999"}) {
    EXPECT_EQ(resolution_pixels(name), std::nullopt) << name;
  }
}

TEST(BucketTest, SizesKeepTheAreaAndTheRatio) {
  // 720P of Open-Sora 1.0: ratios and sizes, which are even.
  BucketOptions first = options({{"720p", 1, {1.0, 1.0}}});
  first.ratios = AspectRatios::kOpenSora1;
  first.multiple = 2;
  const BucketTable table(first);
  ASSERT_EQ(table.buckets().size(), 15U);
  for (const auto& [height, width] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {600, 1538}, {720, 1280}, {960, 960}, {1280, 720}, {678, 1356}}) {
    const Bucket bucket = found(table, clip(height, width, 1));
    EXPECT_NEAR(static_cast<double>(bucket.height), static_cast<double>(height), 2.0);
    EXPECT_NEAR(static_cast<double>(bucket.width), static_cast<double>(width), 2.0);
  }
  const BucketTable coarse(options({{"480p", 51, {0.5, 4.0}}, {"256px", 1, {1.0, 16.0}}}));
  EXPECT_EQ(coarse.buckets().size(), 30U);
  for (const Bucket& bucket : coarse.buckets()) {
    EXPECT_EQ(bucket.height % 16, 0);
    EXPECT_EQ(bucket.width % 16, 0);
    const double area = static_cast<double>(*resolution_pixels(bucket.resolution));
    EXPECT_NEAR(static_cast<double>(bucket.height * bucket.width) / area, 1.0, 0.07)
        << bucket.text();
  }
}

TEST(BucketTest, SearchGoesFromTheLargestAndLongestDown) {
  const BucketTable table(options({{"256px", 1, {1.0, 64.0}},
                                   {"256px", 16, {1.0, 8.0}},
                                   {"256px", 51, {1.0, 4.0}},
                                   {"512px", 1, {1.0, 16.0}},
                                   {"512px", 16, {1.0, 2.0}}}));
  EXPECT_EQ(found(table, clip(512, 512, 100)).text(), "512px, 16 frames, 512 x 512");
  EXPECT_EQ(found(table, clip(512, 512, 1)).text(), "512px, 1 frame, 512 x 512");
  EXPECT_EQ(found(table, clip(300, 300, 100)).text(), "256px, 51 frames, 256 x 256");
  EXPECT_EQ(found(table, clip(300, 300, 50)).text(), "256px, 16 frames, 256 x 256");
  EXPECT_EQ(found(table, clip(1080, 1920, 1)).text(), "512px, 1 frame, 384 x 688");
  EXPECT_EQ(found(table, clip(1920, 1080, 1)).text(), "512px, 1 frame, 688 x 384");
  // 0.8 of 512 x 512 are enough, one row less is not.
  EXPECT_EQ(found(table, clip(410, 512, 1)).resolution, "512px");
  EXPECT_EQ(found(table, clip(409, 512, 1)).resolution, "256px");
  EXPECT_EQ(found(table, clip(512, 512, 16)).batch, 2);
  EXPECT_EQ(table.misfit(clip(100, 100, 1)), "smaller than every bucket");
  EXPECT_EQ(table.misfit(clip(512, 512, 15)), "fewer frames than every bucket");
  EXPECT_EQ(table.misfit(clip(512, 512, 16)), "");
  EXPECT_EQ(BucketTable(options({{"256", 16, {1.0, 1.0}}})).misfit(clip(512, 512, 1)),
            "an image, and all buckets are for clips");
}

TEST(BucketTest, AStrideAsksForLongerClips) {
  BucketOptions strided = options({{"256px", 16, {1.0, 8.0}}});
  strided.frame_stride = 3;
  const BucketTable table(strided);
  EXPECT_TRUE(table.largest(clip(256, 256, 46)));
  EXPECT_FALSE(table.largest(clip(256, 256, 45)));
}

// How often `sample` lands in each row, of many draws.
std::map<std::string, double> shares(const BucketTable& table, const SampleFacts& sample) {
  constexpr uint64_t kDraws = 20000;
  std::map<std::string, double> result;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const auto number = table.find(sample, {5, i, 0, RandomPurpose::kBucket});
    const Bucket* bucket = number ? &table.buckets()[static_cast<size_t>(*number)] : nullptr;
    result[bucket == nullptr ? "none"
                             : bucket->resolution + " " + std::to_string(bucket->frames)] +=
        1.0 / static_cast<double>(kDraws);
  }
  return result;
}

TEST(BucketTest, ProbabilitiesKeepOrDrop) {
  const BucketTable table(options({{"512px", 1, {0.25, 1.0}},
                                   {"512px", 16, {0.5, 1.0}},
                                   {"512px", 32, {0.5, 0.4, 1.0}},
                                   {"256px", 1, {0.5, 1.0}},
                                   {"256px", 32, {1.0, 1.0}}}));
  constexpr double kTolerance = 0.015;  // 4 deviations
  auto image = shares(table, clip(512, 512, 1));
  EXPECT_NEAR(image["512px 1"], 0.25, kTolerance);
  EXPECT_NEAR(image["256px 1"], 0.75 * 0.5, kTolerance);
  EXPECT_NEAR(image["none"], 0.75 * 0.5, kTolerance);
  auto video = shares(table, clip(512, 512, 40));
  EXPECT_NEAR(video["512px 32"], 0.4 * 0.5, kTolerance);
  EXPECT_NEAR(video["512px 16"], 0.6 * 0.5, kTolerance);
  EXPECT_NEAR(video["256px 32"], 0.5, kTolerance);
  EXPECT_EQ(video.count("none"), 0U);
}

TEST(BucketTest, PossibleIsWhatDrawsFind) {
  const std::vector<double> chances = {0.0, 0.5, 1.0};
  for (size_t i = 0; i < 243; ++i) {
    const auto chance = [&](size_t power) { return chances[i / power % 3]; };
    const BucketTable table(options({{"512px", 1, {chance(1), 1.0}},
                                     {"512px", 16, {chance(3), 1.0}},
                                     {"512px", 32, {chance(9), chance(27), 1.0}},
                                     {"256px", 16, {chance(81), 1.0}},
                                     {"256px", 32, {0.5, 0.5, 1.0}}}));
    for (const SampleFacts& sample : {clip(512, 512, 40), clip(512, 512, 20), clip(512, 512, 1),
                                      clip(256, 300, 40), clip(60, 60, 1)}) {
      std::set<int64_t> drawn;
      for (uint64_t draw = 0; draw < 200; ++draw) {
        if (const auto number = table.find(sample, {5, draw, 0, RandomPurpose::kBucket})) {
          drawn.insert(*number);
        }
      }
      EXPECT_THAT(table.possible(sample), testing::UnorderedElementsAreArray(drawn)) << i;
    }
  }
}

TEST(BucketTest, RefusesWhatMakesNoSense) {
  const auto refused = [](const ConfigTable& rows) {
    return error_of(ErrorKind::kConfig, [&] { return BucketTable(options(rows)); });
  };
  EXPECT_THAT(refused({}), HasSubstr("at least one row"));
  EXPECT_THAT(refused({{"huge", 1, {1.0, 1.0}}}), HasSubstr("480p, got huge"));
  EXPECT_THAT(refused({{"256", 0, {1.0, 1.0}}}), HasSubstr("number of frames"));
  EXPECT_THAT(refused({{"256", 1, {1.5, 1.0}}}), HasSubstr("[keep probability, batch size]"));
  EXPECT_THAT(refused({{"256", 1, {1.0, 1.5}}}), HasSubstr("got 2 numbers, the last of them 1.5"));
  EXPECT_THAT(refused({{"256", 1, {1.0}}}), HasSubstr("got 1 numbers"));
  EXPECT_THAT(refused({{"256", 1, {}}}), HasSubstr("got 0 numbers"));
  EXPECT_THAT(refused({{"256", 1, {1.0, 0.0}}}), HasSubstr("batch size from 1"));
  EXPECT_THAT(refused({{"256", 1, {1.0, 1.0}}, {"256px", 1, {1.0, 2.0}}}),
              HasSubstr("must come once"));
  EXPECT_THAT(refused({{"4px", 1, {1.0, 1.0}}}), HasSubstr("must have pixels"));
}

}  // namespace bucket_test
}  // namespace kinora::data
