#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/comm/work.h"
#include "kinora/comm/world.h"

namespace kinora::comm {

/// How all_reduce and reduce_scatter combine. kMean is the sum over the group's size.
enum class Reduction { kSum, kMean, kMax };

/// What a group counts.
enum class Operation {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kBarrier,
  kSend,
  kReceive,
  kExchange,
};
inline constexpr size_t kNumOperations = 9;

/// "all_reduce", "all_gather", ...
[[nodiscard]] std::string_view to_string(Operation operation);

/// What this rank asked of a group. `bytes` are those of the larger tensor argument, the whole one:
/// all_reduce's and broadcast's tensor, all_gather's output, reduce_scatter's and all_to_all's
/// input, send's and receive's tensor, what exchange sends; 0 for a barrier. What crosses the wire
/// follows from it and the algorithm; a ring sends (W - 1) / W of it, twice for all_reduce.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
};

/// The last call on a group or one split off it, by whichever was last: what a rank that hangs is
/// asked first.
struct LastCall {
  Operation operation = Operation::kBarrier;
  int64_t bytes = 0;      ///< as in Traffic
  int64_t sequence = 0;   ///< in its group, from 1: the same on all its ranks
  std::string group;      ///< "rank 1 of 4"
  int64_t num_calls = 0;  ///< on all these groups so far
  bool done = true;       ///< see Work::is_done
};

struct RehearsedCall;  // rehearsal.h

/// Times after which a missing rank is an error.
struct GroupOptions {
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// Of one operation, which waits for ranks that are late, too.
  std::chrono::milliseconds operation_timeout = std::chrono::minutes(10);
};

/// Ranks that communicate. A value: copies are the same group. A group of one, such as the default,
/// needs no store, moves nothing to others and counts nothing.
///
/// All ranks of a group make the same calls in the same order (send and receive: those two ranks).
/// Tensors are contiguous, fp32, bf16, fp16, int64 or uint8 (other bytes, such as fp8, travel as
/// uint8; its sums and means, and means of int64, are refused), and of equal shape on all ranks;
/// empty ones are allowed. CPU tensors go through Gloo, CUDA tensors through NCCL.
///
/// The plain forms return when the result can be used: on the CPU when it is there; on a GPU it is
/// ordered on the current stream, without the host waiting. The `_async` forms return a Work to
/// wait for; until then no tensor of the call may be changed, nor results read. One thread at a
/// time may call a group.
///
/// Errors: kShape for unsuitable tensors; kComm, with operation and sequence number, if a rank dies
/// or is later than the timeout. After a kComm the group stays unusable. (On a GPU libtorch's
/// watchdog ends the process then, and says the same.)
class Group {
 public:
  /// A group of one.
  Group();

  [[nodiscard]] int64_t rank() const;  ///< group rank of this process
  [[nodiscard]] int64_t size() const;
  /// Ranks in the world, by group rank.
  [[nodiscard]] const std::vector<int64_t>& world_ranks() const;

  /// The group of this rank among `parts`, lists of group ranks of which each occurs exactly once.
  /// Every rank of this group calls it with the same lists. Group ranks follow the order in a list.
  [[nodiscard]] Group split(const std::vector<std::vector<int64_t>>& parts) const;

  /// Reduces `tensor` over all ranks, in place.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) const;
  [[nodiscard]] Work all_reduce_async(const at::Tensor& tensor,
                                      Reduction reduction = Reduction::kSum) const;

  /// From now on all_reduce, all_gather and reduce_scatter of 1 to 256 MiB, with kSum, go without
  /// NCCL between GPUs that reach each other's memory: by stores, the asynchronous ones by copies,
  /// which leave multiprocessors to what runs beside them. Twice the memory of the largest stays
  /// taken. All ranks call it.
  void use_peer_memory() const;

