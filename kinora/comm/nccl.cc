// CUDA tensors through c10d's NCCL. A plain call runs on the current stream; an asynchronous one on
// the communicator's own, after the current stream and, by wait(), before it.
// reshard() leaves NCCL out where the GPUs write to each other's memory, and so do sums and gathers
// where the group asks for it.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "kinora/comm/peer_memory.h"
#include "kinora/comm/transport.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::comm {
namespace {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp reduce_op(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return c10d::ReduceOp::SUM;
    case Reduction::kMean:
      return c10d::ReduceOp::AVG;
    case Reduction::kMax:
      return c10d::ReduceOp::MAX;
  }
  KINORA_UNREACHABLE("[nccl] unknown reduction");
}

class Enqueued : public Pending {
 public:
  Enqueued(Call call, C10dWork work) : call_(std::move(call)), work_(std::move(work)) {}

  void wait() override {
    try {
      work_->wait();
    } catch (const std::exception& error) {
      throw_failed(call_, error.what());
    }
  }

 private:
  const Call call_;
  const C10dWork work_;
};

/// What was begun on another stream.
class Beside : public Pending {
 public:
  explicit Beside(at::cuda::CUDAEvent done) : done_(std::move(done)) {}

  void wait() override { done_.block(c10::cuda::getCurrentCUDAStream()); }

 private:
  at::cuda::CUDAEvent done_;
};

