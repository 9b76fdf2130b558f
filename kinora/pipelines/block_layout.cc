#include "kinora/pipelines/block_layout.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "kinora/core/rounding.h"

namespace kinora::pipelines {
namespace {

/// Weights begin at multiples of it.
constexpr int64_t kAlignedElements = 128;

int64_t aligned(int64_t elements) {
  return round_up(elements, kAlignedElements);
}

}  // namespace

BlockLayout::BlockLayout(models::TextEncoder& encoder)
    : blocks_(static_cast<size_t>(encoder.num_blocks())) {
  for (const nn::NamedParameter& named : encoder.named_parameters()) {
    for (int64_t i = 0; i < encoder.num_blocks(); ++i) {
      if (named.path.starts_with(encoder.block_path(i))) {
        const int64_t begin = room_of(i);
        blocks_[static_cast<size_t>(i)].push_back(
            {.named = named,
             .begin = begin,
             .count = c10::multiply_integers(named.parameter->shape)});
      }
    }
  }
}

int64_t BlockLayout::room_of(int64_t block) const {
  const std::vector<PlacedParameter>& placed = blocks_[static_cast<size_t>(block)];
  return placed.empty() ? 0 : placed.back().begin + aligned(placed.back().count);
}

int64_t BlockLayout::largest_room() const {
  int64_t largest = 0;
  for (int64_t i = 0; i < num_blocks(); ++i) {
    largest = std::max(largest, room_of(i));
  }
  return largest;
}

}  // namespace kinora::pipelines
