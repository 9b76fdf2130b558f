#include "kinora/pipelines/streamed_blocks.h"

#include <utility>

namespace kinora::pipelines {

StreamedBlocks::StreamedBlocks(models::TextEncoder& encoder, checkpoint::WeightsFile file,
                               checkpoint::LateTensors tensors, at::Device device,
                               at::ScalarType type)
    : file_(std::move(file)),
      tensors_(std::move(tensors)),
      device_(device),
      type_(type),
      blocks_(static_cast<size_t>(encoder.num_blocks())) {
  for (const nn::NamedParameter& named : encoder.named_parameters()) {
    for (int64_t i = 0; i < encoder.num_blocks(); ++i) {
      if (named.path.starts_with(encoder.block_path(i))) {
        blocks_[static_cast<size_t>(i)].push_back(named);
      }
    }
  }
}

std::vector<at::Tensor> StreamedBlocks::read(int64_t block) const {
  std::vector<at::Tensor> values;
  for (const nn::NamedParameter& named : blocks_[static_cast<size_t>(block)]) {
    values.push_back(tensors_.at(named.path)
                         .read_all()
                         .to(type_, /*non_blocking=*/false,
                             /*copy=*/true));
  }
  return values;
}

void StreamedBlocks::read_ahead(int64_t block) {
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
  if (block + 1 < static_cast<int64_t>(blocks_.size())) {
    read_ahead(block + 1);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].parameter->value = values[i].to(device_);
  }
}

}  // namespace kinora::pipelines
