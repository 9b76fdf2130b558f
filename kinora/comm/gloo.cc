// CPU tensors through c10d's Gloo. Only its operations that move bytes are used, and sums are ours:
// the parts of all ranks are exchanged and added in the order of the ranks, 16-bit types in fp32
// and rounded once. So all types work, and all_reduce gives the same bits as reduce_scatter
// followed by all_gather, whatever the number of elements. Gloo itself rounds 16-bit types at every
// addition, has no mean, and picks its order by the element's place.
//
// Between two ranks both directions of a link are to be busy at once. Gloo sends only after the
// other side has said that it receives, and says so on the same connection, behind what is on its
// way there. Its own all-to-all sends before it receives: then one side's data hold up the other's,
// and the link carries one direction after the other. So here a rank says what it receives first.
//
// A thread of the group runs collectives one after the other, since those made of several steps
// must not be interleaved differently on different ranks. Sends and receives do not queue: they
// would wait for each other in a circle.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <unordered_map>
#include <utility>

#include "kinora/comm/transport.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

constexpr uint32_t kTagNumbers = 0x3fffffffU;  // of a tag, which says what messages belong together
constexpr uint32_t kTrades = 0x40000000U;      // set in those of collectives

/// The memory of a contiguous tensor: [number of bytes].
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().view({-1}).view(at::kByte);
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

/// Reduces `parts` [W, n] over the ranks, in their order, into `output` [n].
void reduce_parts(const at::Tensor& parts, Reduction reduction, const at::Tensor& output) {
  const bool in_fp32 = is_half(parts) && reduction != Reduction::kMax;
  at::Tensor sum = in_fp32 ? parts[0].to(at::kFloat) : parts[0];  // `parts` is scratch
  for (int64_t rank = 1; rank < parts.size(0); ++rank) {
    if (reduction == Reduction::kMax) {
      at::maximum_out(sum, sum, parts[rank]);
    } else {
      sum.add_(parts[rank]);
    }
  }
  if (reduction == Reduction::kMean) {
    sum.div_(parts.size(0));
  }
  output.copy_(sum);
}

/// The future of a queued collective.
class Queued : public Pending {
 public:
  explicit Queued(std::shared_future<void> done) : done_(std::move(done)) {}
  void wait() override { done_.get(); }
  [[nodiscard]] bool is_done() const override {
    return done_.wait_for(milliseconds(0)) == std::future_status::ready;
  }

 private:
  std::shared_future<void> done_;
};

/// A send or receive under way, and its tensor.
class PointToPoint : public Pending {
 public:
  PointToPoint(Call call, C10dWork work, at::Tensor bytes, milliseconds timeout)
      : call_(std::move(call)),
        work_(std::move(work)),
        bytes_(std::move(bytes)),
        timeout_(timeout) {}

  void wait() override {
    if (!failure_.empty()) {
      throw_failed(call_, failure_);
    }
    if (done_) {
      return;
    }
    try {
      done_ = work_->wait(timeout_);
      failure_ = done_ ? "" : "it was aborted";
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
    if (!failure_.empty()) {
      throw_failed(call_, failure_);
    }
  }

  [[nodiscard]] bool is_done() const override { return work_->isCompleted(); }

 private:
  const Call call_;
  const C10dWork work_;
  const at::Tensor bytes_;
  const milliseconds timeout_;
  bool done_ = false;
  std::string failure_;
};

/// Two at once.
class Both : public Pending {
 public:
  Both(Work first, Work second) : first_(std::move(first)), second_(std::move(second)) {}

  void wait() override {
    first_.wait();
    second_.wait();
  }
  [[nodiscard]] bool is_done() const override { return first_.is_done() && second_.is_done(); }

