#include "kinora/comm/group.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "kinora/comm/journal.h"
#include "kinora/comm/rehearsal.h"
#include "kinora/comm/transport.h"
#include "kinora/core/error.h"

namespace kinora::comm {
namespace {

int64_t num_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

bool is_floating(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

void check_tensor(std::string_view operation, const at::Tensor& tensor) {
  KINORA_CHECK(tensor.defined() && tensor.is_contiguous(), kShape, "[", operation,
               "] tensors must be contiguous, got ",
               tensor.defined() ? "one that is not." : "an undefined one.");
  const at::ScalarType type = tensor.scalar_type();
  KINORA_CHECK(is_floating(type) || type == at::kLong || type == at::kByte, kShape, "[", operation,
               "] tensors must be float32, bfloat16, float16, int64 or uint8, got ",
               at::toString(type), ". Hint: send other types as uint8, by Tensor::view.");
}

void check_reduction(std::string_view operation, const at::Tensor& tensor, Reduction reduction) {
  const at::ScalarType type = tensor.scalar_type();
  KINORA_CHECK(type != at::kByte || reduction == Reduction::kMax, kShape, "[", operation,
               "] uint8 stands for bytes, which have no sum or mean. Hint: exchange them and add "
               "what they stand for.");
  KINORA_CHECK(is_floating(type) || reduction != Reduction::kMean, kShape, "[", operation,
               "] a mean needs a floating type, got ", at::toString(type), '.');
}

/// `whole` has `num_parts` times the elements of `part`, of the same type, on the same device.
void check_pair(std::string_view operation, const at::Tensor& whole, const at::Tensor& part,
                int64_t num_parts) {
  check_tensor(operation, whole);
  check_tensor(operation, part);
  KINORA_CHECK(whole.scalar_type() == part.scalar_type() && whole.device() == part.device(), kShape,
               "[", operation, "] both tensors must have one type and device, got ",
               at::toString(whole.scalar_type()), " on ", whole.device(), " and ",
               at::toString(part.scalar_type()), " on ", part.device(), '.');
  KINORA_CHECK(whole.numel() == num_parts * part.numel(), kShape, "[", operation,
               "] the whole must have ", num_parts, " times the ", part.numel(),
               " elements of a part, got ", whole.numel(), '.');
}

/// What a group of one does: the other tensor is a copy, unless it is the same memory.
void copy_alone(const at::Tensor& output, const at::Tensor& input) {
  if (output.numel() > 0 && output.data_ptr() != input.data_ptr()) {
    output.detach().view({-1}).copy_(input.detach().view({-1}));
  }
}

}  // namespace

std::string_view to_string(Operation operation) {
  constexpr std::array<std::string_view, kNumOperations> kNames = {
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
      "barrier",    "send",       "receive",        "exchange"};
  return kNames[static_cast<size_t>(operation)];
}

void Work::wait() const {
  if (pending_ != nullptr) {
    pending_->wait();
  }
}

bool Work::is_done() const {
  return pending_ == nullptr || pending_->is_done();
}

void throw_failed(const Call& call, const std::string& reason) {
  // libtorch's texts go on with a stack.
  throw_error(ErrorKind::kComm, "[comm] ", to_string(call.operation), ' ', call.sequence, " on ",
              call.group, " failed: ", reason.substr(0, reason.find('\n')),
              ". Hint: a rank that died or hangs says why in its own log.");
}

struct Group::Impl {
  World world;
  int64_t rank = 0;
  std::vector<int64_t> world_ranks = {0};
  std::array<Traffic, kNumOperations> traffic;
  // The rest is for several ranks.
  Membership membership;
  at::Device device = at::kCPU;
  std::string name;  // "rank 1 of 4", for errors
  std::shared_ptr<Journal> journal = std::make_shared<Journal>();
  int64_t num_calls = 0;
  int64_t num_splits = 0;
  std::unique_ptr<HostTransport> cpu;
  std::unique_ptr<Transport> cuda;
  std::shared_ptr<RehearsedCalls> rehearsed;  // null unless calls are only noted, all by `cpu`

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(world_ranks.size()); }
  [[nodiscard]] bool alone() const { return size() == 1; }

  /// Becomes the group of all ranks.
  void of_world(const World& all) {
    world = all;
    rank = all.rank;
    world_ranks.resize(all.size);
    std::iota(world_ranks.begin(), world_ranks.end(), 0);
    name = "rank " + std::to_string(rank) + " of " + std::to_string(all.size);
  }

