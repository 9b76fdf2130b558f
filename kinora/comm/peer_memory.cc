#include "kinora/comm/peer_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/peers.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::comm {
namespace {

constexpr int64_t kFlagBytes = 4096;  // before the buffer, which then begins as aligned
constexpr int64_t kGrain = int64_t{2} << 20;
static_assert(sizeof(kernels::cuda::PeerFlags) <= kFlagBytes);

/// Names the machine and its boot: only there do IPC handles mean something.
std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  std::getline(file, identity);
  return identity;
}

bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  KINORA_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Device memory that is all zero, or null; torch's unused memory goes first.
void* zeros_on_device(int64_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    c10::cuda::CUDACachingAllocator::emptyCache();
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
  }
  KINORA_CUDA_CHECK(cudaMemset(memory, 0, bytes));
  KINORA_CUDA_CHECK(cudaDeviceSynchronize());
  return memory;
}

int64_t numel_of(at::IntArrayRef shape, int64_t first, int64_t last) {
  int64_t product = 1;
  for (int64_t dim = first; dim < last; ++dim) {
    product *= shape[dim];
  }
  return product;
}

/// Elements of dims [first, last) of x.
int64_t product(const at::Tensor& x, int64_t first, int64_t last) {
  return numel_of(x.sizes(), first, last);
}

/// Where the parts of contiguous x lie and go, all but the pointers.
kernels::cuda::PeerScatter scatter_of(const at::Tensor& x, int64_t split, int64_t joined,
                                      int64_t rank, int64_t size) {
  const int64_t first = std::min(split, joined);
  const int64_t last = std::max(split, joined);
  const int64_t between = product(x, first + 1, last);
  const int64_t behind = product(x, last + 1, x.dim()) * x.element_size();
  const int64_t part = x.size(split) / size;
  const int64_t own = x.size(joined);
  kernels::cuda::PeerScatter scatter;
  scatter.rank = static_cast<int>(rank);
  scatter.size = static_cast<int>(size);
  scatter.outer = product(x, 0, first);
  scatter.source_outer = size * part * between * own * behind;
  scatter.target_outer = scatter.source_outer;
  if (split < joined) {  // [outer, W part, between, own, behind] to [.., part, between, W own, ..]
    scatter.rows = part * between;
    scatter.run = own * behind;
    scatter.source_part = scatter.rows * scatter.run;
    scatter.source_row = scatter.run;
    scatter.target_part = scatter.run;
    scatter.target_row = size * scatter.run;
  } else {  // [outer, own, between, W part, behind] to [outer, W own, between, part, behind]
    scatter.rows = own * between;
    scatter.run = part * behind;
    scatter.source_part = scatter.run;
    scatter.source_row = size * scatter.run;
    scatter.target_part = scatter.rows * scatter.run;
    scatter.target_row = scatter.run;
  }
  return scatter;
}

std::vector<int64_t> shape_behind(const at::Tensor& x, int64_t split, int64_t joined,
                                  int64_t ranks) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[split] /= ranks;
  shape[joined] *= ranks;
  return shape;
}

}  // namespace

/// One piece of memory on every rank: PeerFlags, then the buffer of two halves.
struct PeerMemory::Piece {
  explicit Piece(const Membership& membership) : rank(membership.rank), by_rank(membership.size) {}
  ~Piece() {
    close_peers();
    free_own();
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  void close_peers() {
    for (int64_t peer = 0; peer < static_cast<int64_t>(by_rank.size()); ++peer) {
      if (peer != rank && by_rank[peer] != nullptr) {
        (void)cudaIpcCloseMemHandle(by_rank[peer]);
        by_rank[peer] = nullptr;
      }
    }
  }

  void free_own() {
    (void)cudaFree(by_rank[rank]);
    by_rank[rank] = nullptr;
  }

  [[nodiscard]] void* buffer(int64_t of_rank) const {
    return static_cast<char*>(by_rank[of_rank]) + kFlagBytes;
  }

  const int64_t rank;
  int64_t capacity = 0;  // of a half, in bytes
  std::vector<void*> by_rank;
};

PeerMemory::PeerMemory(const Membership& membership, at::Device device)
    : membership_(membership), device_(device) {
  unavailable_ = membership.size > kernels::cuda::kMaxPeers || !kernels::cuda::has_cuda_kernels();
}

PeerMemory::~PeerMemory() = default;

bool PeerMemory::reserve(int64_t bytes) {
  if (unavailable_ || (!pieces_.empty() && bytes <= pieces_.back()->capacity)) {
    return !unavailable_;
  }
  const c10::cuda::CUDAGuard guard(device_);
  if (is_recording(c10::cuda::getCurrentCUDAStream())) {
    return false;
  }
  try {
    unavailable_ = !add_piece(round_up(bytes, kGrain));
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kComm, "[comm] rank ", membership_.rank, " of ", membership_.size,
                " waited for the others' GPU memory: ", first_line(error),
                ". Hint: a rank that died or hangs says why in its own log.");
  }
  if (unavailable_ && membership_.rank == 0) {
    log_info(
        "[comm] these GPUs cannot write to each other's memory: all-to-alls are packed, and these "
        "and sums go through NCCL");
  }
  return !unavailable_;
}

