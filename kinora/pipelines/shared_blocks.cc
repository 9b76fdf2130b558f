#include "kinora/pipelines/shared_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace kinora::pipelines {
namespace {

/// Copies what lies at `begin` and behind it in the block's room into `part`.
void fill(const at::Tensor& part, int64_t begin, const std::vector<PlacedParameter>& block,
          const checkpoint::LateTensors& tensors) {
  const int64_t end = begin + part.numel();
  for (const PlacedParameter& placed : block) {
    const int64_t first = std::max(begin, placed.begin);
    const int64_t last = std::min(end, placed.begin + placed.count);
    if (first < last) {
      const at::Tensor stored = tensors.at(placed.named.path).read_all().view(-1);
      part.narrow(0, first - begin, last - first)
          .copy_(stored.narrow(0, first - placed.begin, last - first));
    }
  }
}

}  // namespace

SharedBlocks::SharedBlocks(models::TextEncoder& encoder, const checkpoint::LateTensors& tensors,
                           const comm::Group& ranks, at::Device device, at::ScalarType type)
    : layout_(encoder), ranks_(ranks) {
  const auto options = at::TensorOptions(device).dtype(type);
  for (int64_t i = 0; i < layout_.num_blocks(); ++i) {
    const int64_t size = part_of(layout_.room_of(i), ranks.size());
    parts_.push_back(at::zeros({size}, options));
    fill(parts_.back(), ranks.rank() * size, layout_.block(i), tensors);
  }
  const int64_t whole = ranks.size() * part_of(layout_.largest_room(), ranks.size());
  for (at::Tensor& room : rooms_) {
    room = at::empty({whole}, options);
  }
}

int64_t SharedBlocks::elements_held(const BlockLayout& layout, int64_t ranks) {
  constexpr int64_t kRooms = 2;
  int64_t elements = kRooms * ranks * part_of(layout.largest_room(), ranks);
  for (int64_t i = 0; i < layout.num_blocks(); ++i) {
    elements += part_of(layout.room_of(i), ranks);
  }
  return elements;
}

void SharedBlocks::gather(int64_t block) {
  work_.wait();  // of a pass that was broken off
  const at::Tensor& part = parts_[static_cast<size_t>(block)];
  gathered_ = block;
  // What is in this room was of the block before the last, which has been computed, or will be
  // before this begins.
  work_ = ranks_.all_gather_async(room_of(block).narrow(0, 0, ranks_.size() * part.numel()), part);
}

void SharedBlocks::use(int64_t block, bool begins) {
  const std::vector<PlacedParameter>& parameters = layout_.block(block);
  if (!begins) {
    for (const PlacedParameter& placed : parameters) {
      placed.named.parameter->value = at::Tensor();
    }
    return;
  }
  if (gathered_ != block) {
    gather(block);
  }
  work_.wait();
  gathered_ = -1;
  for (const PlacedParameter& placed : parameters) {
    placed.named.parameter->value =
        room_of(block).narrow(0, placed.begin, placed.count).view(placed.named.parameter->shape);
  }
  if (block + 1 < layout_.num_blocks()) {
    gather(block + 1);
  }
}

}  // namespace kinora::pipelines
