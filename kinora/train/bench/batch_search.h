#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

namespace kinora::train {

/// What a training step of some batch costs.
struct StepCost {
  double seconds = 0.0;
  int64_t peak_memory = 0;  ///< bytes
};

/// What a step may cost.
struct CostLimits {
  double seconds = std::numeric_limits<double>::infinity();
  int64_t memory = std::numeric_limits<int64_t>::max();  ///< bytes
  int64_t batch = int64_t{1} << 20;                      ///< the largest that is tried
};

struct FoundBatch {
  int64_t batch = 0;  ///< 0: not even one sample fits the memory
  StepCost cost = {};
  int64_t num_measured = 0;
};

/// The cost of a batch; nothing if the memory does not suffice for it at all.
using MeasureBatch = std::function<std::optional<StepCost>(int64_t batch)>;

/// The largest batch within the limits: exactly below 32 samples, else to within a sixteenth. Of
/// the two between which the limit of time lies, the one whose step comes nearer to it; if one
/// sample alone takes longer, it is that one.
///
/// Costs rise with the batch. From `first` on it is doubled while it fits, by less where the line
/// through the last two costs says that double would not; then the gap is halved. A batch of n
/// takes about log2(n / first) + 5 measurements.
[[nodiscard]] FoundBatch find_batch(const MeasureBatch& measure, const CostLimits& limits,
                                    int64_t first = 1);

}  // namespace kinora::train
