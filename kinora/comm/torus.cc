// The two levels of a torus.
//
// On a GPU the two groups are two NCCL communicators, each with a stream of its own. An
// asynchronous operation waits for what is on the current stream when it is called, so a chain
// (inside, then across) is built on a stream beside the caller's: the chain's waits hold up nobody
// else, and what comes later only waits for what it needs, since all that is independent is
// enqueued before the first wait. There are two such streams, taken in turn, so that the last
// pieces of one call overlap the first of the next. Everything is ordered by events, as the
// recording of a CUDA graph needs.
//
// On a CPU a chain runs in a thread, behind the chain before it.
#include "kinora/comm/torus.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <unordered_set>
#include <utility>

#include "kinora/comm/quantised.h"
#include "kinora/comm/transport.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::comm {
namespace {

// I ranks inside, A across, n elements of a part.

void wait_for(const std::vector<Work>& works) {
  for (const Work& work : works) {
    work.wait();
  }
}

/// A call's tensors, one-dimensional and apart from autograd.
struct Tensors {
  at::Tensor whole;  // [A * I * n]
  at::Tensor part;   // [n]
};

/// What a chain beside the caller's stream keeps until the caller's waits for it. Its memory came
/// from the caller's stream, to which it then goes back in order.
class Beside : public Pending {
 public:
  explicit Beside(std::vector<at::Tensor> kept)
      : done_(kept.front().device().type()), kept_(std::move(kept)) {}

  /// After the chain.
  void end(const c10::Stream& stream) { done_.record(stream); }

  void wait() override {
    done_.block(c10::impl::VirtualGuardImpl(done_.device_type()).getStream(done_.device()));
    kept_.clear();
  }
  [[nodiscard]] bool is_done() const override { return true; }

  /// Nobody has waited: the memory must not be given to others before the chain's end.
  ~Beside() override {
    if (!kept_.empty()) {
      try {
        wait();
      } catch (const std::exception& error) {
        log_warn("[torus] an operation could not end: ", error.what());
      }
    }
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  c10::Event done_;
  std::vector<at::Tensor> kept_;
};

/// A chain in a thread.
class InThread : public Pending {
 public:
  explicit InThread(std::shared_future<void> done) : done_(std::move(done)) {}
  void wait() override { done_.get(); }
  [[nodiscard]] bool is_done() const override {
    return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  std::shared_future<void> done_;
};

}  // namespace

struct Torus::Impl {
  Group inside;
  Group across;
  int64_t rank = 0;
  TorusOptions options;
  std::vector<c10::Stream> streams;  // beside the callers'; from the first use on a GPU
  size_t num_chains = 0;
  std::shared_future<void> last_chain;  // on a CPU; ends before the groups above do

  [[nodiscard]] int64_t size() const { return inside.size() * across.size(); }
  [[nodiscard]] bool is_one_level() const { return inside.size() == 1 || across.size() == 1; }
  [[nodiscard]] bool is_pipelined(const at::Tensor& part) const {
    return !options.fp8_across &&
           static_cast<int64_t>(part.nbytes()) >= options.min_pipelined_bytes;
  }

  [[nodiscard]] at::Tensor piece_of(const at::Tensor& whole, int64_t piece) const {
    const int64_t size = whole.numel() / across.size();
    return whole.narrow(0, piece * size, size);
  }
  [[nodiscard]] int64_t after() const { return (across.rank() + 1) % across.size(); }
  [[nodiscard]] int64_t before() const {
    return (across.rank() + across.size() - 1) % across.size();
  }

  /// What the Groups do not check, since they see pieces.
  [[nodiscard]] Tensors check(const char* operation, const at::Tensor& whole,
                              const at::Tensor& part) const {
    for (const at::Tensor& tensor : {whole, part}) {
      KINORA_CHECK(tensor.defined() && tensor.is_contiguous(), kShape, "[", operation,
                   "] tensors must be contiguous, got ",
                   tensor.defined() ? "one that is not." : "an undefined one.");
    }
    KINORA_CHECK(whole.numel() == size() * part.numel(), kShape, "[", operation,
                 "] the whole must have ", size(), " times the ", part.numel(),
                 " elements of a part, got ", whole.numel(), '.');
    return {whole.detach().view({-1}), part.detach().view({-1})};
  }