  void make_transports() {
    if (rehearsed != nullptr) {
      cpu = make_rehearsal(world_ranks, rehearsed);
      return;
    }
    cpu = make_gloo(membership);
    if (device.is_cuda()) {
      cuda = make_nccl(membership, device);
    }
  }

  [[nodiscard]] Transport& transport_of(const at::Tensor& tensor, Operation operation) const {
    if (tensor.device().is_cpu() || rehearsed != nullptr) {
      return *cpu;
    }
    KINORA_CHECK(cuda != nullptr && tensor.device() == device, kShape, "[", to_string(operation),
                 "] tensors of this group must be on the CPU or on ", device, ", got ",
                 tensor.device(), '.');
    return *cuda;
  }

  /// Counts one.
  Call call(Operation operation, int64_t bytes) {
    Traffic& counted = traffic[static_cast<size_t>(operation)];
    ++counted.calls;
    counted.bytes += bytes;
    Call call{operation, ++num_calls, name};
    journal->add(call, bytes);
    return call;
  }

  Work started(Work work) const {
    journal->set_pending(work.pending_);
    return work;
  }

  void check_peer(std::string_view operation, int64_t peer) const {
    KINORA_CHECK(peer >= 0 && peer < size() && peer != rank, kConfig, "[", operation,
                 "] needs another of the ", size(), " group ranks, got ", peer, " on group rank ",
                 rank, '.');
  }

  Work all_reduce(const at::Tensor& tensor, Reduction reduction, bool async);
  Work all_gather(const at::Tensor& output, const at::Tensor& input, bool async);
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, Reduction reduction,
                      bool async);
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, bool async);
  at::Tensor reshard(const at::Tensor& x, int64_t split, int64_t joined);
  void check_reshard(const at::Tensor& x, int64_t split, int64_t joined) const;
  Work broadcast(const at::Tensor& tensor, int64_t root, bool async);
};

Work Group::Impl::all_reduce(const at::Tensor& tensor, Reduction reduction, bool async) {
  check_tensor("all_reduce", tensor);
  check_reduction("all_reduce", tensor, reduction);
  if (alone()) {
    return {};
  }
  Transport& transport = transport_of(tensor, Operation::kAllReduce);
  const Call counted = call(Operation::kAllReduce, num_bytes(tensor));
  return tensor.numel() == 0 ? Work()
                             : started(transport.all_reduce(counted, tensor, reduction, async));
}

Work Group::Impl::all_gather(const at::Tensor& output, const at::Tensor& input, bool async) {
  check_pair("all_gather", output, input, size());
  if (alone()) {
    copy_alone(output, input);
    return {};
  }
  Transport& transport = transport_of(output, Operation::kAllGather);
  const Call counted = call(Operation::kAllGather, num_bytes(output));
  return output.numel() == 0 ? Work()
                             : started(transport.all_gather(counted, output, input, async));
}

Work Group::Impl::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                 Reduction reduction, bool async) {
  check_pair("reduce_scatter", input, output, size());
  check_reduction("reduce_scatter", input, reduction);
  if (alone()) {
    copy_alone(output, input);
    return {};
  }
  Transport& transport = transport_of(input, Operation::kReduceScatter);
  const Call counted = call(Operation::kReduceScatter, num_bytes(input));
  return input.numel() == 0
             ? Work()
             : started(transport.reduce_scatter(counted, output, input, reduction, async));
}

Work Group::Impl::all_to_all(const at::Tensor& output, const at::Tensor& input, bool async) {
  check_pair("all_to_all", output, input, 1);
  KINORA_CHECK(input.numel() % size() == 0, kShape, "[all_to_all] the ", input.numel(),
               " elements must divide into ", size(), " equal parts.");
  if (alone()) {
    copy_alone(output, input);
    return {};
  }
  Transport& transport = transport_of(input, Operation::kAllToAll);
  const Call counted = call(Operation::kAllToAll, num_bytes(input));
  return input.numel() == 0 ? Work() : started(transport.all_to_all(counted, output, input, async));
}

void Group::Impl::check_reshard(const at::Tensor& x, int64_t split, int64_t joined) const {
  KINORA_CHECK(x.size(split) % size() == 0 && split != joined, kShape, "[all_to_all] the ", size(),
               " ranks must divide dim ", split, " of ", x.sizes(),
               ", which must not be the joined one, ", joined, '.');
}

at::Tensor Group::Impl::reshard(const at::Tensor& x, int64_t split, int64_t joined) {
  check_reshard(x, split, joined);
  if (alone() || x.numel() == 0) {
    return x;
  }
  Transport& transport = transport_of(x, Operation::kAllToAll);
  return transport.reshard(call(Operation::kAllToAll, num_bytes(x)), size(), x.detach(), split,
                           joined);
}

