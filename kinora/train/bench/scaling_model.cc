#include "kinora/train/bench/scaling_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/kernels/fp8.h"
#include "kinora/optim/arena.h"

namespace kinora::train {
namespace {

constexpr size_t kGatheredAhead = 2;   // buckets of stage 3
constexpr int64_t kMaxBuckets = 1024;  // of bucket_size
// Of an element, with its scale's share.
constexpr double kFp8Bytes = 1.0 + sizeof(float) / static_cast<double>(kernels::kScaleBlock);

/// Does one task after the other.
class Resource {
 public:
  /// Returns when a task of `seconds`, which may start at `ready`, has ended.
  double run(double ready, double seconds) {
    free_ = std::max(free_, ready) + seconds;
    busy_ += seconds;
    return free_;
  }
  /// Of tasks of `seconds` in all, the last of which ends at `end`.
  void run_until(double end, double seconds) {
    free_ = end;
    busy_ += seconds;
  }
  [[nodiscard]] double free() const { return free_; }
  [[nodiscard]] double busy() const { return busy_; }
  /// `times` more of what it has done since it was `before`.
  void repeat(const Resource& before, double times) {
    free_ += times * (free_ - before.free_);
    busy_ += times * (busy_ - before.busy_);
  }

 private:
  double free_ = 0.0;
  double busy_ = 0.0;
};

/// The two links of a rank.
class Links {
 public:
  explicit Links(const Cluster& cluster) : cluster_(cluster) {}

  /// Of a bucket, of which `across` bytes would cross where `bytes` are inside.
  double reduce_scatter(double ready, double bytes, double across) {
    if (bytes == 0.0) {
      return ready;
    }
    if (is_flat()) {
      return cluster_.route == Route::kGloo ? send_to_each(ready, bytes) : ring(ready, bytes);
    }
    const Pieces pieces(cluster_, bytes, across);
    if (!pieces.pipelined) {
      return send_around(inside_.run(ready, pieces.all_inside_s()), pieces);
    }
    // Each sum of a piece goes on once the next piece is summed inside: of piece k from the first
    // on, sum_k = max(sum_k-1 + across_s, first + k inside_s), a maximum of straight lines.
    const double first = inside_.run(ready, pieces.inside_s);
    const double arrived = across_.run(first, pieces.across_s);
    const double second = std::max(arrived, first + pieces.inside_s);
    const auto sum_of = [&](double k) {
      return k == 1.0 ? second
                      : std::max({second + (k - 1.0) * pieces.across_s,
                                  first + 2.0 * pieces.inside_s + (k - 2.0) * pieces.across_s,
                                  first + k * pieces.inside_s});
    };
    const auto others = static_cast<double>(pieces.count - 1);
    inside_.run(first, others * pieces.inside_s);
    if (others > 1.0) {
      across_.run_until(sum_of(others - 1.0) + pieces.across_s, (others - 1.0) * pieces.across_s);
    }
    return sum_of(others);
  }

  double all_gather(double ready, double bytes, double across) {
    if (bytes == 0.0) {
      return ready;
    }
    if (is_flat()) {
      return ring(ready, bytes);
    }
    const Pieces pieces(cluster_, bytes, across);
    if (!pieces.pipelined) {
      return inside_.run(send_around(ready, pieces), pieces.all_inside_s());
    }
    // Each piece that arrives goes on inside: done_k = max(done_k-1, arrived_k) + inside_s.
    const auto others = static_cast<double>(pieces.count - 1);
    const double own = inside_.run(ready, pieces.inside_s);
    const double first = across_.run(ready, pieces.across_s);
    const double last = across_.run(first, (others - 1.0) * pieces.across_s);
    const double done = std::max(
        {own + others * pieces.inside_s, first + others * pieces.inside_s, last + pieces.inside_s});
    inside_.run_until(done, others * pieces.inside_s);
    return done;
  }

  /// Of a slice that each node has of its own: a reduce-scatter and an all-gather around the nodes.
  double all_reduce_across(double ready, double bytes) {
    double done = ready;
    for (int64_t step = 1; step < cluster_.nodes; ++step) {
      done = across_.run(done, 2.0 * message_s(bytes / static_cast<double>(cluster_.nodes)));
    }
    return done;
  }

