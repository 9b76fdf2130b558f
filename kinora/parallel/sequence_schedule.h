#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// Which ranks compute which micro-batches of a step, where ranks divide the tokens of large
/// samples and small ones stay whole (DCP, dynamic sequence parallelism, of VideoSys).
namespace kinora::parallel {

/// Seconds of a micro-batch's forward and backward, [k] on 2^k ranks; infinite: not on so few.
using SecondsByDegree = std::vector<double>;

/// A micro-batch and who computes it.
struct PlacedPass {
  size_t pass = 0;         ///< its place in the step
  int64_t first_rank = 0;  ///< a multiple of `ranks`
  int64_t ranks = 1;       ///< that divide its tokens

  [[nodiscard]] bool is_of(int64_t rank) const {
    return rank >= first_rank && rank < first_rank + ranks;
  }
};

struct SequenceSchedule {
  /// In the order in which each rank computes its own: those of most ranks first. So whatever ranks
  /// two passes share meet in the same order, and no rank waits between its passes.
  std::vector<PlacedPass> passes;
  double seconds = 0.0;  ///< of the rank with the most to do
  double busy = 0.0;     ///< seconds of all ranks together
};

/// Chooses for each pass of a step how many ranks divide it, and which, so that the rank with the
/// most to do has little. It depends on its arguments alone: ranks that have the same seconds
/// choose the same.
///
/// Of each possible bound on a pass' seconds every pass takes the fewest rank-seconds within it
/// (Turek, Wolf and Yu 1992, "Approximate algorithms for scheduling parallelizable tasks"), and
/// goes to the ranks with the least to do, long ones first; then single passes move to other
/// numbers of ranks while that helps.
///
/// @param kinds    of the passes: numbers of `seconds`.
/// @param seconds  by kind, as many degrees each, the last finite.
/// @param ranks    a multiple of the largest number of ranks of a pass.
/// kConfig for a kind that no number of ranks can compute.
[[nodiscard]] SequenceSchedule schedule_sequences(const std::vector<size_t>& kinds,
                                                  const std::vector<SecondsByDegree>& seconds,
                                                  int64_t ranks);

}  // namespace kinora::parallel