int64_t PeerMemory::begin_call(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  KINORA_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
  const bool is_recorded = status == cudaStreamCaptureStatusActive;
  // Calls write to the halves by turns, so that who has come to this call's end of the one between
  // has read what the last one in this half brought. Nobody knows what replays come between calls
  // that are not of one recording: then all wait for each other first.
  if (!is_recorded || id != recording_) {
    wait_for_all(stream);
  }
  recording_ = is_recorded ? id : 0;
  return num_calls_++ % 2 * pieces_.back()->capacity;
}

void PeerMemory::wait_for_all(cudaStream_t stream) const {
  kernels::cuda::PeerBarrier barrier;
  barrier.rank = static_cast<int>(membership_.rank);
  barrier.size = static_cast<int>(membership_.size);
  for (int64_t peer = 0; peer < membership_.size; ++peer) {
    barrier.flags[peer] = static_cast<kernels::cuda::PeerFlags*>(pieces_.back()->by_rank[peer]);
  }
  KINORA_CUDA_CHECK(kernels::cuda::peer_barrier(barrier, stream));
}

void PeerMemory::store(kernels::cuda::PeerScatter scatter, const void* from, int64_t offset,
                       cudaStream_t stream) const {
  scatter.source = from;
  for (int64_t peer = 0; peer < membership_.size; ++peer) {
    scatter.targets[peer] = static_cast<char*>(pieces_.back()->buffer(peer)) + offset;
  }
  KINORA_CUDA_CHECK(kernels::cuda::peer_scatter(scatter, stream));
}

at::Tensor PeerMemory::reshard(const at::Tensor& x, int64_t split, int64_t joined) {
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const at::Tensor whole = x.contiguous();
  at::Tensor output =
      at::empty(shape_behind(whole, split, joined, membership_.size), whole.options());
  const int64_t half = begin_call(stream);
  store(scatter_of(whole, split, joined, membership_.rank, membership_.size),
        whole.const_data_ptr(), half, stream);
  wait_for_all(stream);
  KINORA_CUDA_CHECK(cudaMemcpyAsync(output.mutable_data_ptr(), own_memory(half), output.nbytes(),
                                    cudaMemcpyDeviceToDevice, stream));
  return output;
}

at::Tensor PeerMemory::reshard_together(const std::vector<at::Tensor>& parts, int64_t split,
                                        int64_t joined) {
  KINORA_CHECK(joined < split, kInternal, "[comm] parts are put together in the outer dim");
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  std::vector<at::Tensor> wholes;
  std::vector<int64_t> shape;  // of the result
  for (const at::Tensor& part : parts) {
    wholes.push_back(part.contiguous());
    const std::vector<int64_t> own = shape_behind(part, split, joined, membership_.size);
    if (shape.empty()) {
      shape = own;
    } else {
      shape[joined] += own[joined];
    }
  }
  const int64_t half = begin_call(stream);
  int64_t offset = 0;
  const int64_t element = parts.front().element_size();
  const int64_t behind = numel_of(shape, joined + 1, std::ssize(shape)) * element;
  for (const at::Tensor& whole : wholes) {
    kernels::cuda::PeerScatter scatter =
        scatter_of(whole, split, joined, membership_.rank, membership_.size);
    scatter.target_outer = shape[joined] * behind;
    store(scatter, whole.const_data_ptr(), half + offset, stream);
    offset += whole.size(joined) * membership_.size * behind;
  }
  wait_for_all(stream);
  return at::from_blob(own_memory(half), shape, parts.front().options());
}