  [[nodiscard]] double inside_busy() const { return inside_.busy(); }
  [[nodiscard]] double across_busy() const { return across_.busy(); }
  [[nodiscard]] double inside_free() const { return inside_.free(); }
  [[nodiscard]] double across_free() const { return across_.free(); }
  /// As Resource's, of both.
  void repeat(const Links& before, double times) {
    inside_.repeat(before.inside_, times);
    across_.repeat(before.across_, times);
  }

 private:
  /// A collective of `bytes`, one piece a node, or of the own node's ranks alone.
  struct Pieces {
    Pieces(const Cluster& cluster, double bytes, double across)
        : count(cluster.is_replicated ? 1 : cluster.nodes) {
      const auto ranks = static_cast<double>(cluster.ranks_per_node);
      const double all = ranks * static_cast<double>(count);
      if (cluster.ranks_per_node > 1) {
        inside_s = cluster.inside.seconds((ranks - 1.0) * bytes / all);
      }
      if (count > 1) {
        across_s = cluster.across.seconds(cluster.ranks_per_link * across / all);
        if (across != bytes) {  // once for all of its messages
          across_s +=
              bytes / ranks / cluster.quantised_bytes_per_s / static_cast<double>(count - 1);
        }
      }
      pipelined = cluster.ranks_per_node > 1 && count > 1 && !cluster.fp8_across &&
                  bytes / all >= static_cast<double>(cluster.min_pipelined_bytes);
    }
    [[nodiscard]] double all_inside_s() const { return static_cast<double>(count) * inside_s; }

    int64_t count;
    double inside_s = 0.0;  // of one
    double across_s = 0.0;  // of one message
    bool pipelined = false;
  };

  [[nodiscard]] bool is_flat() const {
    return cluster_.nodes > 1 && !cluster_.is_replicated && cluster_.route != Route::kTorus;
  }

  /// Of a message of each rank.
  [[nodiscard]] double message_s(double bytes) const {
    return cluster_.across.seconds(cluster_.ranks_per_link * bytes);
  }

  /// All messages of a piece, one behind the other.
  double send_around(double ready, const Pieces& pieces) {
    return pieces.count > 1
               ? across_.run(ready, static_cast<double>(pieces.count - 1) * pieces.across_s)
               : ready;
  }

  /// One rank of a node sends to the next node, as much as all of its links take.
  double ring(double ready, double bytes) {
    const auto ranks = static_cast<double>(cluster_.ranks());
    const double part = bytes / ranks / static_cast<double>(cluster_.ranks_per_node);
    return across_.run(ready, (ranks - 1.0) * message_s(part));
  }

  double send_to_each(double ready, double bytes) {
    const auto nodes = static_cast<double>(cluster_.nodes);
    return across_.run(ready, message_s(bytes * (nodes - 1.0) / nodes));
  }

  Cluster cluster_;
  Resource inside_;
  Resource across_;
};

/// Steps one after the other.
class Simulation {
 public:
  Simulation(const StepCosts& costs, const Cluster& cluster, ZeroStage stage)
      : costs_(costs),
        cluster_(cluster),
        stage_(stage),
        links_(cluster),
        gathered_(costs.buckets.size()),
        is_held_(costs.buckets.size()) {
    const bool is_sharded = stage != ZeroStage::kNone;
    update_s_ = costs.update_s / (is_sharded ? static_cast<double>(state_ranks()) : 1.0);
    std::map<int64_t, size_t> turns;
    for (const BucketCost& bucket : costs.buckets) {
      const int64_t ring = bucket.ring.value_or(-1);
      buffer_of_.emplace_back(ring, turns[ring]++ % optim::kRingBuffers);
    }
  }

