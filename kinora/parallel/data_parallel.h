#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/comm/torus.h"
#include "kinora/device/side_stream.h"
#include "kinora/device/stopwatch.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/optim/arena.h"

/// Data parallelism: what the ranks that compute on different samples exchange.
namespace kinora::parallel {

struct DataParallelOptions {
  /// Gradients travel and are summed in this type: kFloat, or kBFloat16 for half the bytes.
  at::ScalarType reduce_type = at::kFloat;
  /// What crosses hosts travels in 8 bits (comm/quantised.h).
  bool fp8_across = false;
  /// The model overwrites the gradients of ring buckets (diffusion::Pass::overwrite), but for those
  /// of vectors, which have to be zeroed.
  bool overwrites_gradients = false;
  /// The model may read any weights from the first pass of a step on: they are gathered by
  /// begin_step().
  bool reads_before_passes = false;
  /// Reads of backward are told as those of forward, in an order that may change from pass to pass
  /// but is the same on all ranks; kBeforeBackward and kAfterBackward are of gradients alone.
  bool gradients_apart = false;
  /// Before what forward reads of a bucket is fetched from the host's memory, with the stream that
  /// fetches it as the current one; may be empty.
  std::function<void(size_t bucket)> before_fetch = {};
  /// With optim::ArenaOptions::in_backward: in a step's only pass, when the gradients of a bucket
  /// are those of all ranks, on the current stream; and before its buffer takes those of another
  /// one.
  std::function<void(size_t bucket)> update = {};
  std::function<void(size_t bucket)> before_reuse = {};
};

/// Sums gradients over ranks and brings parameters together, for an arena of any
/// optim::Sharding: its group divides, `replicate` joins those who hold the same slice.
///
/// Gradients are reduced bucket by bucket as soon as a bucket's backward ends, in place where the
/// arena keeps them whole. Where the group has several ranks on each of several hosts, inside of
/// hosts first (comm/torus.h). Parameters of stages 1 and 2 are gathered at the start of the next
/// step's first pass, in order of use, those of stage 3, and those in the host's memory
/// (optim::Bucket::is_far), one bucket ahead of their use, forward and backward. Collectives are
/// asynchronous: on a GPU they run beside the computation, ordered by events, without the host
/// waiting; all of a pass may be recorded in a CUDA graph.
///
///   for each step:  begin_step();
///     for each micro-batch:  begin_pass(first, last); forward and backward; end_pass();
///     the optimizer's update of the slices;  weights_changed();
///   before forward outside of passes:  refresh();
class DataParallel {
 public:
  /// All are borrowed, and outlive this; `waiting` adds up for how long computation waits for
  /// communication. kConfig.
  DataParallel(const optim::Arena& arena, const comm::Group& replicate, device::Stopwatch& waiting,
               const DataParallelOptions& options);

  /// What the model must call (models::Model::tell_buckets). Borrows this.
  [[nodiscard]] ops::BucketHook hook();

  void begin_step();
  /// first, last: of its step. Only the last one reduces gradients that are kept whole.
  void begin_pass(bool first, bool last);
  /// Where all passes of a step are one, begun with last = false: before the last one's backward.
  void begin_last_backward();
  void end_pass();

  /// Whether a pass may be recorded in a CUDA graph: see comm::Torus.
  [[nodiscard]] bool can_be_recorded() const {
    return torus_.inside().size() == 1 || torus_.across().size() == 1;
  }

  /// Whether gradients hold nothing at the start of a pass, so that it may overwrite them.
  [[nodiscard]] bool starts_empty(bool first) const {
    return first || arena_.options().sharding.divides_gradients();
  }

  /// Sums over all ranks `value`, a fp32 tensor on the arena's device: of what each rank has added
  /// up over the samples that are its own.
  void add_over_samples(const at::Tensor& value);
  /// Takes the largest of all ranks' `values`, a fp32 tensor on the arena's device.
  void take_largest(const at::Tensor& values);
  /// The values of all ranks' samples, each `values` [n], one rank behind the other.
  [[nodiscard]] at::Tensor of_all_samples(const at::Tensor& values) const;

