#include "kinora/data/drawn_masks.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kinora/data/data_config.h"
#include "kinora/data/loader.h"

namespace kinora::data {
namespace drawn_masks_test {

RandomStream stream(uint64_t position) {
  return {.seed = 5, .sample = position, .step = 0, .purpose = RandomPurpose::kMask};
}

/// The share of its pixels that are white; the others are black.
double white_of(const io::Image& mask) {
  const auto white = std::ranges::count(mask.pixels, uint8_t{255});
  EXPECT_EQ(white + std::ranges::count(mask.pixels, uint8_t{0}), std::ssize(mask.pixels));
  return static_cast<double>(white) / static_cast<double>(mask.pixels.size());
}

TEST(DrawnMasksTest, AQuarterIsWholeAndTheRestLeavesSomething) {
  constexpr int kMasks = 2000;
  int whole = 0;
  double sum = 0.0;
  for (int i = 0; i < kMasks; ++i) {
    const double white = white_of(drawn_mask(48, 64, stream(static_cast<uint64_t>(i))));
    EXPECT_GT(white, 0.0) << i;
    whole += white == 1.0 ? 1 : 0;
    sum += white == 1.0 ? 0.0 : white;
  }
  EXPECT_NEAR(whole / static_cast<double>(kMasks), 0.25, 0.03);
  EXPECT_NEAR(sum / (kMasks - whole), 0.35, 0.1);
}

// Boxes of 30 to 150 pixels of 256, at least 10 away from the edges.
TEST(DrawnMasksTest, BoxesKeepAMarginAndStrokesHaveRoundEnds) {
  int boxes = 0;
  int strokes = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const io::Image mask = drawn_mask(256, 256, stream(i));
    const auto at = [&](int64_t row, int64_t column) {
      return mask.pixels[static_cast<size_t>((row * 256 + column) * 3)] != 0;
    };
    if (white_of(mask) == 1.0) {
      continue;
    }
    bool touches = false;
    // In a union of such rectangles each run along a row or column is 30 pixels or more.
    int64_t shortest = 256;
    for (int64_t row = 0; row < 256; ++row) {
      int64_t run = 0;
      for (int64_t column = 0; column < 256; ++column) {
        const bool in_margin = std::min({row, column, 255 - row, 255 - column}) < 10;
        touches = touches || (in_margin && at(row, column));
        run = at(row, column) ? run + 1 : 0;
        if (run > 0 && (column == 255 || !at(row, column + 1))) {
          shortest = std::min(shortest, run);
        }
      }
    }
    const bool is_boxes = !touches && shortest >= 29;
    boxes += is_boxes ? 1 : 0;
    strokes += is_boxes ? 0 : 1;
  }
  EXPECT_NEAR(boxes / static_cast<double>(boxes + strokes), 0.5, 0.1);
}

// By place in the stream of samples; the same in fixed sets.
TEST(DrawnMasksTest, MasksGoWithTheirSamples) {
  DataConfig config;
  config.count = 8;
  config.mask = MaskKind::kDrawn;
  const std::unique_ptr<Source> source = open_source(config);
  EXPECT_TRUE(source->beside().mask);
  LoaderOptions options = loader_options(config);
  options.micro_batch = 4;
  options.global_batch = 4;
  options.num_threads = 2;
  options.seed = 5;
  Loader loader(*source, options);
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = loader.next();
    ASSERT_EQ(batch.mask.sizes(), (std::vector<int64_t>{4, 1, 32, 32}));
    for (int64_t i = 0; i < 4; ++i) {
      const io::Image mask = drawn_mask(32, 32, stream(static_cast<uint64_t>(4 * step + i)));
      const auto* got = batch.mask[i].const_data_ptr<uint8_t>();
      for (int64_t pixel = 0; pixel < 32 * 32; ++pixel) {
        ASSERT_EQ(got[pixel], mask.pixels[static_cast<size_t>(3 * pixel)]) << step << " " << i;
      }
    }
  }
  const std::vector<int64_t> indices = {2, 5};
  const std::vector<int64_t> other = {5, 2};
  const at::Tensor first = load_samples(*source, indices, 32, 32).mask;
  const at::Tensor second = load_samples(*source, other, 32, 32).mask;
  EXPECT_TRUE(first.equal(second.flip(0)));
  EXPECT_FALSE(first[0].equal(first[1]));
}

}  // namespace drawn_masks_test
}  // namespace kinora::data