  /// Returns when the update has ended.
  double step() {
    State before = state();
    std::vector<double> last;
    for (int64_t micro_step = 1; micro_step <= costs_.accumulation; ++micro_step) {
      forward();
      backward(stage_ >= ZeroStage::kGradients || micro_step == costs_.accumulation);
      const int64_t others = costs_.accumulation - 1 - micro_step;  // the last may be unlike
      if (others > 0) {
        State now = state();
        std::vector<double> further = further_ahead(before, now);
        if (now.is_held == before.is_held && now.buffers == before.buffers &&
            goes_on(further, last)) {
          repeat(before, others);
          micro_step += others;
        }
        before = std::move(now);
        last = std::move(further);
      }
    }
    if (cluster_.is_replicated) {
      reduced_ = std::max(reduced_, compute_.free());
      for (const BucketCost& bucket : costs_.buckets) {
        reduced_ = links_.all_reduce_across(
            reduced_, bucket.gradient_bytes / static_cast<double>(cluster_.ranks_per_node));
      }
    }
    const double updated = compute_.run(reduced_, update_s_);
    is_held_.assign(size(), false);
    buffers_.clear();
    if (stage_ == ZeroStage::kOptimizer || stage_ == ZeroStage::kGradients) {
      for (size_t bucket = 0; bucket < gathered_.size(); ++bucket) {
        gathered_[bucket] = gather(updated, bucket);
      }
    }
    return updated;
  }

  [[nodiscard]] double update_s() const { return update_s_; }
  [[nodiscard]] const Links& links() const { return links_; }

 private:
  using Buffer = std::pair<int64_t, size_t>;  // of a ring, and its number

  /// What a micro-step begins with.
  struct State {
    Resource compute;
    Links links;
    std::vector<double> gathered;
    double reduced;
    std::vector<bool> is_held;
    std::map<Buffer, std::optional<size_t>> buffers;

    /// How far what computing may wait for is ahead of it. The first one is that of `reduced`.
    [[nodiscard]] std::vector<double> ahead() const {
      std::vector<double> times = {reduced, links.inside_free(), links.across_free()};
      times.insert(times.end(), gathered.begin(), gathered.end());
      for (double& time : times) {
        time = std::max(time - compute.free(), 0.0);
      }
      return times;
    }
  };

  [[nodiscard]] State state() const {
    return {compute_, links_, gathered_, reduced_, is_held_, buffers_};
  }

  [[nodiscard]] static std::vector<double> further_ahead(const State& before, const State& now) {
    std::vector<double> further = now.ahead();
    std::ranges::transform(further, before.ahead(), further.begin(), std::minus<>());
    return further;
  }

  /// Whether the next micro-steps do as the last one, by how much further ahead it took all, and
  /// the one before it (empty: there was none). Either nothing goes further; or gradients, for
  /// which no computing waits, fall behind steadily, with the links that make them wait.
  [[nodiscard]] bool goes_on(const std::vector<double>& further,
                             const std::vector<double>& last) const {
    const auto is_near = [](double a, double b) {
      constexpr double kRounding = 1e-9;  // s
      return std::abs(a - b) <= kRounding;
    };
    const double most = std::ranges::max(further);
    const bool is_even = std::ranges::all_of(
        further, [&](double one) { return is_near(one, 0.0) || is_near(one, most); });
    return is_even && (is_near(most, 0.0) ||
                       (stage_ != ZeroStage::kWeights && is_near(further.front(), most) &&
                        std::ranges::equal(further, last, is_near)));
  }

  /// So many more micro-steps like the last one, which began with this.
  void repeat(const State& before, int64_t count) {
    const auto times = static_cast<double>(count);
    compute_.repeat(before.compute, times);
    links_.repeat(before.links, times);
    reduced_ += times * (reduced_ - before.reduced);
    for (size_t i = 0; i < gathered_.size(); ++i) {
      gathered_[i] += times * (gathered_[i] - before.gathered[i]);
    }
  }

  [[nodiscard]] size_t size() const { return costs_.buckets.size(); }

  /// Among which the state is divided.
  [[nodiscard]] int64_t state_ranks() const {
    return cluster_.is_replicated ? cluster_.ranks_per_node : cluster_.ranks();
  }

  /// Of a bucket, where it crosses nodes.
  [[nodiscard]] double across_bytes(const BucketCost& bucket, double bytes) const {
    return cluster_.fp8_across ? kFp8Bytes * bucket.elements : bytes;
  }

  double gather(double ready, size_t index) {
    const BucketCost& bucket = costs_.buckets[index];
    const double across =
        bucket.has_exact_weights ? bucket.weight_bytes : across_bytes(bucket, bucket.weight_bytes);
    return links_.all_gather(ready, bucket.weight_bytes, across);
  }

