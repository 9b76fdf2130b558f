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
