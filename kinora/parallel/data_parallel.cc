#include "kinora/parallel/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kinora/comm/transport.h"
#include "kinora/core/error.h"
#include "kinora/device/host_memory.h"
#include "kinora/ops/parameter.h"

namespace kinora::parallel {

using ops::BucketMoment;

namespace {

/// What has been given to a side stream up to a mark.
class OverLink : public comm::Pending {
 public:
  OverLink(std::shared_ptr<device::SideStream> link, size_t mark)
      : link_(std::move(link)), mark_(mark) {}
  void wait() override { link_->wait(mark_); }
  [[nodiscard]] bool is_done() const override { return true; }

 private:
  std::shared_ptr<device::SideStream> link_;
  size_t mark_;
};

}  // namespace

DataParallel::DataParallel(const optim::Arena& arena, const comm::Group& replicate,
                           device::Stopwatch& waiting, const DataParallelOptions& options)
    : arena_(arena),
      replicate_(replicate),
      torus_(
          comm::torus_of_hosts(arena.options().sharding.group, {.fp8_across = options.fp8_across})),
      exact_(options.fp8_across ? comm::torus_of_hosts(arena.options().sharding.group) : torus_),
      options_(options),
      lanes_(optim::kRingBuffers),
      waiting_(waiting) {
  KINORA_CHECK(options.reduce_type == at::kFloat || options.reduce_type == at::kBFloat16, kConfig,
               "[data_parallel] gradients are reduced in fp32 or bf16, got ", options.reduce_type);
  const std::vector<optim::Bucket>& buckets = arena.buckets();
  std::unordered_map<std::string, size_t> turns;
  for (const optim::Bucket& bucket : buckets) {
    whole_compute_.push_back(bucket.whole_compute.variable_data());
    std::vector<at::Tensor>& added = added_grads_.emplace_back();
    int64_t end = 0;  // of the slot before
    const auto add = [&](int64_t begin, int64_t stop) {
      if (begin < stop) {
        added.push_back(bucket.whole_grad.narrow(0, begin, stop - begin));
      }
    };
    for (const optim::Slot& slot : bucket.slots) {
      add(end, slot.offset);
      end = slot.offset + slot.numel;
      if (slot.shape.size() == 1) {
        add(slot.offset, end);
      }
    }
    add(end, bucket.numel);
    const bool takes_turns = !bucket.owns_compute || !bucket.owns_grad;
    const size_t turn = takes_turns ? turns[bucket.ring]++ : 0;
    turn_.push_back(turn % optim::kRingBuffers);
    grad_turn_.push_back(bucket.owns_grad ? 0 : turn % arena.gradient_buffers(bucket.ring));
    if (!bucket.owns_compute) {
      rings_[bucket.ring].resize(optim::kRingBuffers);
    }
  }
  if (std::ranges::any_of(buckets, &optim::Bucket::is_far)) {
    link_ = std::make_shared<device::SideStream>(arena.options().device, 2 * buckets.size());
  }
  gathering_.resize(buckets.size());
  is_reduced_.resize(buckets.size());
  first_use_.resize(buckets.size(), SIZE_MAX);
}

ops::BucketHook DataParallel::hook() {
  return [this](BucketMoment moment, int64_t bucket) {
    at_moment(moment, static_cast<size_t>(bucket));
  };
}

void DataParallel::begin_step() {
  const device::Lap lap(waiting_);
  if (options_.reads_before_passes) {
    refresh();
  }
}

void DataParallel::begin_pass(bool first, bool last) {
  KINORA_CHECK(!options_.update || (first && last), kConfig,
               "[data_parallel] updates in backward keep no gradients, which several micro-batches "
               "would add up. Hint: optim.in_backward=false, or a train.micro_batch that makes one "
               "a step");
  in_pass_ = true;
  is_first_ = first;
  is_last_ = last;
  next_in_order_ = 0;
  is_reduced_.assign(is_reduced_.size(), false);
  for (auto& [name, buffers] : rings_) {
    buffers.assign(buffers.size(), Resident());
  }
  if (first && arena_.options().sharding.divides()) {
    const at::NoGradGuard no_grad;
    for (const optim::Bucket& bucket : arena_.buckets()) {
      const bool overwritten = options_.overwrites_gradients && !bucket.ring.empty();
      if (bucket.owns_grad && !overwritten) {
        bucket.whole_grad.zero_();
      }
    }
    if (!options_.reads_before_passes) {
      gather_for_step();
    }
  }
  if (order_is_known_) {
    prefetch(order_.front());
  }
}

void DataParallel::begin_last_backward() {
  is_last_ = true;
  is_reduced_.assign(is_reduced_.size(), false);
}

void DataParallel::end_pass() {
  for (size_t i = 0; i < is_reduced_.size(); ++i) {
    if (!is_reduced_[i]) {
      reduce(i);
    }
  }
  {
    const device::Lap lap(waiting_);
    while (!reducing_.empty()) {
      finish_oldest();
    }
    for (const comm::Work& work : replicating_) {
      work.wait();
    }
  }
  replicating_.clear();
  // What nobody has used.
  for (std::optional<comm::Work>& work : gathering_) {
    wait(work);
  }
  for (auto& [name, buffers] : rings_) {
    for (Resident& resident : buffers) {
      wait(resident.arriving);
    }
  }
  order_is_known_ = !order_.empty();
  in_pass_ = false;
}

void DataParallel::add_over_samples(const at::Tensor& value) {
  const device::Lap lap(waiting_);
  shard_group().all_reduce(value);
  replicate_.all_reduce(value);
}

void DataParallel::take_largest(const at::Tensor& values) {
  const device::Lap lap(waiting_);
  shard_group().all_reduce(values, comm::Reduction::kMax);
  replicate_.all_reduce(values, comm::Reduction::kMax);
}

at::Tensor DataParallel::of_all_samples(const at::Tensor& values) const {
  at::Tensor gathered = values;
  for (const comm::Group* group : {&shard_group(), &replicate_}) {
    const at::Tensor part = gathered;
    gathered = at::empty({group->size() * part.numel()}, part.options());
    group->all_gather(gathered, part);
  }
  return gathered;
}

void DataParallel::refresh() {
  if (std::exchange(is_stale_, false)) {
    arena_.gather();
  }
}

void DataParallel::at_moment(BucketMoment moment, size_t bucket) {
  switch (moment) {
    case BucketMoment::kBeforeForward:
      return acquire(bucket);
    case BucketMoment::kAfterForward:
      return release(bucket);
    case BucketMoment::kBeforeBackward:
      if (!options_.gradients_apart) {
        acquire(bucket);
      }
      return make_grad_ready(bucket);
    case BucketMoment::kAfterBackward:
      if (!options_.gradients_apart) {
        release(bucket);
      }
      return reduce(bucket);
  }
  KINORA_UNREACHABLE("[data_parallel] unknown moment");
}

void DataParallel::gather_for_step() {
  is_stale_ = false;
  const std::vector<optim::Bucket>& buckets = arena_.buckets();
  const auto start = [&](size_t i) {
    gathering_[i] = torus_of(buckets[i]).all_gather_async(whole_compute_[i], buckets[i].compute);
  };
  // What is used all the time comes first, and everything waits for it; then the others, in order
  // of use once that is known.
  std::vector<size_t> others;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets[i].owns_compute) {
      continue;
    }
    if (buckets[i].ring.empty()) {
      start(i);
      wait(gathering_[i]);
    } else {
      others.push_back(i);
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [this](size_t a, size_t b) { return first_use_[a] < first_use_[b]; });
  std::for_each(others.begin(), others.end(), start);
}

