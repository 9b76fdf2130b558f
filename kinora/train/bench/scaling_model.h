#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "kinora/comm/link_speed.h"
#include "kinora/comm/torus.h"

/// How long a data-parallel training step takes on more GPUs than there are here: arithmetic alone.
///
/// Three things work side by side, each on one task after the other: a GPU's computation, its link
/// inside the node, its link across nodes. Tasks start in the order in which a rank enqueues them
/// and when what they need is there; collectives are those of comm::Torus, step by step. All ranks
/// are alike, each with the batch of the one GPU (weak scaling).
///
/// Not in it, all of which make a real step slower: collectives take a GPU's multiprocessors and
/// memory bandwidth from the computation, nodes share switches, the slowest rank holds up the
/// others, and so does reading the data.
namespace kinora::train {

/// A parameter bucket in one micro-step of one GPU.
struct BucketCost {
  double gradient_bytes = 0.0;  ///< of the whole bucket, as they are reduced
  double weight_bytes = 0.0;    ///< as they are gathered
  double forward_s = 0.0;
  double backward_s = 0.0;
  double elements = 0.0;           ///< for Cluster::fp8_across
  bool has_exact_weights = false;  ///< which never travel in 8 bits
  /// Of stage 3, whose buckets of a ring take turns in two buffers. None: gathered once a step.
  std::optional<int64_t> ring = 0;
};

/// A step of one GPU.
struct StepCosts {
  std::vector<BucketCost> buckets;  ///< in the order of forward; backward has the reverse
  int64_t accumulation = 1;         ///< micro-steps
  double update_s = 0.0;            ///< of all parameters, which ZeRO divides by the ranks

  [[nodiscard]] double seconds() const;
};

/// How collectives of the ranks of several nodes go. N bytes, W ranks, I of them in each of A
/// nodes.
enum class Route : uint8_t {
  kTorus,  ///< comm::Torus: N inside, then A - 1 messages of N / W between each two ranks across
  kRing,   ///< one level: W - 1 messages of N / W around all ranks, which the links across share
  kGloo,   ///< that of Gloo on CPUs: gathers as kRing; what is reduced goes from each rank to each
};

struct Cluster {
  int64_t ranks_per_node = 1;
  int64_t nodes = 1;
  comm::Link inside;  ///< of one collective of a node's ranks
  comm::Link across;  ///< of one message from node to node: a collective has nodes - 1 in a row
  double ranks_per_link = 1.0;  ///< of a node, which send over one link across at once
  Route route = Route::kTorus;
  bool fp8_across = false;  ///< what a torus sends across, in 8 bits (comm/quantised.h)
  /// With fp8_across, of a rank: what was reduced inside is quantised, sent, and made numbers
  /// again.
  double quantised_bytes_per_s = std::numeric_limits<double>::infinity();
  /// Each node divides the state among its ranks (parallel.replicate): weights stay inside, and the
  /// slices of gradients are summed across behind the backward pass.
  bool is_replicated = false;
  int64_t min_pipelined_bytes = comm::TorusOptions().min_pipelined_bytes;

  [[nodiscard]] int64_t ranks() const { return ranks_per_node * nodes; }
};

/// What is exchanged. The update always waits for all gradients, whose norm it needs.
enum class ZeroStage : uint8_t {
  kNone,       ///< gradients: all-reduce (reduce-scatter, all-gather) in the last micro-step
  kOptimizer,  ///< 1: reduce-scatter in the last micro-step, weights gathered after the update
  kGradients,  ///< 2: reduce-scatter in every micro-step
  kWeights,    ///< 3: and weights gathered for every forward and backward, two buckets ahead, but
               ///< for those that are still held
};

struct ScalingPrediction {
  double step_s = 0.0;
  double exposed_s = 0.0;  ///< of it, when the GPU waits for its links
  double inside_s = 0.0;   ///< how long the links are busy in a step
  double across_s = 0.0;
  double efficiency = 1.0;  ///< samples per second and GPU, against one GPU alone
};

/// A step in the middle of training. kConfig unless there are buckets, ranks and micro-steps.
[[nodiscard]] ScalingPrediction predict_step(const StepCosts& costs, const Cluster& cluster,
                                             ZeroStage stage);

/// Equal buckets of gradients.
struct BucketChoice {
  int64_t count = 1;
  double bytes = 0.0;      ///< of one
  double exposed_s = 0.0;  ///< communication that backward does not hide
};

/// The number of equal buckets that exposes least, of at most 1024, the smaller of two as good.
/// With n buckets, each reduced in c = latency + total_bytes / n / bytes_per_s while backward
/// computes those that follow,
///   exposed = max(c, n * c - backward_s * (1 - 1 / n)):
/// the last bucket's tail, or all of them one behind the other from the end of the first's
/// backward. Large buckets leave a long tail, small ones cost n latencies; where backward_s allows,
/// the best n is (backward_s - total_bytes / bytes_per_s) / latency.
/// @param total_bytes  that a rank sends (comm::ring_bytes of all gradients).
[[nodiscard]] BucketChoice bucket_size(double total_bytes, double backward_s,
                                       const comm::Link& link);

}  // namespace kinora::train