Work Group::Impl::broadcast(const at::Tensor& tensor, int64_t root, bool async) {
  check_tensor("broadcast", tensor);
  KINORA_CHECK(root >= 0 && root < size(), kConfig, "[broadcast] root must be one of the ", size(),
               " group ranks, got ", root, '.');
  if (alone()) {
    return {};
  }
  Transport& transport = transport_of(tensor, Operation::kBroadcast);
  const Call counted = call(Operation::kBroadcast, num_bytes(tensor));
  return tensor.numel() == 0 ? Work() : started(transport.broadcast(counted, tensor, root, async));
}

Group::Group() : impl_(std::make_shared<Impl>()) {}

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

int64_t Group::rank() const {
  return impl_->rank;
}

int64_t Group::size() const {
  return impl_->size();
}

const std::vector<int64_t>& Group::world_ranks() const {
  return impl_->world_ranks;
}

Group Group::split(const std::vector<std::vector<int64_t>>& parts) const {
  std::vector<int64_t> times(size(), 0);
  int64_t mine = -1;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const int64_t member : parts[part]) {
      KINORA_CHECK(member >= 0 && member < size() && ++times[member] == 1, kConfig,
                   "[split] each of the ", size(), " group ranks must occur exactly once, got ",
                   member, member >= 0 && member < size() ? " twice." : ".");
      mine = member == rank() ? static_cast<int64_t>(part) : mine;
    }
  }
  const auto absent = std::find(times.begin(), times.end(), 0);
  KINORA_CHECK(absent == times.end(), kConfig, "[split] each of the ", size(),
               " group ranks must occur exactly once, but ", absent - times.begin(),
               " is in no part.");

  // Every rank counts every split, so equal keys are the same group; nobody waits for other parts.
  const int64_t number = impl_->num_splits++;
  const std::vector<int64_t>& members = parts[mine];
  auto impl = std::make_shared<Impl>();
  impl->world = impl_->world;
  impl->journal = impl_->journal;
  impl->world_ranks.clear();
  for (const int64_t member : members) {
    impl->world_ranks.push_back(world_ranks()[member]);
  }
  impl->rank = std::find(members.begin(), members.end(), rank()) - members.begin();
  if (impl->alone()) {
    return Group(std::move(impl));
  }
  impl->device = impl_->device;
  impl->rehearsed = impl_->rehearsed;
  impl->membership = impl_->membership;
  if (impl->rehearsed == nullptr) {
    impl->membership.store = c10::make_intrusive<c10d::PrefixStore>(
        "split" + std::to_string(number) + "/" + std::to_string(mine), impl_->membership.store);
  }
  impl->membership.rank = impl->rank;
  impl->membership.size = impl->size();
  impl->name = "rank " + std::to_string(impl->rank) + " of " + std::to_string(impl->size()) +
               " (world rank " + std::to_string(impl->world_ranks[impl->rank]) + ")";
  impl->make_transports();
  return Group(std::move(impl));
}

void Group::all_reduce(const at::Tensor& tensor, Reduction reduction) const {
  impl_->all_reduce(tensor, reduction, false).wait();
}

Work Group::all_reduce_async(const at::Tensor& tensor, Reduction reduction) const {
  return impl_->all_reduce(tensor, reduction, true);
}

void Group::use_peer_memory() const {
  if (impl_->cuda != nullptr) {
    impl_->cuda->use_peer_memory();
  }
}

void Group::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  impl_->all_gather(output, input, false).wait();
}

Work Group::all_gather_async(const at::Tensor& output, const at::Tensor& input) const {
  return impl_->all_gather(output, input, true);
}

void Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           Reduction reduction) const {
  impl_->reduce_scatter(output, input, reduction, false).wait();
}

Work Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                 Reduction reduction) const {
  return impl_->reduce_scatter(output, input, reduction, true);
}

void Group::all_to_all(const at::Tensor& output, const at::Tensor& input) const {
  impl_->all_to_all(output, input, false).wait();
}

Work Group::all_to_all_async(const at::Tensor& output, const at::Tensor& input) const {
  return impl_->all_to_all(output, input, true);
}

at::Tensor Group::reshard(const at::Tensor& x, int64_t split, int64_t joined) const {
  return impl_->reshard(x, split, joined);
}

at::Tensor Group::reshard_together(const std::vector<at::Tensor>& parts, int64_t split,
                                   int64_t joined) const {
  int64_t bytes = 0;
  for (const at::Tensor& part : parts) {
    impl_->check_reshard(part, split, joined);
    bytes += num_bytes(part);
  }
  if (size() == 1 || bytes == 0) {
    return at::cat(parts, joined);
  }
  Transport& transport = impl_->transport_of(parts.front(), Operation::kAllToAll);
  return transport.reshard_together(impl_->call(Operation::kAllToAll, bytes), size(), parts, split,
                                    joined);
}