const comm::Torus& DataParallel::torus_of(const optim::Bucket& bucket) const {
  return bucket.compute.is_same(bucket.master) ? exact_ : torus_;
}

DataParallel::Resident& DataParallel::buffer_of(size_t bucket) {
  return rings_.at(arena_.buckets()[bucket].ring)[turn_[bucket]];
}

void DataParallel::acquire(size_t bucket) {
  if (!in_pass_) {
    if (options_.gradients_apart) {
      refresh();
    }
    // Nobody says when weights change outside of passes: nothing is kept from use to use.
    if (!arena_.buckets()[bucket].owns_compute) {
      bring(bucket).wait();
    }
    return;
  }
  wait(gathering_[bucket]);
  if (!arena_.buckets()[bucket].owns_compute) {
    prefetch(bucket);
    Resident& resident = buffer_of(bucket);
    KINORA_CHECK(resident.bucket == static_cast<int64_t>(bucket), kInternal,
                 "[data_parallel] the buffer of bucket ", arena_.buckets()[bucket].name,
                 " is in use by ", arena_.buckets()[static_cast<size_t>(resident.bucket)].name);
    wait(resident.arriving);
    resident.in_use = true;
  }
  if (!order_is_known_) {
    first_use_[bucket] = std::min(first_use_[bucket], order_.size());
    order_.push_back(bucket);
    return;
  }
  if (rings_.empty()) {
    return;  // nothing is brought ahead of its use
  }
  if (next_in_order_ == order_.size() || order_[next_in_order_] != bucket) {
    KINORA_CHECK(options_.gradients_apart, kInternal, "[data_parallel] bucket ",
                 arena_.buckets()[bucket].name, " is used in another order than in the first pass");
    order_.resize(next_in_order_);  // to be learned anew from here
    order_.push_back(bucket);
    order_is_known_ = false;
    return;
  }
  if (++next_in_order_ < order_.size()) {
    prefetch(order_[next_in_order_]);
  }
}

