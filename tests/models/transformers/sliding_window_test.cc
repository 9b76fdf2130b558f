#include "kinora/models/transformers/sliding_window.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/attention.h"
#include "kinora/nn/sequence.h"
#include "tests/error_of.h"
#include "tests/models/transformers/random_clips.h"
#include "tests/ops/named_results.h"

namespace kinora::models {
namespace sliding_window_test {

constexpr int64_t kRows = kernels::BlockMask::kRows;

/// Numbers 0 to `count` - 1 as tokens [1, 1, count, 1].
at::Tensor numbered_tokens(int64_t count) {
  return at::arange(count, at::kLong).view({1, 1, count, 1});
}

TEST(SlidingWindowTest, OrderIsOfTilesAndComesBack) {
  const SlidingWindow clip({.frames = 3, .rows = 9, .columns = 11}, {0, 0, 0}, 5, at::kCPU);
  const at::Tensor tokens = numbered_tokens(3 * 9 * 11 + 5);
  const at::Tensor sorted = clip.sorted(tokens);
  EXPECT_TRUE(at::equal(clip.restored(sorted), tokens));
  EXPECT_TRUE(at::equal(sorted.narrow(2, 297, 5), tokens.narrow(2, 297, 5))) << "others";
  // The first tile has 2 frames of 8 x 8 tokens, the next one the 3 columns beside it.
  const auto number = [&sorted](int64_t i) { return sorted[0][0][i][0].item<int64_t>(); };
  EXPECT_EQ(number(0), 0);
  EXPECT_EQ(number(7), 7);
  EXPECT_EQ(number(8), 11) << "the next row";
  EXPECT_EQ(number(64), 99) << "the next frame";
  EXPECT_EQ(number(128), 8) << "the next tile";
  EXPECT_EQ(number(131), 19);
}

TEST(SlidingWindowTest, FramesStayApart) {
  const Grid grid = {.frames = 3, .rows = 9, .columns = 19};
  const SlidingWindow clip(grid, {0, 0, 0}, 0, at::kCPU, SlidingWindow::Tiles::kFrame);
  const at::Tensor tokens = at::arange(3 * 9 * 19, at::kLong).view({1, 3, 9 * 19, 1});
  const at::Tensor sorted = clip.sorted(tokens);
  EXPECT_TRUE(at::equal(clip.restored(sorted), tokens));
  EXPECT_TRUE(at::equal(std::get<0>(sorted.sort(2)), tokens)) << "within each";
  EXPECT_EQ(sorted[0][1][16][0].item<int64_t>(), 9 * 19 + 19) << "the next row";
  EXPECT_EQ(sorted[0][1][128][0].item<int64_t>(), 9 * 19 + 16) << "the next tile";
}

/// What the class's comment says, token by token.
at::Tensor blocks_as_written(const Grid& grid, const std::vector<int64_t>& window, int64_t others,
                             const at::Tensor& sorted, SlidingWindow::Tiles of) {
  const std::array<int64_t, 3> tile = grid.frames > 1 && of == SlidingWindow::Tiles::kClip
                                          ? std::array<int64_t, 3>{2, 8, 8}
                                          : std::array<int64_t, 3>{1, 8, 16};
  using Tile = std::array<int64_t, 3>;
  const int64_t own = grid.frames * grid.tokens_a_frame();
  const int64_t count = ceil_div(own + others, kRows);
  std::vector<std::set<Tile>> tiles(static_cast<size_t>(count));
  std::vector<bool> has_others(static_cast<size_t>(count), false);
  std::map<Tile, std::vector<Tile>> tokens;  // of each tile
  for (int64_t i = 0; i < own + others; ++i) {
    const auto block = static_cast<size_t>(i / kRows);
    if (i >= own) {
      has_others[block] = true;
      continue;
    }
    const int64_t number = sorted[0][0][i][0].item<int64_t>();
    const Tile at = {number / grid.tokens_a_frame(), number % grid.tokens_a_frame() / grid.columns,
                     number % grid.columns};
    const Tile its = {at[0] / tile[0], at[1] / tile[1], at[2] / tile[2]};
    tiles[block].insert(its);
    tokens[its].push_back(at);
  }
  const auto near = [&](const Tile& a, const Tile& b) {
    for (size_t axis = 0; axis < 3; ++axis) {
      int64_t nearest = INT64_MAX;
      for (const Tile& x : tokens[a]) {
        for (const Tile& y : tokens[b]) {
          nearest = std::min(nearest, std::abs(x[axis] - y[axis]));
        }
      }
      if (window[axis] > 0 && nearest > window[axis] / 2) {
        return false;
      }
    }
    return true;
  };
  at::Tensor attended = at::zeros({count, count}, at::kBool);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      const auto a = static_cast<size_t>(i);
      const auto b = static_cast<size_t>(j);
      bool attends = has_others[a] || has_others[b];
      for (const Tile& x : tiles[a]) {
        for (const Tile& y : tiles[b]) {
          attends = attends || near(x, y);
        }
      }
      attended[i][j] = attends;
    }
  }
  return attended;
}

