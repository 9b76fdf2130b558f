#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/models/transformers/grid.h"
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
  /// @param window  frames, rows, columns, of tokens; 0: all of the axis
  /// @param others  tokens behind the clip's
  SlidingWindow(const Grid& grid, const std::vector<int64_t>& window, int64_t others,
                at::Device device);

  /// Tokens [B, 1, N, ..], of which the clip's come first, in the order of tiles; and back.
  [[nodiscard]] at::Tensor sorted(const at::Tensor& tokens) const;
  [[nodiscard]] at::Tensor restored(const at::Tensor& tokens) const;
  [[nodiscard]] const std::shared_ptr<const ops::BlockMask>& blocks() const { return blocks_; }

 private:
  at::Tensor order_;   // int64 [clip's tokens]: which token is where
  at::Tensor places_;  // the reverse
  std::shared_ptr<const ops::BlockMask> blocks_;
};

}  // namespace kinora::models