void DataParallel::prefetch(size_t bucket) {
  if (arena_.buckets()[bucket].owns_compute) {
    return;
  }
  Resident& resident = buffer_of(bucket);
  if (resident.in_use || resident.bucket == static_cast<int64_t>(bucket)) {
    return;
  }
  wait(resident.arriving);  // it was brought for nothing: the order has changed
  resident.bucket = static_cast<int64_t>(bucket);
  resident.arriving = bring(bucket);
}

comm::Work DataParallel::bring(size_t index) {
  const optim::Bucket& bucket = arena_.buckets()[index];
  if (!bucket.is_far) {
    return torus_of(bucket).all_gather_async(whole_compute_[index], bucket.compute);
  }
  link_->run([&] {
    if (options_.before_fetch) {
      options_.before_fetch(index);
    }
    if (arena_.options().sharding.divides()) {
      torus_of(bucket).all_gather(whole_compute_[index], bucket.compute);
    } else {
      device::copy_bytes(bucket.compute, whole_compute_[index]);
    }
    link_->mark(index);
  });
  return comm::Work(std::make_shared<OverLink>(link_, index));
}

comm::Work DataParallel::send_to_host(size_t index) {
  const optim::Bucket& bucket = arena_.buckets()[index];
  const size_t mark = arena_.buckets().size() + index;
  link_->run([&] {
    shard_group().all_reduce(bucket.whole_grad);
    if (is_first_) {
      device::copy_bytes(bucket.whole_grad, bucket.grad);
    } else {
      at::Tensor(bucket.grad).add_(bucket.whole_grad);
    }
    link_->mark(mark);
  });
  return comm::Work(std::make_shared<OverLink>(link_, mark));
}

void DataParallel::release(size_t bucket) {
  if (in_pass_ && !arena_.buckets()[bucket].owns_compute) {
    buffer_of(bucket).in_use = false;
  }
}

void DataParallel::make_grad_ready(size_t bucket) {
  if (arena_.buckets()[bucket].owns_grad) {
    return;
  }
  // The reduction of who had the buffer before, and, since they end in order, of all before it.
  const auto before = std::find_if(reducing_.rbegin(), reducing_.rend(), [&](const Reduction& r) {
    return arena_.buckets()[r.bucket].ring == arena_.buckets()[bucket].ring &&
           grad_turn_[r.bucket] == grad_turn_[bucket];
  });
  if (before != reducing_.rend()) {
    const device::Lap lap(waiting_);
    for (auto count = std::distance(before, reducing_.rend()); count > 0; --count) {
      finish_oldest();
    }
  }
  if (options_.before_reuse) {
    const std::string& ring = arena_.buckets()[bucket].ring;
    std::vector<std::optional<size_t>>& holders = last_grad_[ring];
    holders.resize(arena_.gradient_buffers(ring));
    std::optional<size_t>& last = holders[grad_turn_[bucket]];
    if (last) {
      options_.before_reuse(*last);
    }
    last = bucket;
  }
  const at::NoGradGuard no_grad;
  if (options_.overwrites_gradients && starts_empty(is_first_)) {
    ops::zero_gradients(added_grads_[bucket]);
  } else {
    at::Tensor(arena_.buckets()[bucket].whole_grad).zero_();
  }
}