 private:
  const Work first_;
  const Work second_;
};

class Gloo : public HostTransport {
 public:
  explicit Gloo(const Membership& membership)
      : rank_(membership.rank), size_(membership.size), timeout_(membership.timeout) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->threads = 1;
    if (!membership.address.empty() && std::getenv("GLOO_SOCKET_IFNAME") == nullptr) {
      options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(membership.address)};
    } else {
      options->devices = c10d::ProcessGroupGloo::Options::create_default(timeout_)->devices;
    }
    backend_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        membership.store, static_cast<int>(membership.rank), static_cast<int>(size_), options);
    // A rank that is through with the group at once closes its connections, and others may still be
    // making theirs.
    c10d::BarrierOptions all_connected;
    all_connected.timeout = timeout_;
    finish([&] { return backend_->barrier(all_connected); });
    thread_ = std::thread([this] { run_queue(); });
  }

  /// Runs what is queued: others may wait for this rank's part of it.
  ~Gloo() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Gloo(const Gloo&) = delete;
  Gloo& operator=(const Gloo&) = delete;

  Work all_reduce(const Call& call, const at::Tensor& tensor, Reduction reduction,
                  bool /*async*/) override {
    return enqueue(call, [this, tensor, reduction](Clock::time_point deadline) {
      // Equal parts, the last ones filled up with what nobody reads.
      const int64_t count = tensor.numel();
      const int64_t part = ceil_div(count, size_);
      const at::Tensor flat = tensor.detach().view({-1});
      at::Tensor padded = flat;
      if (part * size_ != count) {
        padded = at::empty({part * size_}, tensor.options());
        padded.narrow(0, 0, count).copy_(flat);
        padded.narrow(0, count, part * size_ - count).zero_();
      }
      const at::Tensor parts = at::empty({size_, part}, tensor.options());
      exchange(parts, padded, deadline);
      const at::Tensor mine = at::empty({part}, tensor.options());
      reduce_parts(parts, reduction, mine);
      gather(padded, mine, deadline);
      if (!padded.is_same(flat)) {
        flat.copy_(padded.narrow(0, 0, count));
      }
    });
  }

  Work all_gather(const Call& call, const at::Tensor& output, const at::Tensor& input,
                  bool /*async*/) override {
    return enqueue(call, [this, output, input](Clock::time_point deadline) {
      // A part of the output is copied out, since Gloo would copy it onto itself.
      const bool in_place = input.is_alias_of(output);
      gather(output, in_place ? input.clone() : input, deadline);
    });
  }

  Work reduce_scatter(const Call& call, const at::Tensor& output, const at::Tensor& input,
                      Reduction reduction, bool /*async*/) override {
    return enqueue(call, [this, output, input, reduction](Clock::time_point deadline) {
      const at::Tensor parts = at::empty({size_, output.numel()}, output.options());
      exchange(parts, input, deadline);
      reduce_parts(parts, reduction, output.detach().view({-1}));
    });
  }

  Work all_to_all(const Call& call, const at::Tensor& output, const at::Tensor& input,
                  bool /*async*/) override {
    return enqueue(call, [this, output, input](Clock::time_point deadline) {
      exchange(output, input, deadline);
    });
  }

  Work broadcast(const Call& call, const at::Tensor& tensor, int64_t root,
                 bool /*async*/) override {
    return enqueue(call, [this, tensor, root](Clock::time_point deadline) {
      std::vector<at::Tensor> tensors = {bytes_of(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.timeout = left(deadline);
      finish([&] { return backend_->broadcast(tensors, options); });
    });
  }

  Work barrier(const Call& call) override {
    return enqueue(call, [this](Clock::time_point deadline) {
      c10d::BarrierOptions options;
      options.timeout = left(deadline);
      finish([&] { return backend_->barrier(options); });
    });
  }

  Work send(const Call& call, const at::Tensor& tensor, int64_t to) override {
    return point_to_point(call, tensor, sent_[to]++,
                          [&](std::vector<at::Tensor>& tensors, int tag) {
                            return backend_->send(tensors, static_cast<int>(to), tag);
                          });
  }

  Work receive(const Call& call, const at::Tensor& tensor, int64_t from) override {
    return point_to_point(call, tensor, received_[from]++,
                          [&](std::vector<at::Tensor>& tensors, int tag) {
                            return backend_->recv(tensors, static_cast<int>(from), tag);
                          });
  }

  Work exchange(const Call& call, const at::Tensor& output, int64_t from, const at::Tensor& input,
                int64_t to) override {
    Work receiving = receive(call, output, from);
    return Work(std::make_shared<Both>(std::move(receiving), send(call, input, to)));
  }

 private:
  using Steps = std::function<void(Clock::time_point deadline)>;
  struct Entry {
    Call call;
    Steps steps;
    std::promise<void> done;
  };

  Work enqueue(const Call& call, Steps steps) {
    std::shared_future<void> done;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({call, std::move(steps), {}});
      done = queue_.back().done.get_future().share();
    }
    changed_.notify_all();
    return Work(std::make_shared<Queued>(std::move(done)));
  }

  void run_queue() {
    const at::NoGradGuard no_grad;
    std::string failure;  // of the first that failed: the ranks' queues differ from then on
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      Entry entry = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      try {
        if (!failure.empty()) {
          throw_failed(entry.call, "an earlier one did: " + failure);
        }
        try {
          entry.steps(Clock::now() + timeout_);
        } catch (const std::exception& error) {
          failure = error.what();
          throw_failed(entry.call, failure);
        }
        // The tensors are the caller's alone again before it goes on.
        entry.steps = nullptr;
        entry.done.set_value();
      } catch (const Error&) {
        entry.steps = nullptr;
        entry.done.set_exception(std::current_exception());
      }
    }
  }

  [[nodiscard]] milliseconds left(Clock::time_point deadline) const {
    const auto duration = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    return std::max(duration, milliseconds(1));
  }

  /// Starts one of c10d's operations, whose counters only one thread may touch, and waits for it.
  template <typename Start>
  void finish(const Start& start) {
    C10dWork work;
    {
      const std::lock_guard lock(backend_mutex_);
      work = start();
    }
    work->wait();  // each option carries its time
  }

  /// Part r of `input` goes to rank r, part r of `output` comes from there.
  void exchange(const at::Tensor& output, const at::Tensor& input, Clock::time_point deadline) {
    const at::Tensor to = bytes_of(output).view({size_, -1});
    const at::Tensor from = bytes_of(input).view({size_, -1});
    trade(
        to, [&](int64_t rank) { return from[rank]; }, deadline);
  }

  void gather(const at::Tensor& output, const at::Tensor& input, Clock::time_point deadline) {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    if (size_ == 2) {  // of more ranks Gloo makes a ring, whose links have one direction each
      trade(
          to.view({size_, -1}), [&](int64_t) { return from; }, deadline);
      return;
    }
    c10d::AllgatherOptions options;
    options.timeout = left(deadline);
    finish([&] { return backend_->_allgather_base(to, from, options); });
  }

  /// part_for(r) goes to each other rank r; `output[r]` comes from there, its own part too.
  template <typename PartFor>
  void trade(const at::Tensor& output, const PartFor& part_for, Clock::time_point deadline) {
    const auto tag = static_cast<int>(kTrades | (num_trades_++ & kTagNumbers));
    std::vector<C10dWork> works;
    {
      const std::lock_guard lock(backend_mutex_);
      for (int64_t i = 1; i < size_; ++i) {
        const int64_t from = (rank_ + size_ - i) % size_;
        std::vector<at::Tensor> part = {output[from]};
        works.push_back(backend_->recv(part, static_cast<int>(from), tag));
      }
      for (int64_t i = 1; i < size_; ++i) {
        const int64_t to = (rank_ + i) % size_;
        std::vector<at::Tensor> part = {part_for(to)};
        works.push_back(backend_->send(part, static_cast<int>(to), tag));
      }
    }
    output[rank_].copy_(part_for(rank_));
    for (const C10dWork& work : works) {
      if (!work->wait(left(deadline))) {
        throw_error(ErrorKind::kComm, "it was aborted");
      }
    }
  }

  /// The tag is the number of the message between the two ranks, so that they meet in order.
  template <typename Start>
  Work point_to_point(const Call& call, const at::Tensor& tensor, uint32_t number,
                      const Start& start) {
    const at::Tensor bytes = bytes_of(tensor);
    std::vector<at::Tensor> tensors = {bytes};
    C10dWork work;
    try {
      const std::lock_guard lock(backend_mutex_);
      work = start(tensors, static_cast<int>(number & kTagNumbers));
    } catch (const std::exception& error) {
      throw_failed(call, error.what());
    }
    return Work(std::make_shared<PointToPoint>(call, std::move(work), bytes, timeout_));
  }

  const int64_t rank_;
  const int64_t size_;
  const milliseconds timeout_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
  std::mutex backend_mutex_;
  uint32_t num_trades_ = 0;  // of the thread
  std::unordered_map<int64_t, uint32_t> sent_;
  std::unordered_map<int64_t, uint32_t> received_;

  std::mutex mutex_;  // of queue_ and stop_
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<HostTransport> make_gloo(const Membership& membership) {
  try {
    return std::make_unique<Gloo>(membership);
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kComm, "[comm] rank ", membership.rank, " of ", membership.size,
                " could not connect to the others: ", first_line(error),
                ". Hint: look for their own errors; on several hosts, GLOO_SOCKET_IFNAME names the "
                "network to use.");
  }
}

}  // namespace kinora::comm

/// Stands in for the C library's, which Gloo's thread calls. As long as another thread of its rank
/// holds the connection that has something to be read, that thread asks again without a pause; and
/// where all processors are taken, the other may be waiting for just this one. So who asks lets
/// those go first who wait.
extern "C" __attribute__((visibility("default"))) int epoll_wait(int descriptor,
                                                                 epoll_event* events, int most,
                                                                 int timeout) {
  ::sched_yield();
  return ::epoll_pwait(descriptor, events, most, timeout, nullptr);
}
