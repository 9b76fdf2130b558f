#include "kinora/models/transformers/sliding_window.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/attention.h"

// Shapes: N the clip's tokens, M tiles, K blocks of tokens.

namespace kinora::models {
namespace {

constexpr size_t kClipAxes = 3;  // frame, row, column
using Sizes = std::array<int64_t, kClipAxes>;

constexpr Sizes kClipTile = {2, 8, 8};
constexpr Sizes kFrameTile = {1, 8, 16};

/// Positions on each axis of all places of a grid, in its order: int64 [places].
std::array<at::Tensor, kClipAxes> places_of(const Sizes& grid) {
  const at::Tensor all = at::arange(grid[0] * grid[1] * grid[2], at::kLong);
  return {all.floor_divide(grid[1] * grid[2]), all.floor_divide(grid[2]).remainder(grid[1]),
          all.remainder(grid[2])};
}

/// Number of the place at `positions` in a grid.
at::Tensor number_of(const std::array<at::Tensor, kClipAxes>& positions, const Sizes& grid) {
  return (positions[0] * grid[1] + positions[1]) * grid[2] + positions[2];
}

/// Tokens [B, T, S, ..] with the first of them as `order` has them.
at::Tensor in_order(const at::Tensor& tokens, const at::Tensor& order) {
  const at::Tensor all = tokens.flatten(1, 2);
  const int64_t own = order.numel();
  const at::Tensor clip = all.narrow(1, 0, own).index_select(1, order);
  return (all.size(1) == own ? clip : at::cat({clip, all.narrow(1, own, all.size(1) - own)}, 1))
      .view(tokens.sizes());
}

}  // namespace

SlidingWindow::SlidingWindow(const Grid& grid, const std::vector<int64_t>& window, int64_t others,
                             at::Device device, Tiles of) {
  const Sizes clip = {grid.frames, grid.rows, grid.columns};
  const Sizes tile = grid.frames > 1 && of == Tiles::kClip ? kClipTile : kFrameTile;
  Sizes tiles{};
  std::array<at::Tensor, kClipAxes> tile_of;    // of each token
  std::array<at::Tensor, kClipAxes> within_it;  // likewise
  const std::array<at::Tensor, kClipAxes> tokens = places_of(clip);
  for (size_t axis = 0; axis < kClipAxes; ++axis) {
    tiles[axis] = ceil_div(clip[axis], tile[axis]);
    tile_of[axis] = tokens[axis].floor_divide(tile[axis]);
    within_it[axis] = tokens[axis].remainder(tile[axis]);
  }
  const at::Tensor numbers = number_of(tile_of, tiles);
  order_ = (numbers * (tile[0] * tile[1] * tile[2]) + number_of(within_it, tile)).argsort();
  places_ = order_.argsort();

  // Tiles that attend to each other; the last one, of the others, to all.
  const int64_t num_tiles = tiles[0] * tiles[1] * tiles[2];
  at::Tensor attends = at::ones({num_tiles + 1, num_tiles + 1}, at::kBool);
  at::Tensor of_clip = attends.narrow(0, 0, num_tiles).narrow(1, 0, num_tiles);
  const std::array<at::Tensor, kClipAxes> corners = places_of(tiles);
  for (size_t axis = 0; axis < kClipAxes; ++axis) {
    if (window[axis] == 0) {
      continue;
    }
    const at::Tensor first = corners[axis] * tile[axis];
    const at::Tensor last = (first + (tile[axis] - 1)).clamp_max(clip[axis] - 1);
    const at::Tensor gap = first.unsqueeze(1) - last.unsqueeze(0);  // where they are apart
    of_clip.logical_and_(at::maximum(gap, gap.t()) <= window[axis] / 2);
  }

  // Tiles of which a block has tokens.
  const int64_t all = order_.numel() + others;
  const int64_t rows = kernels::BlockMask::kRows;
  at::Tensor has = at::zeros({ceil_div(all, rows), num_tiles + 1}, at::kFloat);
  const at::Tensor tile_numbers =
      at::cat({numbers.index_select(0, order_), at::full({others}, num_tiles, at::kLong)});
  has.index_put_({at::arange(all, at::kLong).floor_divide(rows), tile_numbers},
                 at::ones({}, at::kFloat));
  const at::Tensor blocks = has.matmul(attends.to(at::kFloat)).matmul(has.t()) > 0;
  blocks_ = std::make_shared<ops::BlockMask>(blocks, device);
  order_ = order_.to(device);
  places_ = places_.to(device);
}

at::Tensor SlidingWindow::sorted(const at::Tensor& tokens) const {
  return in_order(tokens, order_);
}

at::Tensor SlidingWindow::restored(const at::Tensor& tokens) const {
  return in_order(tokens, places_);
}

const SlidingWindow& SlidingWindows::of(const Grid& grid, int64_t others, at::Device device) const {
  if (others > 0) {  // masks are of whole blocks: the same for all that end in the same one
    constexpr int64_t kRows = kernels::BlockMask::kRows;
    const int64_t own = grid.frames * grid.tokens_a_frame();
    others = round_up(own + others, kRows) - own;
  }
  const std::array<int64_t, 4> key = {grid.frames, grid.rows, grid.columns, others};
  const auto found = made_.find(key);
  return found != made_.end()
             ? found->second
             : made_.emplace(key, SlidingWindow(grid, window_, others, device, tiles_))
                   .first->second;
}

at::Tensor own_tokens(const nn::Sequence& sequence, const SlidingWindow* window,
                      const at::Tensor& tokens) {
  return sequence.enter(window != nullptr ? window->sorted(tokens) : tokens);
}

at::Tensor all_tokens(const nn::Sequence& sequence, const SlidingWindow* window,
                      const at::Tensor& part, int64_t tokens_a_frame) {
  const at::Tensor tokens = sequence.leave(part, tokens_a_frame);
  return window != nullptr ? window->restored(tokens) : tokens;
}

double window_share(const ModelConfig& config, SlidingWindow::Tiles tiles, int64_t others) {
  const std::vector<int64_t>& window = config.transformer.sliding_window;
  return window.empty()
             ? 1.0
             : SlidingWindow(grid_of(config), window, others, at::kCPU, tiles).blocks()->density();
}

}  // namespace kinora::models
