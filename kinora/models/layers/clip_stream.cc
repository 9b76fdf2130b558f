#include "kinora/models/layers/clip_stream.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "kinora/core/error.h"
#include "kinora/ops/edges.h"

namespace kinora::models {
namespace {

constexpr int64_t kFrames = 2;  // the dim of a clip
constexpr int64_t kRows = 3;

}  // namespace

at::Tensor ClipWindow::part(int64_t first, int64_t last) const {
  KINORA_CHECK(from <= first && last <= to, kInternal, "[clip_stream] rows ", first, " to ", last,
               " are asked of a window of rows ", from, " to ", to);
  return ops::packed_places(x.narrow(kRows, first - from, last - first));
}

ClipWindow ClipWindow::seen(int64_t around) const {
  return {.x = {},
          .from = from == 0 ? 0 : from + around,
          .to = to == rows ? rows : to - around,
          .rows = rows};
}

void ClipStream::begin_band(int64_t begin, int64_t end) {
  begin_ = begin;
  end_ = end;
  begins_ = true;
  frames_.clear();
}

std::optional<ClipStream::Sums> ClipStream::sums_of(const nn::GroupNorm& norm,
                                                    const ClipWindow& x) {
  if (const auto known = known_.find(&norm); known != known_.end()) {
    return known->second;
  }
  const auto [first, last] = own_rows(x.rows);
  const at::Tensor own = x.part(first, last);
  const at::Tensor sums = norm.sums(own);
  Sums& found = found_[&norm];
  found.sums = found.sums.defined() ? found.sums + sums : sums;
  found.elements += own.numel() / own.size(0) / norm.groups();
  return std::nullopt;
}

bool ClipStream::end_pass() {
  const bool found = !found_.empty();
  known_.merge(found_);
  found_.clear();
  return found;
}

at::Tensor ClipStream::earlier(const void* owner) const {
  const auto found = frames_.find(owner);
  return found == frames_.end() ? at::Tensor() : found->second;
}

void ClipStream::remember(const void* owner, const at::Tensor& x, int64_t count) {
  const int64_t kept = std::min(count, x.size(kFrames));
  if (kept > 0) {
    frames_[owner] = x.narrow(kFrames, x.size(kFrames) - kept, kept).clone();
  }
}

}  // namespace kinora::models
