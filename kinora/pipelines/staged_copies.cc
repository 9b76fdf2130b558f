#include "kinora/pipelines/staged_copies.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <cstring>
#include <future>

namespace kinora::pipelines {
namespace {

constexpr int64_t kBufferBytes = int64_t{2} << 20;
/// As many reach the speed of PCIe 5 with 16 lanes.
constexpr int kMostThreads = 12;
constexpr size_t kBuffersOfThread = 2;

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// With an index.
at::Device whole(at::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

StagedCopies::Buffer::Buffer(at::Device device)
    : bytes(at::empty({kBufferBytes}, at::TensorOptions(at::kByte).pinned_memory(true))),
      read(device.type()) {}

StagedCopies::StagedCopies(at::Device device)
    : device_(whole(device)),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device_, /*priority=*/0)),
      num_threads_(static_cast<size_t>(std::clamp(at::get_num_threads(), 1, kMostThreads))) {
  for (size_t i = 0; i < kBuffersOfThread * num_threads_; ++i) {
    buffers_.emplace_back(device_);
  }
}

StagedCopies::~StagedCopies() {
  for (const Buffer& buffer : buffers_) {
    buffer.read.synchronize();
  }
}

void StagedCopies::wait_for_current_stream() {
  c10::Event so_far(device_.type());
  so_far.record(current_stream(device_));
  so_far.block(stream_);
}

void StagedCopies::let_current_stream_wait() {
  c10::Event so_far(device_.type());
  so_far.record(stream_);
  so_far.block(current_stream(device_));
}

void StagedCopies::run(const std::vector<Copy>& copies) {
  std::vector<Piece> pieces;
  for (const Copy& copy : copies) {
    const at::Tensor from = copy.from.view(-1);
    const at::Tensor to = copy.to.view(-1);
    const auto size = kBufferBytes / static_cast<int64_t>(to.element_size());
    for (int64_t begin = 0; begin < from.numel(); begin += size) {
      const int64_t count = std::min(size, from.numel() - begin);
      pieces.push_back({from.narrow(0, begin, count), to.narrow(0, begin, count)});
    }
  }
  std::vector<std::future<void>> threads;
  for (size_t i = 0; i < std::min(num_threads_, pieces.size()); ++i) {
    threads.push_back(
        std::async(std::launch::async, [this, &pieces, i] { copy_every(pieces, i); }));
  }
  for (const std::future<void>& thread : threads) {
    thread.wait();
  }
  for (std::future<void>& thread : threads) {
    thread.get();
  }
}

void StagedCopies::copy_every(const std::vector<Piece>& pieces, size_t first) {
  const c10::ParallelGuard alone(true);  // a conversion takes no further threads
  const c10::StreamGuard guard(stream_);
  size_t turn = 0;
  for (size_t i = first; i < pieces.size(); i += num_threads_, ++turn) {
    Buffer& buffer = buffers_[first * kBuffersOfThread + turn % kBuffersOfThread];
    const Piece& piece = pieces[i];
    const auto bytes = static_cast<int64_t>(piece.to.nbytes());
    const at::Tensor staged = buffer.bytes.narrow(0, 0, bytes).view(piece.to.scalar_type());
    buffer.read.synchronize();
    if (piece.from.scalar_type() == staged.scalar_type()) {
      std::memcpy(staged.data_ptr(), piece.from.const_data_ptr(), static_cast<size_t>(bytes));
    } else {
      staged.copy_(piece.from);
    }
    piece.to.copy_(staged, /*non_blocking=*/true);
    buffer.read.record(stream_);
  }
}

}  // namespace kinora::pipelines
