#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/comm/transport.h"
#include "kinora/kernels/cuda/peers.h"

namespace kinora::comm {

/// A piece of every rank's GPU that the other ranks of the group write to directly, where all of
/// them are GPUs of one host that reach each other (CUDA IPC). What is exchanged need not be packed
/// then: a kernel stores it where it belongs.
class PeerMemory {
 public:
  PeerMemory(const Membership& membership, at::Device device);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Whether there are `bytes` to be written to on every rank; makes them if need be, by a call of
  /// all ranks that waits for the device, but not while the current stream is being recorded. All
  /// ranks get the same answer. kComm where the others do not come.
  [[nodiscard]] bool reserve(int64_t bytes);

  /// Transport::reshard through the reserved bytes, at least those of x; on the current stream,
  /// with calls in the same order on all ranks.
  [[nodiscard]] at::Tensor reshard(const at::Tensor& x, int64_t split, int64_t joined);
  /// Group::reshard_together and reshard_apart, likewise.
  [[nodiscard]] at::Tensor reshard_together(const std::vector<at::Tensor>& parts, int64_t split,
                                            int64_t joined);
  [[nodiscard]] std::vector<at::Tensor> reshard_apart(const at::Tensor& whole,
                                                      const std::vector<int64_t>& sizes,
                                                      int64_t split, int64_t joined);

  /// How parts go to other GPUs: by stores of a kernel, which is faster, or by copies, which take
  /// no multiprocessor from what runs beside them.
  enum class Means : uint8_t { kStores, kCopies };

  /// Whether the three below take it: of so many elements, aligned to 16 bytes, each rank has a
  /// multiple of 8.
  [[nodiscard]] bool takes(const at::Tensor& whole) const;
  /// Group::all_gather, reduce_scatter and all_reduce with kSum, likewise, on `stream`. Sums are
  /// made once, in fp32.
  void gather(const at::Tensor& output, const at::Tensor& input, Means means, cudaStream_t stream);
  void scatter_sum(const at::Tensor& output, const at::Tensor& input, Means means,
                   cudaStream_t stream);
  void sum(const at::Tensor& tensor, Means means, cudaStream_t stream);

 private:
  struct Piece;

  /// Begins a call: which half of the buffer it writes to, in bytes from its start. Then come its
  /// stores, then wait_for_all().
  [[nodiscard]] int64_t begin_call(cudaStream_t stream);
  void wait_for_all(cudaStream_t stream) const;
  /// Own memory from byte `offset` of the buffer on.
  [[nodiscard]] void* own_memory(int64_t offset) const;
  /// Stores the parts of `from`, laid out as `scatter` says, `offset` bytes into everybody's
  /// buffer.
  void store(kernels::cuda::PeerScatter scatter, const void* from, int64_t offset,
             cudaStream_t stream) const;
  /// Sends `bytes` to byte `place` of everybody else's buffer: those at `from` + p * step to rank
  /// p.
  void send(const void* from, int64_t step, int64_t bytes, int64_t place, Means means,
            cudaStream_t stream) const;
  /// sum() of two ranks: each sends all that it has, which is as much as a part there and the sum
  /// of another back, in one exchange in place of two.
  void sum_of_two(const at::Tensor& tensor, Means means, cudaStream_t stream);

  /// What ranks tell each other; equal everywhere.
  [[nodiscard]] std::vector<std::vector<uint8_t>> gather(const std::vector<uint8_t>& own);
  [[nodiscard]] bool all_agree(bool own);
  [[nodiscard]] bool add_piece(int64_t bytes);
  [[nodiscard]] bool open_peers(const cudaIpcMemHandle_t& own, const std::string& host,
                                Piece* piece);

  Membership membership_;
  at::Device device_;
  int64_t num_gathers_ = 0;
  bool unavailable_ = false;
  std::vector<std::unique_ptr<Piece>> pieces_;  // the last is used; recorded calls use older ones
  int64_t num_calls_ = 0;
  unsigned long long recording_ = 0;  // of the last call; 0: it was not recorded
};

}  // namespace kinora::comm
