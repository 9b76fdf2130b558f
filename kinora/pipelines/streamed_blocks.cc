#include "kinora/pipelines/streamed_blocks.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace kinora::pipelines {
namespace {

/// Weights begin at multiples of it, as the vector loads of kernels and copies want it.
constexpr int64_t kAlignedElements = 128;

/// Elements that a weight takes of a block's room.
int64_t room_of(const nn::Parameter& parameter) {
  const int64_t elements = c10::multiply_integers(parameter.shape);
  return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

}  // namespace

StreamedBlocks::StreamedBlocks(models::TextEncoder& encoder, checkpoint::WeightsFile file,
                               checkpoint::LateTensors tensors, at::Device device,
                               at::ScalarType type)
    : file_(std::move(file)),
      tensors_(std::move(tensors)),
      type_(type),
      blocks_(static_cast<size_t>(encoder.num_blocks())) {
  for (const nn::NamedParameter& named : encoder.named_parameters()) {
    for (int64_t i = 0; i < encoder.num_blocks(); ++i) {
      if (named.path.starts_with(encoder.block_path(i))) {
        blocks_[static_cast<size_t>(i)].push_back(named);
      }
    }
  }
  if (device.is_cpu()) {
    return;
  }
  int64_t most = 0;
  for (const std::vector<nn::NamedParameter>& block : blocks_) {
    int64_t room = 0;
    for (const nn::NamedParameter& named : block) {
      room += room_of(*named.parameter);
    }
    most = std::max(most, room);
  }
  for (at::Tensor& room : rooms_) {
    room = at::empty({most}, at::TensorOptions(device).dtype(type));
  }
  copies_ = std::make_unique<StagedCopies>(device);
}

std::vector<at::Tensor> StreamedBlocks::read(int64_t block) {
  std::vector<at::Tensor> values;
  std::vector<StagedCopies::Copy> copies;
  int64_t begin = 0;
  for (const nn::NamedParameter& named : blocks_[static_cast<size_t>(block)]) {
    const at::Tensor stored = tensors_.at(named.path).read_all();
    if (!copies_) {
      values.push_back(stored.to(type_, /*non_blocking=*/false, /*copy=*/true));
      continue;
    }
    const at::Tensor& room = rooms_[static_cast<size_t>(block) % rooms_.size()];
    values.push_back(room.narrow(0, begin, stored.numel()).view(stored.sizes()));
    copies.push_back({stored, values.back()});
    begin += room_of(*named.parameter);
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
  const std::vector<nn::NamedParameter>& parameters = blocks_[static_cast<size_t>(block)];
  if (!begins) {
    for (const nn::NamedParameter& named : parameters) {
      named.parameter->value = at::Tensor();
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
  if (block + 1 < static_cast<int64_t>(blocks_.size())) {
    read_ahead(block + 1);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].parameter->value = values[i];
  }
}

}  // namespace kinora::pipelines
