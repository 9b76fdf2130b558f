#include "kinora/data/buffer_pool.h"

#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace kinora::data {

struct BufferPool::State {
  std::mutex mutex;
  std::vector<at::Tensor> free;
  int64_t num_allocated = 0;
};

BufferPool::BufferPool(std::vector<int64_t> shape, at::ScalarType type, bool pinned)
    : shape_(std::move(shape)), type_(type), pinned_(pinned), state_(std::make_shared<State>()) {}

at::Tensor BufferPool::take() {
  const auto options = at::TensorOptions().dtype(type_);
  if (pinned_) {
    return at::empty(shape_, options.pinned_memory(true));
  }
  const std::lock_guard<std::mutex> lock(state_->mutex);
  at::Tensor memory;
  if (state_->free.empty()) {
    memory = at::empty(shape_, options);
    ++state_->num_allocated;
  } else {
    memory = std::move(state_->free.back());
    state_->free.pop_back();
  }
  void* values = memory.mutable_data_ptr();
  auto give_back = [state = state_, memory = std::move(memory)](void* /*values*/) {
    const std::lock_guard<std::mutex> guard(state->mutex);
    state->free.push_back(memory);
  };
  return at::from_blob(values, shape_, give_back, options);
}

int64_t BufferPool::num_allocated() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->num_allocated;
}

}  // namespace kinora::data