  [[nodiscard]] at::Tensor reduce_scratch(const Tensors& tensors) const {
    const int64_t rows = is_one_level() ? 0 : across.size();
    return at::empty({rows, tensors.part.numel()}, tensors.part.options());
  }
  [[nodiscard]] at::Tensor gather_scratch(const Tensors& tensors) const {
    const int64_t rows = is_one_level() || is_pipelined(tensors.part) ? 0 : across.size();
    return at::empty({rows, tensors.part.numel()}, tensors.part.options());
  }

  void reduce_across(const at::Tensor& output, const at::Tensor& input, Reduction reduction) const {
    if (options.fp8_across) {
      reduce_scatter_fp8(across, output, input, reduction);
    } else {
      across.reduce_scatter_async(output, input, reduction).wait();
    }
  }

  void gather_across(const at::Tensor& output, const at::Tensor& input) const {
    if (options.fp8_across) {
      all_gather_fp8(across, output, input);
    } else {
      across.all_gather_async(output, input).wait();
    }
  }

  void reduce_pieces(const at::Tensor& output, const at::Tensor& input, Reduction reduction,
                     const at::Tensor& sums) const;
  void reduce_in_ring(const at::Tensor& output, const at::Tensor& input, Reduction reduction,
                      const at::Tensor& sums) const;
  void gather_pieces(const at::Tensor& output, const at::Tensor& input,
                     const at::Tensor& parts) const;
  void gather_in_ring(const at::Tensor& output, const at::Tensor& input) const;

  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, Reduction reduction,
                      const at::Tensor& scratch) const;
  void all_gather(const at::Tensor& output, const at::Tensor& input,
                  const at::Tensor& scratch) const;

  /// On a CPU: what comes now must not meet the last chain within a group.
  void finish_chains() const {
    if (last_chain.valid()) {
      last_chain.wait();
    }
  }