std::vector<at::Tensor> PeerMemory::reshard_apart(const at::Tensor& whole,
                                                  const std::vector<int64_t>& sizes, int64_t split,
                                                  int64_t joined) {
  KINORA_CHECK(split < joined, kInternal, "[comm] parts are taken of the outer dim");
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const at::Tensor source = whole.contiguous();
  const int64_t behind = numel_of(source.sizes(), split + 1, source.dim()) * source.element_size();
  const int64_t half = begin_call(stream);
  const at::Tensor output =
      at::empty({source.numel()}, source.options());  // one part behind another
  std::vector<at::Tensor> results;
  int64_t from = 0;
  int64_t to = 0;
  for (const int64_t size : sizes) {
    const at::Tensor part = source.narrow(split, from, size);
    kernels::cuda::PeerScatter scatter =
        scatter_of(part, split, joined, membership_.rank, membership_.size);
    scatter.source_outer = source.size(split) * behind;
    store(scatter, part.const_data_ptr(), half + to * source.element_size(), stream);
    results.push_back(output.narrow(0, to, part.numel())
                          .view(shape_behind(part, split, joined, membership_.size)));
    from += size;
    to += part.numel();
  }
  wait_for_all(stream);
  KINORA_CUDA_CHECK(cudaMemcpyAsync(output.mutable_data_ptr(), own_memory(half), output.nbytes(),
                                    cudaMemcpyDeviceToDevice, stream));
  return results;
}

bool PeerMemory::takes(const at::Tensor& whole) const {
  return whole.numel() % (8 * membership_.size) == 0 &&
         reinterpret_cast<uintptr_t>(whole.const_data_ptr()) % 16 == 0;
}

void PeerMemory::send(const void* from, int64_t step, int64_t bytes, int64_t place, Means means,
                      cudaStream_t stream) const {
  if (means == Means::kStores) {
    kernels::cuda::PeerScatter scatter;
    scatter.rank = static_cast<int>(membership_.rank);
    scatter.size = static_cast<int>(membership_.size);
    scatter.skips_own = true;
    scatter.outer = 1;
    scatter.rows = 1;
    scatter.run = bytes;
    scatter.source_part = step;
    store(scatter, from, place, stream);
    return;
  }
  for (int64_t ahead = 1; ahead < membership_.size; ++ahead) {  // not all to the same at once
    const int64_t peer = (membership_.rank + ahead) % membership_.size;
    KINORA_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(pieces_.back()->buffer(peer)) + place,
                                      static_cast<const char*>(from) + peer * step, bytes,
                                      cudaMemcpyDeviceToDevice, stream));
  }
}

void PeerMemory::gather(const at::Tensor& output, const at::Tensor& input, Means means,
                        cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(device_);
  const auto bytes = static_cast<int64_t>(input.nbytes());
  auto* to = static_cast<char*>(output.mutable_data_ptr());
  const int64_t half = begin_call(stream);
  send(input.const_data_ptr(), 0, bytes, half + membership_.rank * bytes, means, stream);
  wait_for_all(stream);
  const auto copy = [&](int64_t first, int64_t end) {
    if (end > first) {
      KINORA_CUDA_CHECK(cudaMemcpyAsync(to + first * bytes, own_memory(half + first * bytes),
                                        (end - first) * bytes, cudaMemcpyDeviceToDevice, stream));
    }
  };
  copy(0, membership_.rank);
  copy(membership_.rank + 1, membership_.size);
  if (void* own = to + membership_.rank * bytes; own != input.const_data_ptr()) {
    KINORA_CUDA_CHECK(
        cudaMemcpyAsync(own, input.const_data_ptr(), bytes, cudaMemcpyDeviceToDevice, stream));
  }
}

void PeerMemory::scatter_sum(const at::Tensor& output, const at::Tensor& input, Means means,
                             cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(device_);
  const auto bytes = static_cast<int64_t>(output.nbytes());
  const auto* from = static_cast<const char*>(input.const_data_ptr());
  const int64_t half = begin_call(stream);
  send(from, bytes, bytes, half + membership_.rank * bytes, means, stream);
  wait_for_all(stream);
  kernels::cuda::PeerSum sum;
  sum.size = static_cast<int>(membership_.size);
  sum.count = output.numel();
  sum.type = dtype_of(output);
  for (int64_t rank = 0; rank < membership_.size; ++rank) {
    sum.parts[rank] =
        rank == membership_.rank ? from + rank * bytes : own_memory(half + rank * bytes);
  }
  sum.out = output.mutable_data_ptr();
  KINORA_CUDA_CHECK(kernels::cuda::peer_sum(sum, stream));
}

