#include "kinora/train/bench/scaling_model.h"

#include <algorithm>

#include "kinora/core/error.h"

namespace kinora::train {
namespace {

constexpr size_t kGatheredAhead = 2;   // buckets of stage 3
constexpr int64_t kMaxBuckets = 1024;  // of bucket_size

/// Does one task after the other.
class Resource {
 public:
  /// Returns when a task of `seconds`, which may start at `ready`, has ended.
  double run(double ready, double seconds) {
    free_ = std::max(free_, ready) + seconds;
    busy_ += seconds;
    return free_;
  }
  [[nodiscard]] double free() const { return free_; }
  [[nodiscard]] double busy() const { return busy_; }

 private:
  double free_ = 0.0;
  double busy_ = 0.0;
};

/// The two links of a rank, with comm::Torus's collectives.
class Links {
 public:
  explicit Links(const Cluster& cluster) : cluster_(cluster) {}

  double reduce_scatter(double ready, double bytes) {
    if (bytes == 0.0) {
      return ready;
    }
    const Pieces pieces(cluster_, bytes);
    if (!pieces.pipelined) {
      double done = ready;
      for (int64_t piece = 0; piece < pieces.count; ++piece) {
        done = inside_.run(ready, pieces.inside_s);
      }
      return send_around(done, pieces);
    }
    double sum = inside_.run(ready, pieces.inside_s);
    for (int64_t step = 1; step < pieces.count; ++step) {
      const double arrived = across_.run(sum, pieces.across_s);
      sum = std::max(arrived, inside_.run(ready, pieces.inside_s));
    }
    return sum;
  }

  double all_gather(double ready, double bytes) {
    if (bytes == 0.0) {
      return ready;
    }
    const Pieces pieces(cluster_, bytes);
    if (!pieces.pipelined) {
      const double arrived = send_around(ready, pieces);
      double done = arrived;
      for (int64_t piece = 0; piece < pieces.count; ++piece) {
        done = inside_.run(arrived, pieces.inside_s);
      }
      return done;
    }
    double done = inside_.run(ready, pieces.inside_s);
    double arrived = ready;
    for (int64_t step = 1; step < pieces.count; ++step) {
      arrived = across_.run(arrived, pieces.across_s);
      done = inside_.run(arrived, pieces.inside_s);
    }
    return done;
  }

  [[nodiscard]] double inside_busy() const { return inside_.busy(); }
  [[nodiscard]] double across_busy() const { return across_.busy(); }

 private:
  /// A collective of `bytes`, one piece a node.
  struct Pieces {
    Pieces(const Cluster& cluster, double bytes) : count(cluster.nodes) {
      const auto ranks = static_cast<double>(cluster.ranks_per_node);
      const double part = bytes / static_cast<double>(cluster.ranks());
      if (cluster.ranks_per_node > 1) {
        inside_s = cluster.inside.seconds((ranks - 1.0) * part);
      }
      if (cluster.nodes > 1) {
        across_s = cluster.across.seconds(part);
      }
      pipelined = cluster.ranks_per_node > 1 && cluster.nodes > 1 &&
                  part >= static_cast<double>(cluster.min_pipelined_bytes);
    }
    int64_t count;
    double inside_s = 0.0;  // of one
    double across_s = 0.0;  // of one message
    bool pipelined = false;
  };

  double send_around(double ready, const Pieces& pieces) {
    double done = ready;
    for (int64_t step = 1; step < pieces.count; ++step) {
      done = across_.run(done, pieces.across_s);
    }
    return done;
  }

  Cluster cluster_;
  Resource inside_;
  Resource across_;
};

/// Steps one after the other.
class Simulation {
 public:
  Simulation(const StepCosts& costs, const Cluster& cluster, ZeroStage stage)
      : costs_(costs), stage_(stage), links_(cluster), gathered_(costs.buckets.size()) {
    const bool is_sharded = stage != ZeroStage::kNone;
    update_s_ = costs.update_s / (is_sharded ? static_cast<double>(cluster.ranks()) : 1.0);
  }

  /// Returns when the update has ended.
  double step() {
    for (int64_t micro_step = 1; micro_step <= costs_.accumulation; ++micro_step) {
      forward();
      backward(stage_ >= ZeroStage::kGradients || micro_step == costs_.accumulation);
    }
    const double updated = compute_.run(reduced_, update_s_);
    if (stage_ == ZeroStage::kOptimizer || stage_ == ZeroStage::kGradients) {
      for (size_t bucket = 0; bucket < gathered_.size(); ++bucket) {
        gathered_[bucket] = links_.all_gather(updated, costs_.buckets[bucket].weight_bytes);
      }
    }
    return updated;
  }

  [[nodiscard]] double update_s() const { return update_s_; }
  [[nodiscard]] const Links& links() const { return links_; }

 private:
  [[nodiscard]] size_t size() const { return costs_.buckets.size(); }

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
        reduced_ = links_.reduce_scatter(done, bucket.gradient_bytes);
        if (stage_ == ZeroStage::kNone) {
          reduced_ = links_.all_gather(reduced_, bucket.gradient_bytes);
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
        gathered_[bucket] = links_.all_gather(compute_.free(), costs_.buckets[bucket].weight_bytes);
      }
    }
  }

  const StepCosts& costs_;
  ZeroStage stage_;
  double update_s_ = 0.0;
  Links links_;
  Resource compute_;
  std::vector<double> gathered_;  // when a bucket's weights are there
  size_t gathers_ = 0;            // of this pass
  double reduced_ = 0.0;          // when the last gradients are there
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
