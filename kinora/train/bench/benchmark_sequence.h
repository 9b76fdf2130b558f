#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/parallel/sequence_plan.h"

/// What sequence parallelism costs and is worth: attention layers alone, without what else a model
/// has, so that thousands to hundreds of thousands of tokens can be tried in seconds.
namespace kinora::train {

/// One clip of T frames through `depth` layers x + attention(LayerNorm(x)), forward and backward,
/// of random weights: bf16 by the fast path's kernels on a GPU, fp32 on a CPU. With several frames
/// layers attend within frames and through time in turn.
struct SequenceWork {
  int64_t num_frames = 1;
  int64_t tokens_a_frame = 4096;
  int64_t hidden = 1152;
  int64_t heads = 16;
  int64_t depth = 2;
  int64_t warmup = 3;  ///< steps before timing
  int64_t steps = 10;  ///< timed, three times
};

/// A scheme's step: the slowest rank's times, the rest this rank's.
struct SequenceRow {
  std::string scheme;
  std::string refused;  ///< why the scheme cannot be; the rest is 0 then
  double step_s = 0.0;
  /// The same work without communication: the same calls on a group that moves nothing
  /// (comm::rehearse), with whatever lies in the memory where results would be. Timed in turn with
  /// the steps that communicate. What is over it, a wait for ranks that are late and kernels that
  /// communication slows down included, is exposed.
  double compute_s = 0.0;
  /// The calls of a step, of the same sizes, alone: one behind the other, each waited for. What of
  /// it is not exposed is hidden behind computation.
  double communication_s = 0.0;
  int64_t calls = 0;
  int64_t bytes = 0;       ///< of all calls, as comm::Traffic counts them
  int64_t kept_bytes = 0;  ///< that forward leaves for backward, the result included
  /// The most above what there is between steps: weights, gradients, input. On a GPU by the
  /// allocator's statistics; without NCCL's buffers.
  int64_t peak_bytes = 0;
  double efficiency = 0.0;   ///< one rank's time over ranks x step_s; 0 where that was not timed
  double difference = -1.0;  ///< |.| / |.| from one rank's output and input gradient; -1: likewise

  [[nodiscard]] double exposed_s() const { return step_s - compute_s; }
};

/// Names for benchmark_sequence(): one rank that has all tokens; a baseline, DeepSpeed Ulysses as
/// it is published (Jacobs et al. 2023): four all-to-alls, of q, k, v and the result, around every
/// attention, in time too; parallel::SequenceScheme's.
inline constexpr const char* kOneRank = "one";
inline constexpr const char* kSeparateUlysses = "ulysses4";

[[nodiscard]] inline std::vector<std::string> sequence_benchmark_schemes() {
  std::vector<std::string> names = {kOneRank, kSeparateUlysses};
  names.insert(names.end(), parallel::kSequenceSchemeNames.begin() + 1,  // all but auto
               parallel::kSequenceSchemeNames.end());
  return names;
}

/// Times these schemes, one after the other. All ranks call it. "one" is computed by every rank on
/// its own, the fastest counts; where it comes first the others are compared with it. kConfig for
/// an unknown scheme.
[[nodiscard]] std::vector<SequenceRow> benchmark_sequence(const SequenceWork& work,
                                                          const std::vector<std::string>& schemes,
                                                          const comm::Group& group,
                                                          at::Device device);

}  // namespace kinora::train
