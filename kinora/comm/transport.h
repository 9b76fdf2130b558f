#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/core/dtype.h"

namespace c10d {
class Store;
}

/// What a Group is built on: one class for CPU tensors, one for CUDA tensors. Internal to the room;
/// arguments were checked by Group.
namespace kinora::comm {

/// By which the others connect to this rank: on one host the loopback, which needs neither a name
/// nor a way through a firewall. Across hosts its end of the way to the store; where that is a
/// loopback, as on the store's own host whose name many systems give 127.0.1.1, the address by
/// which other hosts reach the store. Empty where no host's way is known. All ranks call it, after
/// meet().
[[nodiscard]] std::string address_for_others(const World& world, c10d::Store& store);

/// Connects to the store of `world` (rank 0 makes it, unless it is hosted) and waits until every
/// rank has. kComm after `timeout`, with the ranks that are missing. For several ranks only.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> meet(const World& world,
                                                   std::chrono::milliseconds timeout);

/// A connection to the store of `world`; rank 0 keeps it too if asked (not where it is hosted).
/// kComm after `timeout`.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> connect_store(const World& world,
                                                            std::chrono::milliseconds timeout,
                                                            bool keep);

/// "kinora/attempt0": before every key of the world.
[[nodiscard]] std::string world_prefix(const World& world);

/// What libtorch reports spans lines with its stack; people need the first.
[[nodiscard]] std::string first_line(const std::exception& error);

/// Of fp32, bf16 or fp16.
[[nodiscard]] DType dtype_of(const at::Tensor& tensor);

/// What a Work stands for.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
  /// Any thread may ask. False only where the host would have to wait, which it never has to for a
  /// GPU.
  [[nodiscard]] virtual bool is_done() const { return true; }
};

/// One call on a group, for error messages.
struct Call {
  Operation operation;
  int64_t sequence;   ///< counts the group's calls, from 1
  std::string group;  ///< "rank 1 of 4"
};

/// kComm "[comm] all_reduce 17 on rank 1 of 4 failed: REASON".
[[noreturn]] void throw_failed(const Call& call, const std::string& reason);

/// Who meets where.
struct Membership {
  c10::intrusive_ptr<c10d::Store> store;  ///< of this group alone
  int64_t rank = 0;
  int64_t size = 1;
  std::string address;  ///< by which the others reach this rank; "": that of the host's name
  std::chrono::milliseconds timeout{0};
};

/// Collectives over one library. With `async` false the caller waits at once, so that an
/// implementation may use the current stream.
class Transport {
 public:
  virtual ~Transport() = default;
  /// As Group's, where there is such memory.
  virtual void use_peer_memory() {}
  virtual Work all_reduce(const Call& call, const at::Tensor& tensor, Reduction reduction,
                          bool async) = 0;
  virtual Work all_gather(const Call& call, const at::Tensor& output, const at::Tensor& input,
                          bool async) = 0;
  virtual Work reduce_scatter(const Call& call, const at::Tensor& output, const at::Tensor& input,
                              Reduction reduction, bool async) = 0;
  virtual Work all_to_all(const Call& call, const at::Tensor& output, const at::Tensor& input,
                          bool async) = 0;
  /// What comm::all_to_all(group, x, split, joined) returns; the caller waits at once. This one
  /// packs x, calls all_to_all and puts the parts in their places.
  [[nodiscard]] virtual at::Tensor reshard(const Call& call, int64_t size, const at::Tensor& x,
                                           int64_t split, int64_t joined);
  /// Group::reshard_together and reshard_apart, by reshard().
  [[nodiscard]] virtual at::Tensor reshard_together(const Call& call, int64_t size,
                                                    const std::vector<at::Tensor>& parts,
                                                    int64_t split, int64_t joined);
  [[nodiscard]] virtual std::vector<at::Tensor> reshard_apart(const Call& call, int64_t size,
                                                              const at::Tensor& whole,
                                                              const std::vector<int64_t>& sizes,
                                                              int64_t split, int64_t joined);
  virtual Work broadcast(const Call& call, const at::Tensor& tensor, int64_t root, bool async) = 0;
  virtual Work send(const Call& call, const at::Tensor& tensor, int64_t to) = 0;
  virtual Work receive(const Call& call, const at::Tensor& tensor, int64_t from) = 0;
  virtual Work exchange(const Call& call, const at::Tensor& output, int64_t from,
                        const at::Tensor& input, int64_t to) = 0;
};

/// One that hosts can wait for each other with.
class HostTransport : public Transport {
 public:
  virtual Work barrier(const Call& call) = 0;
};

/// CPU tensors. Connects to all ranks of the group at once.
[[nodiscard]] std::unique_ptr<HostTransport> make_gloo(const Membership& membership);

/// Tensors of any device, for rehearse().
[[nodiscard]] std::unique_ptr<HostTransport> make_rehearsal(
    const std::vector<int64_t>& world_ranks,
    const std::shared_ptr<std::vector<RehearsedCall>>& calls);

/// CUDA tensors on `device`; the communicator comes with the first operation. kCuda in a build
/// without CUDA.
[[nodiscard]] std::unique_ptr<Transport> make_nccl(const Membership& membership, at::Device device);

}  // namespace kinora::comm