  void forward() {
    gathers_ = 0;
    for (size_t i = 0; i < size(); ++i) {
      gather_ahead(i, [](size_t k) { return k; });
      compute_.run(gathered_[i], costs_.buckets[i].forward_s);
    }
  }

  void backward(bool reduces) {
    gathers_ = 0;
    const auto reversed = [this](size_t k) { return size() - 1 - k; };
    for (size_t i = 0; i < size(); ++i) {
      gather_ahead(i, reversed);
      const BucketCost& bucket = costs_.buckets[reversed(i)];
      const double done = compute_.run(gathered_[reversed(i)], bucket.backward_s);
      if (reduces) {
        const double across = across_bytes(bucket, bucket.gradient_bytes);
        reduced_ = links_.reduce_scatter(done, bucket.gradient_bytes, across);
        if (stage_ == ZeroStage::kNone) {
          reduced_ = links_.all_gather(reduced_, bucket.gradient_bytes, across);
        }
      }
    }
  }

  /// Stage 3: before the i-th computation, what it and those after it need.
  template <typename Order>
  void gather_ahead(size_t i, const Order& order) {
    if (stage_ == ZeroStage::kWeights) {
      for (; gathers_ < std::min(size(), i + kGatheredAhead + 1); ++gathers_) {
        const size_t bucket = order(gathers_);
        if (!is_held_[bucket]) {
          gathered_[bucket] = gather(compute_.free(), bucket);
          hold(bucket);
        }
      }
    }
  }

  /// In a ring's buffers, in turn.
  void hold(size_t bucket) {
    is_held_[bucket] = true;
    if (costs_.buckets[bucket].ring) {
      std::optional<size_t>& before = buffers_[buffer_of_[bucket]];
      if (before && *before != bucket) {
        is_held_[*before] = false;
      }
      before = bucket;
    }
  }

  const StepCosts& costs_;
  Cluster cluster_;
  ZeroStage stage_;
  double update_s_ = 0.0;
  Links links_;
  Resource compute_;
  std::vector<double> gathered_;   // when a bucket's weights are there
  std::vector<bool> is_held_;      // of stage 3, since the last update
  std::vector<Buffer> buffer_of_;  // [bucket]
  std::map<Buffer, std::optional<size_t>> buffers_;
  size_t gathers_ = 0;    // of this pass
  double reduced_ = 0.0;  // when the last gradients are there
};

}  // namespace

double StepCosts::seconds() const {
  double micro_step = 0.0;
  for (const BucketCost& bucket : buckets) {
    micro_step += bucket.forward_s + bucket.backward_s;
  }
  return micro_step * static_cast<double>(accumulation) + update_s;
}

ScalingPrediction predict_step(const StepCosts& costs, const Cluster& cluster, ZeroStage stage) {
  KINORA_CHECK(!costs.buckets.empty() && costs.accumulation > 0 && cluster.ranks_per_node > 0 &&
                   cluster.nodes > 0,
               kConfig, "[scaling] needs buckets, micro-steps, ranks and nodes, got ",
               costs.buckets.size(), ", ", costs.accumulation, ", ", cluster.ranks_per_node,
               " and ", cluster.nodes, '.');
  Simulation simulation(costs, cluster, stage);
  // The first step finds its weights gathered; from the second on all are alike.
  simulation.step();
  const double begin = simulation.step();
  const double inside = simulation.links().inside_busy();
  const double across = simulation.links().across_busy();
  ScalingPrediction result;
  result.step_s = simulation.step() - begin;
  result.inside_s = simulation.links().inside_busy() - inside;
  result.across_s = simulation.links().across_busy() - across;
  result.exposed_s = result.step_s - (costs.seconds() - costs.update_s + simulation.update_s());
  result.efficiency = costs.seconds() / result.step_s;
  return result;
}

BucketChoice bucket_size(double total_bytes, double backward_s, const comm::Link& link) {
  BucketChoice best;
  for (int64_t count = 1; count <= kMaxBuckets; ++count) {
    const auto n = static_cast<double>(count);
    const double bytes = total_bytes / n;
    const double bucket_s = link.seconds(bytes);
    const double exposed = std::max(bucket_s, n * bucket_s - backward_s * (1.0 - 1.0 / n));
    if (count == 1 || exposed < best.exposed_s) {
      best = {count, bytes, exposed};
    }
  }
  return best;
}

}  // namespace kinora::train