  /// Runs `chain` on a stream beside the current one, or in a thread.
  template <typename Chain>
  Work beside(std::vector<at::Tensor> kept, const Chain& chain);
};

/// All pieces inside, then one step across.
void Torus::Impl::reduce_pieces(const at::Tensor& output, const at::Tensor& input,
                                Reduction reduction, const at::Tensor& sums) const {
  std::vector<Work> works;
  for (int64_t piece = 0; piece < across.size(); ++piece) {
    works.push_back(inside.reduce_scatter_async(sums[piece], piece_of(input, piece), reduction));
  }
  wait_for(works);
  reduce_across(output, sums.view({-1}), reduction);
}

/// Node a's own sum of piece a comes last: it begins with piece a - 1, which it sends on to node
/// a + 1 while it makes its sum of piece a - 2, and so on. What arrives is added to the next sum.
void Torus::Impl::reduce_in_ring(const at::Tensor& output, const at::Tensor& input,
                                 Reduction reduction, const at::Tensor& sums) const {
  const int64_t num_nodes = across.size();
  const at::Tensor arrived = sums[num_nodes - 1];
  const auto sum_of_step = [&](int64_t step) {
    return step == num_nodes - 1 ? output : sums[step];
  };
  std::vector<Work> works;
  for (int64_t step = 0; step < num_nodes; ++step) {
    const int64_t piece = (across.rank() + num_nodes - 1 - step) % num_nodes;
    works.push_back(
        inside.reduce_scatter_async(sum_of_step(step), piece_of(input, piece), reduction));
  }
  works.front().wait();
  for (int64_t step = 1; step < num_nodes; ++step) {
    const Work exchange = across.exchange_async(arrived, before(), sums[step - 1], after());
    works[static_cast<size_t>(step)].wait();
    exchange.wait();
    at::Tensor sum = sum_of_step(step);
    if (reduction == Reduction::kMax) {
      at::maximum_out(sum, sum, arrived);
    } else {
      sum.add_(arrived);
    }
  }
  if (reduction == Reduction::kMean) {  // so far of the nodes' means
    output.div_(num_nodes);
  }
}

/// One step across, then all pieces inside.
void Torus::Impl::gather_pieces(const at::Tensor& output, const at::Tensor& input,
                                const at::Tensor& parts) const {
  gather_across(parts.view({-1}), input);
  std::vector<Work> works;
  for (int64_t piece = 0; piece < across.size(); ++piece) {
    works.push_back(inside.all_gather_async(piece_of(output, piece), parts[piece]));
  }
  wait_for(works);
}

/// The part of piece a - 1, then that of a - 2, ..., arrives where it belongs, is sent on, and
/// gathered inside meanwhile. (Both only read it: an all-gather in place leaves its own part.)
void Torus::Impl::gather_in_ring(const at::Tensor& output, const at::Tensor& input) const {
  const int64_t num_nodes = across.size();
  std::vector<Work> works = {inside.all_gather_async(piece_of(output, across.rank()), input)};
  at::Tensor part = input;
  for (int64_t step = 1; step < num_nodes; ++step) {
    const at::Tensor piece = piece_of(output, (across.rank() + num_nodes - step) % num_nodes);
    const at::Tensor next = piece.narrow(0, inside.rank() * input.numel(), input.numel());
    across.exchange_async(next, before(), part, after()).wait();
    works.push_back(inside.all_gather_async(piece, next));
    part = next;
  }
  wait_for(works);
}

void Torus::Impl::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                 Reduction reduction, const at::Tensor& scratch) const {
  const at::NoGradGuard no_grad;
  if (across.size() == 1) {
    inside.reduce_scatter_async(output, input, reduction).wait();
  } else if (inside.size() == 1) {
    reduce_across(output, input, reduction);
  } else if (is_pipelined(output)) {
    reduce_in_ring(output, input, reduction, scratch);
  } else {
    reduce_pieces(output, input, reduction, scratch);
  }
}

void Torus::Impl::all_gather(const at::Tensor& output, const at::Tensor& input,
                             const at::Tensor& scratch) const {
  const at::NoGradGuard no_grad;
  if (across.size() == 1) {
    inside.all_gather_async(output, input).wait();
  } else if (inside.size() == 1) {
    gather_across(output, input);
  } else if (is_pipelined(input)) {
    gather_in_ring(output, input);
  } else {
    gather_pieces(output, input, scratch);
  }
}

template <typename Chain>
Work Torus::Impl::beside(std::vector<at::Tensor> kept, const Chain& chain) {
  const at::Device device = kept.front().device();
  if (!device.is_cuda()) {
    auto in_turn = [before = last_chain, mine = std::optional<Chain>(chain)]() mutable {
      if (before.valid()) {
        before.wait();
        before = {};
      }
      (*mine)();
      mine.reset();  // the tensors are the caller's alone again before it goes on
    };
    last_chain = std::async(std::launch::async, std::move(in_turn)).share();
    return Work(std::make_shared<InThread>(last_chain));
  }
  const c10::impl::VirtualGuardImpl backend(device.type());
  while (streams.size() < 2) {
    streams.push_back(backend.getStreamFromGlobalPool(device));
  }
  const c10::Stream stream = streams[num_chains++ % streams.size()];
  c10::Event begin(device.type());
  begin.record(backend.getStream(device));
  begin.block(stream);
  const auto pending = std::make_shared<Beside>(std::move(kept));
  {
    const c10::StreamGuard guard(stream);
    chain();
    pending->end(stream);
  }
  return Work(pending);
}

Torus::Torus() : impl_(std::make_shared<Impl>()) {}