std::vector<at::Tensor> Group::reshard_apart(const at::Tensor& whole,
                                             const std::vector<int64_t>& sizes, int64_t split,
                                             int64_t joined) const {
  for (const at::Tensor& part : whole.split_with_sizes(sizes, split)) {
    impl_->check_reshard(part, split, joined);
  }
  if (size() == 1 || whole.numel() == 0) {
    return whole.split_with_sizes(sizes, split);
  }
  Transport& transport = impl_->transport_of(whole, Operation::kAllToAll);
  return transport.reshard_apart(impl_->call(Operation::kAllToAll, num_bytes(whole)), size(), whole,
                                 sizes, split, joined);
}

void Group::broadcast(const at::Tensor& tensor, int64_t root) const {
  impl_->broadcast(tensor, root, false).wait();
}

Work Group::broadcast_async(const at::Tensor& tensor, int64_t root) const {
  return impl_->broadcast(tensor, root, true);
}

void Group::barrier() const {
  barrier_async().wait();
}

Work Group::barrier_async() const {
  if (impl_->alone()) {
    return {};
  }
  return impl_->started(impl_->cpu->barrier(impl_->call(Operation::kBarrier, 0)));
}

void Group::send(const at::Tensor& tensor, int64_t to) const {
  send_async(tensor, to).wait();
}

Work Group::send_async(const at::Tensor& tensor, int64_t to) const {
  check_tensor("send", tensor);
  impl_->check_peer("send", to);
  Transport& transport = impl_->transport_of(tensor, Operation::kSend);
  const Call counted = impl_->call(Operation::kSend, num_bytes(tensor));
  return tensor.numel() == 0 ? Work() : impl_->started(transport.send(counted, tensor, to));
}

void Group::receive(const at::Tensor& tensor, int64_t from) const {
  receive_async(tensor, from).wait();
}

Work Group::receive_async(const at::Tensor& tensor, int64_t from) const {
  check_tensor("receive", tensor);
  impl_->check_peer("receive", from);
  Transport& transport = impl_->transport_of(tensor, Operation::kReceive);
  const Call counted = impl_->call(Operation::kReceive, num_bytes(tensor));
  return tensor.numel() == 0 ? Work() : impl_->started(transport.receive(counted, tensor, from));
}

void Group::exchange(const at::Tensor& output, int64_t from, const at::Tensor& input,
                     int64_t to) const {
  exchange_async(output, from, input, to).wait();
}

Work Group::exchange_async(const at::Tensor& output, int64_t from, const at::Tensor& input,
                           int64_t to) const {
  check_pair("exchange", output, input, 1);
  if (impl_->alone() && from == 0 && to == 0) {
    copy_alone(output, input);
    return {};
  }
  impl_->check_peer("exchange", from);
  impl_->check_peer("exchange", to);
  Transport& transport = impl_->transport_of(input, Operation::kExchange);
  const Call counted = impl_->call(Operation::kExchange, num_bytes(input));
  return input.numel() == 0 ? Work()
                            : impl_->started(transport.exchange(counted, output, from, input, to));
}

Traffic Group::traffic(Operation operation) const {
  return impl_->traffic[static_cast<size_t>(operation)];
}

void Group::reset_traffic() const {
  impl_->traffic = {};
}

std::optional<LastCall> Group::last_call() const {
  return impl_->journal->last();
}

const World& Group::world() const {
  return impl_->world;
}

Group rehearse(const World& world, std::shared_ptr<RehearsedCalls> calls) {
  auto impl = std::make_shared<Group::Impl>();
  impl->of_world(world);
  impl->rehearsed = std::move(calls);
  impl->make_transports();
  return Group(std::move(impl));
}

Group connect(const World& world, at::Device device, const GroupOptions& options) {
  check_world(world);
  KINORA_CHECK(!device.is_cuda() || device.has_index(), kConfig,
               "[comm] a GPU must be given with its index, got ", device, '.');
  auto impl = std::make_shared<Group::Impl>();
  impl->of_world(world);
  impl->device = device;
  if (world.size == 1) {
    return Group(std::move(impl));
  }
  const auto store = meet(world, options.connect_timeout);
  impl->membership = {store, world.rank, world.size, address_for_others(world, *store),
                      options.operation_timeout};
  impl->make_transports();
  return Group(std::move(impl));
}

}  // namespace kinora::comm