TEST(SlidingWindowTest, BlocksAreThoseOfTheWindow) {
  const struct {
    Grid grid;
    std::vector<int64_t> window;
    int64_t others;
    SlidingWindow::Tiles tiles = SlidingWindow::Tiles::kClip;
  } cases[] = {{{5, 25, 27}, {1, 5, 3}, 7},
               {{9, 17, 14}, {3, 0, 3}, 0},
               {{1, 25, 40}, {0, 9, 17}, 130},
               {{7, 17, 14}, {3, 5, 3}, 0, SlidingWindow::Tiles::kFrame}};
  for (const auto& c : cases) {
    const SlidingWindow window(c.grid, c.window, c.others, at::kCPU, c.tiles);
    const int64_t all = c.grid.frames * c.grid.tokens_a_frame() + c.others;
    const at::Tensor want =
        blocks_as_written(c.grid, c.window, c.others, window.sorted(numbered_tokens(all)), c.tiles);
    const at::Tensor got = window.blocks()->of_rows(all, all);
    EXPECT_TRUE(at::equal(got.slice(0, 0, all, kRows).slice(1, 0, all, kRows), want));
    const double density = want.to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(window.blocks()->density(), density, 1e-12);
    EXPECT_LT(density, 0.95) << "or nothing is tested";
  }
}

ClipCase clip_case(const char* name) {
  return *std::ranges::find_if(kClipCases,
                               [name](const ClipCase& c) { return std::string(c.name) == name; });
}

/// Results of a training step of such a case with that window, or none.
ops::NamedResults results_of(const char* name,
                             const std::optional<std::array<int64_t, 3>>& window) {
  ClipCase c = clip_case(name);
  c.sliding_window = window;
  RandomClips clips(c, at::kCPU, at::kFloat);
  clips.step();
  return clips.results();
}

TEST(SlidingWindowTest, OfAllIsAttentionToAll) {
  for (const char* name :
       {"open_sora2_slides", "sd3_slides", "cogvideox_slides", "wan_slides", "ltx_video_slides"}) {
    ops::expect_near(results_of(name, {}), results_of(name, {{0, 0, 0}}), 1e-5, name);
    ops::expect_near(results_of(name, {}), results_of(name, {{13, 67, 67}}), 1e-5, name);
  }
}

/// Whose inputs can be read.
class OpenClips : public RandomClips {
 public:
  using RandomClips::conditions;
  using RandomClips::RandomClips;
  using RandomClips::t;
  using RandomClips::x_t;
};

// Each block of a model lets a frame see the one before it and the one behind.
TEST(SlidingWindowTest, FramesOutsideAreNotSeen) {
  ClipCase c = clip_case("wan_slides");
  c.sliding_window = {{3, 0, 0}};
  for (const bool is_fast : {false, true}) {
    OpenClips clips(c, at::kCPU, at::kFloat);
    if (is_fast) {
      clips.model().use_fast_path(std::make_shared<ops::BlockKernels>(
          ops::KernelOptions{}, at::kCPU, at::kFloat, /*deterministic=*/true));
    }
    const at::NoGradGuard no_grad;
    const auto drawn = [&](const at::Tensor& x_t) {
      return clips.model().forward(x_t, clips.t(), clips.conditions());
    };
    at::Tensor changed = clips.x_t().clone();
    changed.select(2, 0).add_(1.0);
    const at::Tensor difference =
        (drawn(changed) - drawn(clips.x_t())).abs().amax({0, 1, 3, 4});  // by frame
    const int64_t reach = clips.model().config().transformer.depth;
    for (int64_t frame = 0; frame < c.frames; ++frame) {
      const auto of_frame = difference[frame].item<double>();
      EXPECT_EQ(of_frame > 1e-4, frame <= reach) << frame << ": " << of_frame;
      EXPECT_TRUE(frame <= reach || of_frame < 1e-6) << frame << ": " << of_frame;
    }
  }
}

}  // namespace sliding_window_test
}  // namespace kinora::models
