#include "kinora/pipelines/streamed_blocks.h"

#include <ATen/ops/empty.h>
#include <utility>

namespace kinora::pipelines {

StreamedBlocks::StreamedBlocks(models::TextEncoder& encoder,
                               std::vector<checkpoint::WeightsFile> files,
                               checkpoint::LateTensors tensors, at::Device device,
                               at::ScalarType type)
    : files_(std::move(files)), tensors_(std::move(tensors)), type_(type), layout_(encoder) {
  if (device.is_cpu()) {
    return;
  }
  for (at::Tensor& room : rooms_) {
    room = at::empty({layout_.largest_room()}, at::TensorOptions(device).dtype(type));
  }
  copies_ = std::make_unique<StagedCopies>(device);
}

std::vector<at::Tensor> StreamedBlocks::read(int64_t block) {
  std::vector<at::Tensor> values;
  std::vector<StagedCopies::Copy> copies;
  for (const PlacedParameter& placed : layout_.block(block)) {
    const at::Tensor stored = tensors_.at(placed.named.path).read_all();
    if (!copies_) {
      values.push_back(stored.to(type_, /*non_blocking=*/false, /*copy=*/true));
      continue;
    }
    const at::Tensor& room = rooms_[static_cast<size_t>(block) % rooms_.size()];
    values.push_back(room.narrow(0, placed.begin, placed.count).view(stored.sizes()));
    copies.push_back({stored, values.back()});
  }
  if (copies_) {
    copies_->run(copies);
  }
  return values;
}

void StreamedBlocks::read_ahead(int64_t block) {
  if (next_.valid()) {
    next_.wait();  // of a pass that was broken off
  }
  if (copies_) {
    // The block before the last has then been computed, whose room this one takes.
    copies_->wait_for_current_stream();
  }
  ahead_ = block;
  next_ = std::async(std::launch::async, [this, block] { return read(block); });
}

void StreamedBlocks::use(int64_t block, bool begins) {
  const std::vector<PlacedParameter>& parameters = layout_.block(block);
  if (!begins) {
    for (const PlacedParameter& placed : parameters) {
      placed.named.parameter->value = at::Tensor();
    }
    return;
  }
  if (!next_.valid() || ahead_ != block) {
    read_ahead(block);
  }
  const std::vector<at::Tensor> values = next_.get();
  if (copies_) {
    copies_->let_current_stream_wait();
  }
  if (block + 1 < layout_.num_blocks()) {
    read_ahead(block + 1);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].named.parameter->value = values[i];
  }
}

}  // namespace kinora::pipelines
