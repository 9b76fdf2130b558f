#include "kinora/checkpoint/staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "kinora/optim/disk_state.h"

namespace kinora::checkpoint {
namespace {

// Enough that checksums and copies of some hide behind the disk's work for others.
constexpr int kThreads = 4;

}  // namespace

StagingBuffer::StagingBuffer(at::Device device, const optim::Arena* arena)
    : arena_(arena),
      memory_(
          at::empty({kChunkBytes}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()))) {
  if (device.is_cuda()) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device, /*priority=*/0);
  }
}

void StagingBuffer::copy(const at::Tensor& to, const at::Tensor& from) {
  const c10::OptionalStreamGuard guard(stream_);
  to.copy_(from, /*non_blocking=*/true);
  if (stream_) {
    stream_->synchronize();
  }
}

bool StagingBuffer::is_on_disk(const at::Tensor& values) const {
  return arena_ != nullptr && arena_->disk() != nullptr && arena_->disk()->holds(values);
}

at::Tensor StagingBuffer::space_for(const at::Tensor& values, at::ScalarType type) {
  return values.is_cpu() && values.scalar_type() == type && !is_on_disk(values)
             ? values
             : memory_.view(type).narrow(0, 0, values.numel());
}

at::Tensor StagingBuffer::on_host(const at::Tensor& values) {
  at::Tensor host = space_for(values, values.scalar_type());
  if (is_on_disk(values)) {
    arena_->disk()->read(values, host.mutable_data_ptr());
  } else if (!host.is_same(values)) {
    copy(host, values);
  }
  return host;
}

void StagingBuffer::put(const at::Tensor& host, const at::Tensor& values) {
  if (is_on_disk(values)) {
    arena_->store(values, host);
  } else if (!host.is_same(values)) {
    copy(values, host);
  }
}

Staging::Staging(at::Device device, const optim::Arena* arena) {
  for (int i = 0; i < kThreads; ++i) {
    buffers_.emplace_back(device, arena);
  }
}

void Staging::for_each(int64_t count, const std::function<void(int64_t, StagingBuffer&)>& task) {
  std::mutex mutex;  // of the two below
  int64_t next = 0;
  std::exception_ptr error;
  const auto work = [&](StagingBuffer& buffer) {
    while (true) {
      int64_t mine = 0;
      {
        const std::lock_guard lock(mutex);
        if (next == count || error != nullptr) {
          return;
        }
        mine = next++;
      }
      try {
        task(mine, buffer);
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = error != nullptr ? error : std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const int64_t num_threads = std::min<int64_t>(count, kThreads);
    for (int64_t i = 1; i < num_threads; ++i) {
      threads.emplace_back([&work, &buffer = buffers_[i]] { work(buffer); });
    }
    work(buffers_[0]);
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

}  // namespace kinora::checkpoint
