#include "kinora/train/bench/batch_search.h"

#include <algorithm>
#include <cmath>

namespace kinora::train {
namespace {

struct Trial {
  int64_t batch = 0;
  StepCost cost;
};

// From `rate` more a sample on, `value` reaches `limit` after so many; never if it does not rise.
double samples_to(double value, double rate, double limit) {
  return rate > 0.0 ? (limit - value) / rate : std::numeric_limits<double>::infinity();
}

// What is tried behind `last`, which fits: its double, or less, but at least a quarter more.
int64_t next_larger(const std::optional<Trial>& before, const Trial& last,
                    const CostLimits& limits) {
  const int64_t least = last.batch + std::max<int64_t>(1, last.batch / 4);
  int64_t next = 2 * last.batch;
  if (before) {
    const auto gap = static_cast<double>(last.batch - before->batch);
    const auto memory = static_cast<double>(last.cost.peak_memory);
    const double memory_rate = (memory - static_cast<double>(before->cost.peak_memory)) / gap;
    const double time_rate = (last.cost.seconds - before->cost.seconds) / gap;
    const double more =
        std::min(samples_to(memory, memory_rate, static_cast<double>(limits.memory)),
                 samples_to(last.cost.seconds, time_rate, limits.seconds));
    if (more < static_cast<double>(last.batch)) {
      next = last.batch + static_cast<int64_t>(more);
    }
  }
  return std::min(std::max(next, least), limits.batch);
}

}  // namespace

FoundBatch find_batch(const MeasureBatch& measure, const CostLimits& limits, int64_t first) {
  std::optional<Trial> before;  // the last two that fit
  std::optional<Trial> last;
  std::optional<Trial> slow;  // the smallest that only takes too long
  int64_t too_large = limits.batch + 1;
  FoundBatch found;
  int64_t batch = std::clamp<int64_t>(first, 1, limits.batch);
  while (true) {
    const std::optional<StepCost> cost = measure(batch);
    ++found.num_measured;
    const bool fits_memory = cost && cost->peak_memory <= limits.memory;
    if (fits_memory && cost->seconds <= limits.seconds) {
      before = last;
      last = Trial{batch, *cost};
    } else {
      too_large = batch;
      slow = fits_memory ? std::optional<Trial>({batch, *cost}) : std::nullopt;
    }
    const int64_t fits = last ? last->batch : 0;
    if (too_large - fits <= std::max<int64_t>(1, fits / 16)) {
      break;
    }
    const bool is_bounded = too_large <= limits.batch;
    batch = is_bounded ? fits + (too_large - fits) / 2 : next_larger(before, *last, limits);
  }
  const bool takes_slow =
      slow && (!last || slow->cost.seconds - limits.seconds < limits.seconds - last->cost.seconds);
  if (takes_slow) {
    last = slow;
  }
  if (last) {
    found.batch = last->batch;
    found.cost = last->cost;
  }
  return found;
}

}  // namespace kinora::train