class Nccl : public Transport {
 public:
  Nccl(const Membership& membership, at::Device device) : peers_(membership, device) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = membership.timeout;
    backend_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        membership.store, static_cast<int>(membership.rank), static_cast<int>(membership.size),
        options);
    backend_->setBoundDeviceId(device);
  }

  /// Normally finishes what runs; after an error, when that may never end, drops it.
  ~Nccl() override {
    try {
      if (failed_ || std::uncaught_exceptions() > 0) {
        backend_->abort();
      } else {
        backend_->shutdown();
      }
    } catch (const std::exception& error) {
      log_warn("[comm] NCCL could not end: ", error.what());
    }
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  void use_peer_memory() override { uses_peers_ = true; }

  Work all_reduce(const Call& call, const at::Tensor& tensor, Reduction reduction,
                  bool async) override {
    if (by_peers(tensor, reduction)) {
      return run(async,
                 [&](Means means, cudaStream_t stream) { peers_.sum(tensor, means, stream); });
    }
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(reduction);
    options.asyncOp = async;
    std::vector<at::Tensor> tensors = {tensor.detach()};
    return start(call, [&] { return backend_->allreduce(tensors, options); });
  }

  Work all_gather(const Call& call, const at::Tensor& output, const at::Tensor& input,
                  bool async) override {
    if (by_peers(output, Reduction::kSum)) {
      return run(async, [&](Means means, cudaStream_t stream) {
        peers_.gather(output, input, means, stream);
      });
    }
    c10d::AllgatherOptions options;
    options.asyncOp = async;
    at::Tensor to = flat(output);
    at::Tensor from = flat(input);
    return start(call, [&] { return backend_->_allgather_base(to, from, options); });
  }

  Work reduce_scatter(const Call& call, const at::Tensor& output, const at::Tensor& input,
                      Reduction reduction, bool async) override {
    if (by_peers(input, reduction)) {
      return run(async, [&](Means means, cudaStream_t stream) {
        peers_.scatter_sum(output, input, means, stream);
      });
    }
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(reduction);
    options.asyncOp = async;
    at::Tensor to = flat(output);
    at::Tensor from = flat(input);
    return start(call, [&] { return backend_->_reduce_scatter_base(to, from, options); });
  }

  Work all_to_all(const Call& call, const at::Tensor& output, const at::Tensor& input,
                  bool async) override {
    c10d::AllToAllOptions options;
    options.asyncOp = async;
    at::Tensor to = flat(output);
    at::Tensor from = flat(input);
    std::vector<int64_t> equal;  // empty: equal parts
    return start(call, [&] { return backend_->alltoall_base(to, from, equal, equal, options); });
  }

  at::Tensor reshard(const Call& call, int64_t size, const at::Tensor& x, int64_t split,
                     int64_t joined) override {
    return peers_.reserve(static_cast<int64_t>(x.nbytes()))
               ? peers_.reshard(x, split, joined)
               : Transport::reshard(call, size, x, split, joined);
  }

  at::Tensor reshard_together(const Call& call, int64_t size, const std::vector<at::Tensor>& parts,
                              int64_t split, int64_t joined) override {
    int64_t bytes = 0;
    for (const at::Tensor& part : parts) {
      bytes += static_cast<int64_t>(part.nbytes());
    }
    return peers_.reserve(bytes) ? peers_.reshard_together(parts, split, joined)
                                 : Transport::reshard_together(call, size, parts, split, joined);
  }

  std::vector<at::Tensor> reshard_apart(const Call& call, int64_t size, const at::Tensor& whole,
                                        const std::vector<int64_t>& sizes, int64_t split,
                                        int64_t joined) override {
    return peers_.reserve(static_cast<int64_t>(whole.nbytes()))
               ? peers_.reshard_apart(whole, sizes, split, joined)
               : Transport::reshard_apart(call, size, whole, sizes, split, joined);
  }

  Work broadcast(const Call& call, const at::Tensor& tensor, int64_t root, bool async) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.asyncOp = async;
    std::vector<at::Tensor> tensors = {tensor.detach()};
    return start(call, [&] { return backend_->broadcast(tensors, options); });
  }

  Work send(const Call& call, const at::Tensor& tensor, int64_t to) override {
    std::vector<at::Tensor> tensors = {tensor.detach()};
    return start(call, [&] { return backend_->send(tensors, static_cast<int>(to), 0); });
  }

  Work receive(const Call& call, const at::Tensor& tensor, int64_t from) override {
    std::vector<at::Tensor> tensors = {tensor.detach()};
    return start(call, [&] { return backend_->recv(tensors, static_cast<int>(from), 0); });
  }

  Work exchange(const Call& call, const at::Tensor& output, int64_t from, const at::Tensor& input,
                int64_t to) override {
    std::vector<at::Tensor> sent = {input.detach()};
    std::vector<at::Tensor> received = {output.detach()};
    // Both in one NCCL group, of which neither waits for the other.
    return start(call, [&] {
      backend_->startCoalescing();
      backend_->send(sent, static_cast<int>(to), 0);
      backend_->recv(received, static_cast<int>(from), 0);
      return backend_->endCoalescing();
    });
  }

 private:
  using Means = PeerMemory::Means;

  static at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({-1}); }

  /// Whether peers do it without NCCL, of a call whose whole tensor this is.
  [[nodiscard]] bool by_peers(const at::Tensor& whole, Reduction reduction) {
    constexpr int64_t kLeast = int64_t{1} << 20;
    constexpr int64_t kMost = int64_t{256} << 20;
    const auto bytes = static_cast<int64_t>(whole.nbytes());
    return uses_peers_ && reduction == Reduction::kSum && bytes >= kLeast && bytes <= kMost &&
           whole.is_floating_point() && peers_.takes(whole) && peers_.reserve(bytes);
  }

  /// Runs `exchange` of peers on the current stream, or beside it.
  template <typename Exchange>
  Work run(bool async, const Exchange& exchange) {
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
    if (!async) {
      exchange(Means::kStores, current.stream());
      return {};
    }
    if (!beside_) {
      beside_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, current.device_index());
    }
    at::cuda::CUDAEvent begun;
    begun.record(current);
    begun.block(*beside_);
    exchange(Means::kCopies, beside_->stream());
    at::cuda::CUDAEvent done;
    done.record(*beside_);
    return Work(std::make_shared<Beside>(std::move(done)));
  }

  template <typename Start>
  Work start(const Call& call, const Start& start) {
    try {
      C10dWork work = start();
      // What runs on the current stream has no work to wait for.
      return work ? Work(std::make_shared<Enqueued>(call, std::move(work))) : Work();
    } catch (const std::exception& error) {
      failed_ = true;
      throw_failed(call, error.what());
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> backend_;
  PeerMemory peers_;
  bool uses_peers_ = false;
  std::optional<c10::cuda::CUDAStream> beside_;  // of the asynchronous ones
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_nccl(const Membership& membership, at::Device device) {
  return std::make_unique<Nccl>(membership, device);
}

}  // namespace kinora::comm