Torus::Torus(const Group& group, int64_t ranks_inside, const TorusOptions& options)
    : impl_(std::make_shared<Impl>()) {
  KINORA_CHECK(ranks_inside > 0 && group.size() % ranks_inside == 0, kConfig, "[torus] the ",
               group.size(), " ranks must be a multiple of those inside a node, got ", ranks_inside,
               '.');
  impl_->rank = group.rank();
  impl_->options = options;
  if (ranks_inside == group.size()) {
    impl_->inside = group;
    return;
  }
  if (ranks_inside == 1) {
    impl_->across = group;
    return;
  }
  std::vector<std::vector<int64_t>> rows(group.size() / ranks_inside);
  std::vector<std::vector<int64_t>> columns(ranks_inside);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    rows[rank / ranks_inside].push_back(rank);
    columns[rank % ranks_inside].push_back(rank);
  }
  impl_->inside = group.split(rows);
  impl_->across = group.split(columns);
}

int64_t Torus::rank() const {
  return impl_->rank;
}

int64_t Torus::size() const {
  return impl_->size();
}

const Group& Torus::inside() const {
  return impl_->inside;
}

const Group& Torus::across() const {
  return impl_->across;
}

void Torus::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           Reduction reduction) const {
  const Tensors tensors = impl_->check("reduce_scatter", input, output);
  impl_->finish_chains();
  impl_->reduce_scatter(tensors.part, tensors.whole, reduction, impl_->reduce_scratch(tensors));
}

Work Torus::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                 Reduction reduction) const {
  if (impl_->across.size() == 1) {
    return impl_->inside.reduce_scatter_async(output, input, reduction);
  }
  const Tensors tensors = impl_->check("reduce_scatter", input, output);
  const at::Tensor scratch = impl_->reduce_scratch(tensors);
  return impl_->beside({tensors.part, tensors.whole, scratch},
                       [impl = impl_.get(), tensors, reduction, scratch] {
                         impl->reduce_scatter(tensors.part, tensors.whole, reduction, scratch);
                       });
}

void Torus::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  const Tensors tensors = impl_->check("all_gather", output, input);
  impl_->finish_chains();
  impl_->all_gather(tensors.whole, tensors.part, impl_->gather_scratch(tensors));
}

Work Torus::all_gather_async(const at::Tensor& output, const at::Tensor& input) const {
  if (impl_->across.size() == 1) {
    return impl_->inside.all_gather_async(output, input);
  }
  const Tensors tensors = impl_->check("all_gather", output, input);
  const at::Tensor scratch = impl_->gather_scratch(tensors);
  return impl_->beside({tensors.part, tensors.whole, scratch},
                       [impl = impl_.get(), tensors, scratch] {
                         impl->all_gather(tensors.whole, tensors.part, scratch);
                       });
}

int64_t ranks_inside(const std::vector<int64_t>& hosts) {
  const auto size = static_cast<int64_t>(hosts.size());
  const auto first_other =
      std::find_if(hosts.begin(), hosts.end(), [&](int64_t host) { return host != hosts.front(); });
  const int64_t inside = first_other - hosts.begin();
  if (size == 0 || size % inside != 0) {
    return size;
  }
  std::unordered_set<int64_t> seen;
  for (int64_t rank = 0; rank < size; ++rank) {
    const bool is_first = rank % inside == 0;
    const bool fits = is_first ? seen.insert(hosts[rank]).second : hosts[rank] == hosts[rank - 1];
    if (!fits) {
      return size;
    }
  }
  return inside;
}

Torus torus_of_hosts(const Group& group, const TorusOptions& options) {
  // A host is known by its first process.
  const at::Tensor mine = at::full({1}, group.world().rank - group.world().local_rank, at::kLong);
  const at::Tensor all = at::zeros({group.size()}, at::kLong);  // one host, if only rehearsed
  group.all_gather(all, mine);
  const int64_t* const hosts = all.const_data_ptr<int64_t>();
  return Torus(group, ranks_inside({hosts, hosts + group.size()}), options);
}

}  // namespace kinora::comm
