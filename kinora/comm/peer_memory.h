#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/comm/transport.h"

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
  [[nodiscard]] at::Tensor reshard(const at::Tensor& x, int64_t split, int64_t joined) const;

 private:
  struct Piece;

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
};

}  // namespace kinora::comm