size_t DataParallel::free_lane(size_t bucket) {
  while (std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.is_busy; })) {
    const device::Lap lap(waiting_);
    finish_oldest();
  }
  const auto found =
      std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return !lane.is_busy; });
  Lane& lane = *found;
  if (!lane.slice.defined()) {
    const auto largest = std::max_element(
        arena_.buckets().begin(), arena_.buckets().end(),
        [](const optim::Bucket& a, const optim::Bucket& b) { return a.numel < b.numel; });
    const auto options = arena_.buckets()[bucket].grad.options().dtype(options_.reduce_type);
    lane.slice = at::empty({largest->slice_numel}, options);
    if (options_.reduce_type != at::kFloat) {
      lane.whole = at::empty({largest->numel}, options);
    }
  }
  lane.is_busy = true;
  return static_cast<size_t>(found - lanes_.begin());
}

void DataParallel::reduce(size_t bucket_index) {
  const optim::Bucket& bucket = arena_.buckets()[bucket_index];
  is_reduced_[bucket_index] = true;
  if (bucket.owns_grad && !is_last_) {
    return;
  }
  const at::NoGradGuard no_grad;
  const bool divides = arena_.options().sharding.divides();
  const bool goes_to_host = bucket.is_far && !options_.update;
  if (goes_to_host && !divides) {
    reducing_.push_back({.bucket = bucket_index, .work = send_to_host(bucket_index), .lane = {}});
    return;
  }
  const bool is_typed = options_.reduce_type != at::kFloat;
  Reduction reduction{.bucket = bucket_index, .work = {}, .lane = std::nullopt};
  at::Tensor source = bucket.whole_grad;
  at::Tensor target = bucket.grad;
  if (is_typed || goes_to_host || (!bucket.owns_grad && !is_first_)) {
    reduction.lane = free_lane(bucket_index);
    const Lane& lane = lanes_[*reduction.lane];
    target = lane.slice.narrow(0, 0, bucket.slice_numel);
    if (is_typed) {
      source = lane.whole.narrow(0, 0, bucket.numel);
      source.copy_(bucket.whole_grad);
    }
  }
  reduction.work = divides ? torus_.reduce_scatter_async(target, source)
                           : shard_group().all_reduce_async(source);
  reducing_.push_back(std::move(reduction));
  if (options_.update && shard_group().size() == 1) {
    finish_oldest();  // nothing is on its way
  }
}

void DataParallel::wait(std::optional<comm::Work>& work) {
  if (work) {
    const device::Lap lap(waiting_);
    work->wait();
    work.reset();
  }
}

void DataParallel::finish_oldest() {
  const Reduction reduction = std::move(reducing_.front());
  reducing_.pop_front();
  const optim::Bucket& bucket = arena_.buckets()[reduction.bucket];
  reduction.work.wait();
  if (reduction.lane) {
    const at::NoGradGuard no_grad;
    Lane& lane = lanes_[*reduction.lane];
    if (!arena_.options().sharding.divides()) {
      at::Tensor(bucket.grad).copy_(lane.whole.narrow(0, 0, bucket.numel));
    } else if (bucket.owns_grad || is_first_) {
      at::Tensor(bucket.grad).copy_(lane.slice.narrow(0, 0, bucket.slice_numel));
    } else {
      at::Tensor(bucket.grad).add_(lane.slice.narrow(0, 0, bucket.slice_numel));
    }
    lane.is_busy = false;
  }
  if (is_last_ && replicate_.size() > 1) {
    comm::Work work = replicate_.all_reduce_async(bucket.grad);
    if (options_.update) {
      work.wait();
    } else {
      replicating_.push_back(std::move(work));
    }
  }
  if (options_.update) {
    options_.update(reduction.bucket);
  }
}

}  // namespace kinora::parallel