  /// `output` [W * n elements] = the inputs [n elements] by rank. `input` may be this rank's part
  /// of `output`.
  void all_gather(const at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Work all_gather_async(const at::Tensor& output, const at::Tensor& input) const;

  /// `output` [n elements] = this rank's part of the reduced `input` [W * n elements]. `output` may
  /// be that part of `input`.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      Reduction reduction = Reduction::kSum) const;
  [[nodiscard]] Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                          Reduction reduction = Reduction::kSum) const;

  /// Part r of `input` goes to rank r; part r of `output` comes from rank r. W equal parts, of
  /// memory that does not overlap.
  void all_to_all(const at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Work all_to_all_async(const at::Tensor& output, const at::Tensor& input) const;

  /// Changes the dim that is divided among the ranks: from a part of dim `joined` and all of
  /// `split` [.., W n, .., m, ..] to a part of `split` and all of `joined` [.., n, .., W m, ..].
  /// An all_to_all; GPUs that reach each other's memory store the parts where they belong, others
  /// pack them. kShape unless W divides `split`.
  [[nodiscard]] at::Tensor reshard(const at::Tensor& x, int64_t split, int64_t joined) const;

  /// What reshard() makes of each part, one behind the other in dim `joined`, in which alone the
  /// parts differ; joined < split. Ranks wait for each other once. On GPUs that reach each other's
  /// memory it lies there, and is good until this stream has made the group's call after the next.
  [[nodiscard]] at::Tensor reshard_together(const std::vector<at::Tensor>& parts, int64_t split,
                                            int64_t joined) const;
  /// The way back: what reshard() makes of the stretches of `sizes` of dim `split`; split < joined.
  [[nodiscard]] std::vector<at::Tensor> reshard_apart(const at::Tensor& whole,
                                                      const std::vector<int64_t>& sizes,
                                                      int64_t split, int64_t joined) const;

  /// `tensor` becomes that of group rank `root`.
  void broadcast(const at::Tensor& tensor, int64_t root) const;
  [[nodiscard]] Work broadcast_async(const at::Tensor& tensor, int64_t root) const;

  /// Returns on the host when every rank has come. Orders no GPU work.
  void barrier() const;
  [[nodiscard]] Work barrier_async() const;

  /// Sends `input` to one group rank and receives `output`, of as many elements, from one, perhaps
  /// another: the step of a ring. Meets the others' exchanges, or sends and receives on a CPU.
  void exchange(const at::Tensor& output, int64_t from, const at::Tensor& input, int64_t to) const;
  [[nodiscard]] Work exchange_async(const at::Tensor& output, int64_t from, const at::Tensor& input,
                                    int64_t to) const;

  /// To and from another group rank; the k-th send meets the k-th receive of the same pair. A send
  /// may wait for its receive, on a GPU together with all that is sent later: where ranks send to
  /// each other in a circle, they exchange.
  void send(const at::Tensor& tensor, int64_t to) const;
  [[nodiscard]] Work send_async(const at::Tensor& tensor, int64_t to) const;
  void receive(const at::Tensor& tensor, int64_t from) const;
  [[nodiscard]] Work receive_async(const at::Tensor& tensor, int64_t from) const;

  /// Since the last reset; copies of a group share it, splits count for themselves.
  [[nodiscard]] Traffic traffic(Operation operation) const;
  void reset_traffic() const;

  /// None if there was none, as on a group of one. Any thread may ask, at any time.
  [[nodiscard]] std::optional<LastCall> last_call() const;

  /// Of which it is a group: as given to connect(), also after a split. A group of one that nobody
  /// connected is a world of one.
  [[nodiscard]] const World& world() const;

 private:
  friend Group connect(const World& world, at::Device device, const GroupOptions& options);
  friend Group rehearse(const World& world, std::shared_ptr<std::vector<RehearsedCall>> calls);

  struct Impl;
  explicit Group(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

/// The group of all ranks, each of which calls this. `device` is what this rank computes on: a GPU
/// adds NCCL, made with its first operation. kCuda if it is a GPU in a build without CUDA; kComm,
/// naming the missing ranks, if not all come within `connect_timeout`.
[[nodiscard]] Group connect(const World& world, at::Device device,
                            const GroupOptions& options = {});

}  // namespace kinora::comm