  /// The masters have changed: what forward reads is out of date until the next pass or refresh().
  void weights_changed() { is_stale_ = true; }
  void refresh();

  [[nodiscard]] const comm::Group& shard_group() const { return arena_.options().sharding.group; }

 private:
  /// A buffer of a ring: whose parameters it holds, and whether they are on their way.
  struct Resident {
    int64_t bucket = -1;
    bool in_use = false;
    std::optional<comm::Work> arriving;
  };
  /// A bucket's gradients on their way.
  struct Reduction {
    size_t bucket;
    comm::Work work;
    std::optional<size_t> lane;  // where they lie in another type, or beside those of before
  };
  /// Memory for gradients that are not summed in place.
  struct Lane {
    at::Tensor whole;  // [the largest bucket] in the reduce type; undefined where that is fp32
    at::Tensor slice;  // [the largest slice] in the reduce type
    bool is_busy = false;
  };

  void at_moment(ops::BucketMoment moment, size_t bucket);
  void gather_for_step();
  void acquire(size_t bucket);
  void prefetch(size_t bucket);
  /// Fills whole_compute_ of a bucket that does not own it.
  [[nodiscard]] comm::Work bring(size_t bucket);
  /// Adds a bucket's gradients to those in the host's memory, or puts them in their place.
  [[nodiscard]] comm::Work send_to_host(size_t bucket);
  void release(size_t bucket);
  [[nodiscard]] Resident& buffer_of(size_t bucket);
  [[nodiscard]] const comm::Torus& torus_of(const optim::Bucket& bucket) const;
  void make_grad_ready(size_t bucket);
  void reduce(size_t bucket);
  void finish_oldest();
  /// If it is under way, waits for it: by the clock of waiting_.
  void wait(std::optional<comm::Work>& work);
  [[nodiscard]] size_t free_lane(size_t bucket);

  const optim::Arena& arena_;
  comm::Group replicate_;
  comm::Torus torus_;  // of the shard group's hosts
  comm::Torus exact_;  // the same, never in 8 bits: for weights that are the masters themselves
  DataParallelOptions options_;
  bool is_stale_ = false;
  bool in_pass_ = false;
  bool is_first_ = false;
  bool is_last_ = false;

  // What collectives read and write: the buckets' memory, but not the tensors that autograd
  // watches for changes.
  std::vector<at::Tensor> whole_compute_;
  // [bucket]: what a model that overwrites gradients does not: those of vectors, and what lies
  // between slots, where a buffer has what others left.
  std::vector<std::vector<at::Tensor>> added_grads_;
  std::vector<std::optional<comm::Work>> gathering_;  // [bucket], of those gathered once a step
  std::vector<bool> is_reduced_;                      // [bucket], in this pass
  std::vector<size_t> turn_;                          // [bucket]: which of its ring's buffers
  std::vector<size_t> grad_turn_;                     // [bucket]: which of those of gradients
  std::unordered_map<std::string, std::vector<Resident>> rings_;
  // Whose gradients a ring's buffers have had last.
  std::unordered_map<std::string, std::vector<std::optional<size_t>>> last_grad_;

  // The order of use, of the first pass; later ones look ahead in it.
  std::vector<size_t> order_;
  std::vector<size_t> first_use_;  // [bucket]: place in it
  bool order_is_known_ = false;
  size_t next_in_order_ = 0;

  std::shared_ptr<device::SideStream> link_;  // to the host's memory; null: nothing is there
  std::deque<Reduction> reducing_;            // by age
  std::vector<comm::Work> replicating_;
  std::vector<Lane> lanes_;
  device::Stopwatch& waiting_;  // of waits and what is done between them
};

}  // namespace kinora::parallel
