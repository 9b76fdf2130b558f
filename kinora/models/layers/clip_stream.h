#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"

/// Clips whose norms see all of them, computed window by window: a window, some rows of some
/// frames, passes through all layers at once, so that no layer's result lies whole in memory. Each
/// norm costs a pass of its own before, which finds its sums. Without gradients.
namespace kinora::models {

/// Rows [from, to) of some frames of a clip.
struct ClipWindow {
  at::Tensor x;  ///< [B, C, T, to - from, W]
  int64_t from = 0;
  int64_t to = 0;
  int64_t rows = 0;  ///< of the whole

  /// Some of its rows, counted in the whole, channels_last.
  [[nodiscard]] at::Tensor part(int64_t first, int64_t last) const;
  /// How many of so many rows above and below it the whole does not have.
  [[nodiscard]] nn::Padding missing(int64_t around) const {
    return {from == 0 ? around : 0, to == rows ? around : 0};
  }
  /// Without x: the rows that a layer can make of it which sees so many rows around.
  [[nodiscard]] ClipWindow seen(int64_t around) const;
};

/// What layers know while windows pass: of norms the sums that earlier passes found, of
/// convolutions the frames that they have read last. Windows come band by band of rows, and of each
/// band frame by frame.
class ClipStream {
 public:
  /// rows: of the clip that windows are cut from.
  explicit ClipStream(int64_t rows) : rows_(rows) {}

  /// The next windows are of rows [begin, end) and of others around them.
  void begin_band(int64_t begin, int64_t end);
  void next_piece() { begins_ = false; }
  /// Whether this is the first piece of a band's frames.
  [[nodiscard]] bool begins() const { return begins_; }
  /// The band's own rows, where the clip has so many by now.
  [[nodiscard]] std::array<int64_t, 2> own_rows(int64_t rows) const {
    return {begin_ * (rows / rows_), end_ * (rows / rows_)};
  }

  struct Sums {
    at::Tensor sums;       ///< GroupNorm::sums()
    int64_t elements = 0;  ///< of a group
  };
  /// Those of the whole, if an earlier pass found them. Else adds those of x's own rows, which x is
  /// done with then.
  [[nodiscard]] std::optional<Sums> sums_of(const nn::GroupNorm& norm, const ClipWindow& x);
  /// Whether the pass has found sums that were not known.
  [[nodiscard]] bool end_pass();

  /// The frames that `owner` was to remember of the piece before; undefined: none.
  [[nodiscard]] at::Tensor earlier(const void* owner) const;
  /// Has `owner` remember the last `count` frames of x.
  void remember(const void* owner, const at::Tensor& x, int64_t count);

 private:
  int64_t rows_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  bool begins_ = true;
  std::map<const void*, Sums> known_;
  std::map<const void*, Sums> found_;
  std::map<const void*, at::Tensor> frames_;
};

}  // namespace kinora::models
