#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>

#include "kinora/comm/group.h"

/// Where the time of training steps goes, on this rank and on all.
namespace kinora::train {

/// Seconds of one step on one rank.
struct StepTimes {
  double step = 0.0;
  double data = 0.0;           ///< the host waited for samples
  double communication = 0.0;  ///< computation waited for other ranks and what they exchange

  /// All else, at least 0: where the device still had work while the host waited for samples, the
  /// parts are more than the whole.
  [[nodiscard]] double compute() const;
};

/// Measures them, from the end of a step to that of the next, by the host's clock.
class StepClock {
 public:
  StepClock() { restart(); }

  /// The next step begins now, whatever was before.
  void restart();

  /// At the end of a step. data_wait: seconds that all steps so far have waited for samples;
  /// waited: nanoseconds that computation has waited for other ranks likewise, nothing alone.
  [[nodiscard]] StepTimes lap(double data_wait, std::optional<int64_t> waited);

 private:
  double last_ = 0.0;  // seconds from any origin
  double last_data_wait_ = 0.0;
  int64_t last_waited_ = 0;
};

/// The ranks' times of the same steps.
struct RankTimes {
  struct Spread {
    double min = 0.0;
    double median = 0.0;  ///< of an even number the mean of the two in the middle
    double max = 0.0;
  };

  int64_t step = 0;  ///< the last of them
  Spread compute;
  Spread communication;
  Spread data;
  /// With the largest compute and data: the others wait for it, so theirs is the communication.
  int64_t slow_rank = 0;
  double slowness = 1.0;  ///< its compute and data over their median

  /// Whether the slow rank stands out: a tenth above the median.
  [[nodiscard]] bool is_uneven() const { return slowness >= 1.1; }
};

/// Of at least one rank.
[[nodiscard]] RankTimes compare_ranks(std::span<const StepTimes> ranks, int64_t step);

/// Brings the ranks' times together, every few steps, without anybody waiting for them: they are
/// asked for in one step, by one small collective, and there a step or two later.
class StepTimesExchange {
 public:
  /// All ranks of `world` make one.
  StepTimesExchange(comm::Group world, int64_t every);

  /// After each step, on all ranks. Every `every` steps it starts to bring the means over the steps
  /// since the last time together. kComm.
  void add(int64_t step, const StepTimes& own);

  /// What has come together since the last call, if anything has. Never of a group of one.
  [[nodiscard]] std::optional<RankTimes> take();

 private:
  comm::Group world_;
  int64_t every_;
  StepTimes sum_;
  int64_t count_ = 0;  // of the steps in sum_
  int64_t step_ = 0;   // asked for
  std::optional<comm::Work> under_way_;
  at::Tensor all_;  // fp32 [ranks, 3]
};

}  // namespace kinora::train
