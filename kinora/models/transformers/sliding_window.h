#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/models/transformers/grid.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/block_mask.h"

namespace kinora::models {

/// Attention of a clip's tokens to those around them in space and time, in whole blocks of tokens
/// (Zhang et al. 2025, "Fast video generation with sliding tile attention").
///
/// Tokens are put in the order of tiles of 2 frames, 8 rows and 8 columns (of a picture 8 rows and
/// 16 columns; smaller at the clip's ends), so that a block of kernels::BlockMask::kRows of them
/// has neighbours. A tile attends to the tiles that have a token within half the window of one of
/// its own, on each axis; a block attends to each block with a token of a tile that one of its
/// tiles attends to. Tokens behind the clip's (text, pictures that are shown) attend to all, and
/// all to them.
class SlidingWindow {
 public:
  /// Whether a tile has tokens of several frames; within one it has 8 rows and 16 columns, and
  /// frames stay apart.
  enum class Tiles : uint8_t { kClip, kFrame };

  /// @param window  frames, rows, columns, of tokens; 0: all of the axis
  /// @param others  tokens behind the clip's
  SlidingWindow(const Grid& grid, const std::vector<int64_t>& window, int64_t others,
                at::Device device, Tiles tiles = Tiles::kClip);

  /// Tokens [B, T, S, ..], of kClip [B, 1, N, ..], of which the clip's come first, in the order of
  /// tiles; and back.
  [[nodiscard]] at::Tensor sorted(const at::Tensor& tokens) const;
  [[nodiscard]] at::Tensor restored(const at::Tensor& tokens) const;
  [[nodiscard]] const std::shared_ptr<const ops::BlockMask>& blocks() const { return blocks_; }

 private:
  at::Tensor order_;   // int64 [clip's tokens]: which token is where
  at::Tensor places_;  // the reverse
  std::shared_ptr<const ops::BlockMask> blocks_;
};

/// Those of a model, which are made once.
class SlidingWindows {
 public:
  /// window: model.sliding_window; empty: there is none.
  explicit SlidingWindows(std::vector<int64_t> window, SlidingWindow::Tiles tiles)
      : window_(std::move(window)), tiles_(tiles) {}

  [[nodiscard]] bool any() const { return !window_.empty(); }
  /// As SlidingWindow's. Of one device.
  [[nodiscard]] const SlidingWindow& of(const Grid& grid, int64_t others, at::Device device) const;

 private:
  std::vector<int64_t> window_;
  SlidingWindow::Tiles tiles_;
  mutable std::map<std::array<int64_t, 4>, SlidingWindow> made_;  // by grid and others
};

/// nn::Sequence::enter() of tokens in the window's order, and leave() back in their own; null: in
/// their own.
[[nodiscard]] at::Tensor own_tokens(const nn::Sequence& sequence, const SlidingWindow* window,
                                    const at::Tensor& tokens);
[[nodiscard]] at::Tensor all_tokens(const nn::Sequence& sequence, const SlidingWindow* window,
                                    const at::Tensor& part, int64_t tokens_a_frame);
/// The share of the pairs of a clip's tokens that attend to each other, with `others` behind them;
/// 1 without model.sliding_window.
[[nodiscard]] double window_share(const ModelConfig& config,
                                  SlidingWindow::Tiles tiles = SlidingWindow::Tiles::kFrame,
                                  int64_t others = 0);

}  // namespace kinora::models
