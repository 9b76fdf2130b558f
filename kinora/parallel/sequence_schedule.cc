#include "kinora/parallel/sequence_schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::parallel {
namespace {

/// By pass, k of 2^k ranks.
using Degrees = std::vector<size_t>;

class Scheduler {
 public:
  Scheduler(const std::vector<size_t>& kinds, const std::vector<SecondsByDegree>& seconds,
            int64_t ranks)
      : kinds_(kinds), seconds_(seconds), ranks_(ranks) {}

  [[nodiscard]] SequenceSchedule best() const {
    std::set<double> bounds;
    for (const size_t kind : kinds_) {
      for (const double seconds : seconds_[kind]) {
        if (std::isfinite(seconds)) {
          bounds.insert(seconds);
        }
      }
    }
    std::optional<SequenceSchedule> best;
    for (const double bound : bounds) {
      Degrees degrees = within(bound);
      SequenceSchedule schedule = packed(degrees);
      while (improve(degrees, schedule)) {
      }
      if (!best || is_better(schedule, *best)) {
        best = std::move(schedule);
      }
    }
    return best.value_or(SequenceSchedule());
  }

 private:
  [[nodiscard]] double seconds_of(size_t pass, size_t degree) const {
    return seconds_[kinds_[pass]][degree];
  }

  [[nodiscard]] double busy_of(size_t pass, size_t degree) const {
    return std::ldexp(seconds_of(pass, degree), static_cast<int>(degree));
  }

  static bool is_better(const SequenceSchedule& left, const SequenceSchedule& right) {
    return std::pair(left.seconds, left.busy) < std::pair(right.seconds, right.busy);
  }

  /// Of each pass the fewest rank-seconds within the bound; else the fewest seconds.
  [[nodiscard]] Degrees within(double bound) const {
    Degrees degrees;
    for (size_t pass = 0; pass < kinds_.size(); ++pass) {
      const auto cost = [&](size_t degree) {
        const double seconds = seconds_of(pass, degree);
        return seconds <= bound ? std::tuple(0, busy_of(pass, degree), degree)
                                : std::tuple(1, seconds, degree);
      };
      size_t least = 0;
      for (size_t degree = 1; degree < seconds_[kinds_[pass]].size(); ++degree) {
        least = cost(degree) < cost(least) ? degree : least;
      }
      degrees.push_back(least);
    }
    return degrees;
  }

  /// Those of most ranks first, of these the longest, each where the least has been done. Ranks
  /// that a pass can have together have as much to do before it, since all before it had as many
  /// ranks or more.
  [[nodiscard]] SequenceSchedule packed(const Degrees& degrees) const {
    std::vector<size_t> order(degrees.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(degrees[a], seconds_of(a, degrees[a])) >
             std::pair(degrees[b], seconds_of(b, degrees[b]));
    });
    std::vector<double> done(static_cast<size_t>(ranks_), 0.0);
    SequenceSchedule schedule;
    for (const size_t pass : order) {
      const size_t width = size_t{1} << degrees[pass];
      size_t first = 0;
      for (size_t other = width; other < done.size(); other += width) {
        first = done[other] < done[first] ? other : first;
      }
      const double end = done[first] + seconds_of(pass, degrees[pass]);
      std::fill_n(done.begin() + static_cast<int64_t>(first), width, end);
      schedule.seconds = std::max(schedule.seconds, end);
      schedule.busy += busy_of(pass, degrees[pass]);
      schedule.passes.push_back({.pass = pass,
                                 .first_rank = static_cast<int64_t>(first),
                                 .ranks = static_cast<int64_t>(width)});
    }
    return schedule;
  }

  /// Moves one pass to the number of ranks that helps most. Passes of a kind are alike: one of each
  /// kind and degree is tried.
  bool improve(Degrees& degrees, SequenceSchedule& best) const {
    std::set<std::pair<size_t, size_t>> tried;
    std::optional<Degrees> better;
    for (size_t pass = 0; pass < degrees.size(); ++pass) {
      if (!tried.emplace(kinds_[pass], degrees[pass]).second) {
        continue;
      }
      Degrees moved = degrees;
      for (size_t degree = 0; degree < seconds_[kinds_[pass]].size(); ++degree) {
        moved[pass] = degree;
        if (SequenceSchedule schedule = packed(moved); is_better(schedule, best)) {
          best = std::move(schedule);
          better = moved;
        }
      }
    }
    if (better) {
      degrees = *better;
    }
    return better.has_value();
  }

  const std::vector<size_t>& kinds_;
  const std::vector<SecondsByDegree>& seconds_;
  int64_t ranks_;
};

}  // namespace

SequenceSchedule schedule_sequences(const std::vector<size_t>& kinds,
                                    const std::vector<SecondsByDegree>& seconds, int64_t ranks) {
  for (const size_t kind : kinds) {
    const SecondsByDegree& own = seconds[kind];
    KINORA_CHECK(std::ranges::any_of(own, [](double value) { return std::isfinite(value); }),
                 kConfig, "[sequence] no number of ranks up to ", int64_t{1} << (own.size() - 1),
                 " can compute micro-batches of kind ", kind);
    KINORA_CHECK(ranks % (int64_t{1} << (own.size() - 1)) == 0, kConfig, "[sequence] the ", ranks,
                 " ranks must be a multiple of the ", int64_t{1} << (own.size() - 1),
                 " that a micro-batch may have");
  }
  return Scheduler(kinds, seconds, ranks).best();
}

}  // namespace kinora::parallel