void PeerMemory::sum(const at::Tensor& tensor, Means means, cudaStream_t stream) {
  if (membership_.size == 2) {
    sum_of_two(tensor, means, stream);
    return;
  }
  const at::Tensor flat = tensor.view({-1});
  const int64_t count = flat.numel() / membership_.size;
  const at::Tensor own = flat.narrow(0, membership_.rank * count, count);
  scatter_sum(own, flat, means, stream);
  gather(flat, own, means, stream);
}

void PeerMemory::sum_of_two(const at::Tensor& tensor, Means means, cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(device_);
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const int64_t half = begin_call(stream);
  send(tensor.const_data_ptr(), 0, bytes, half, means, stream);
  wait_for_all(stream);
  kernels::cuda::PeerSum sum;
  sum.size = 2;
  sum.count = tensor.numel();
  sum.type = dtype_of(tensor);
  sum.parts[membership_.rank] = tensor.const_data_ptr();
  sum.parts[1 - membership_.rank] = own_memory(half);
  sum.out = tensor.mutable_data_ptr();
  KINORA_CUDA_CHECK(kernels::cuda::peer_sum(sum, stream));
}

void* PeerMemory::own_memory(int64_t offset) const {
  return static_cast<char*>(pieces_.back()->buffer(membership_.rank)) + offset;
}

std::vector<std::vector<uint8_t>> PeerMemory::gather(const std::vector<uint8_t>& own) {
  const std::string prefix = "peer_memory/" + std::to_string(num_gathers_++) + "/";
  membership_.store->set(prefix + std::to_string(membership_.rank), own);
  std::vector<std::vector<uint8_t>> all;
  for (int64_t rank = 0; rank < membership_.size; ++rank) {
    all.push_back(membership_.store->get(prefix + std::to_string(rank)));
  }
  return all;
}

bool PeerMemory::all_agree(bool own) {
  const std::vector<std::vector<uint8_t>> all = gather({static_cast<uint8_t>(own)});
  return std::all_of(all.begin(), all.end(),
                     [](const std::vector<uint8_t>& one) { return one.at(0) != 0; });
}

bool PeerMemory::add_piece(int64_t bytes) {
  auto piece = std::make_unique<Piece>(membership_);
  const std::string host = host_identity();
  cudaIpcMemHandle_t handle{};
  void*& own = piece->by_rank[membership_.rank];
  own = host.empty() ? nullptr : zeros_on_device(kFlagBytes + 2 * bytes);
  const bool made = own != nullptr && cudaIpcGetMemHandle(&handle, own) == cudaSuccess;
  (void)cudaGetLastError();
  if (!all_agree(made)) {
    return false;
  }
  if (!all_agree(open_peers(handle, host, piece.get()))) {
    piece->close_peers();
    (void)gather({});  // nobody has this rank's open any more
    return false;
  }
  piece->capacity = bytes;
  pieces_.push_back(std::move(piece));
  return true;
}

bool PeerMemory::open_peers(const cudaIpcMemHandle_t& own, const std::string& host, Piece* piece) {
  std::vector<uint8_t> message(sizeof(own) + host.size());
  std::memcpy(message.data(), &own, sizeof(own));
  std::memcpy(message.data() + sizeof(own), host.data(), host.size());
  const std::vector<std::vector<uint8_t>> messages = gather(message);
  for (int64_t peer = 0; peer < membership_.size; ++peer) {
    const std::vector<uint8_t>& from = messages[peer];
    if (peer == membership_.rank) {
      continue;
    }
    if (from.size() != message.size() ||
        std::memcmp(from.data() + sizeof(own), host.data(), host.size()) != 0) {
      return false;
    }
    cudaIpcMemHandle_t handle{};
    std::memcpy(&handle, from.data(), sizeof(handle));
    void* memory = nullptr;
    if (cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    piece->by_rank[peer] = memory;
  }
  return true;
}

}  // namespace kinora::comm
