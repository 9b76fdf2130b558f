#include "kinora/checkpoint/buffers.h"

#include "kinora/core/error.h"

namespace kinora::checkpoint {

Arrays buffers_of(nn::Module& model) {
  Arrays buffers;
  for (const auto& [path, buffer] : model.named_buffers()) {
    buffers[path] = buffer->to(at::kCPU, buffer->scalar_type(), false, /*copy=*/true).contiguous();
  }
  return buffers;
}

void restore_buffers(const Arrays& buffers, nn::Module& model) {
  const std::vector<nn::NamedBuffer> own = model.named_buffers();
  for (const auto& [path, buffer] : own) {
    const auto found = buffers.find(path);
    KINORA_CHECK(found == buffers.end() || found->second.sizes() == buffer->sizes(), kIo,
                 "[checkpoint] ", path, " must have shape ", buffer->sizes(), ", got ",
                 found->second.sizes(), ". Hint: model.* must be as when it was saved");
  }
  for (const auto& [path, buffer] : own) {
    if (const auto found = buffers.find(path); found != buffers.end()) {
      *buffer = found->second.to(buffer->device(), buffer->scalar_type());
    }
  }
}

}  // namespace kinora::checkpoint
