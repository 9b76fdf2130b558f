#include "kinora/train/bench/batch_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kinora::train {
namespace batch_search_test {

constexpr int64_t kMiB = int64_t{1} << 20;

/// Costs of `fixed` + `each` * batch; beyond `device` bytes there is no memory.
struct Machine {
  double fixed_seconds = 0.010;
  double seconds = 0.002;
  int64_t fixed_memory = 100 * kMiB;
  int64_t memory = 7 * kMiB;
  int64_t device = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> tried = {};

  std::optional<StepCost> operator()(int64_t batch) {
    tried.push_back(batch);
    const StepCost cost{.seconds = fixed_seconds + seconds * static_cast<double>(batch),
                        .peak_memory = fixed_memory + memory * batch};
    return cost.peak_memory <= device ? std::optional(cost) : std::nullopt;
  }
};

FoundBatch find(Machine& machine, const CostLimits& limits, int64_t first = 1) {
  return find_batch([&machine](int64_t batch) { return machine(batch); }, limits, first);
}

TEST(BatchSearchTest, TheLargestThatFitsTheMemoryWhateverTheFirst) {
  for (const int64_t wanted : {1, 2, 3, 7, 12, 16, 29, 31}) {
    for (const int64_t first : {1, 2, 5, 16, 100}) {
      Machine machine;
      const FoundBatch found = find(machine, {.memory = 100 * kMiB + 7 * kMiB * wanted + 1}, first);
      EXPECT_EQ(found.batch, wanted) << first;
      EXPECT_EQ(found.cost.peak_memory, 100 * kMiB + 7 * kMiB * wanted);
      EXPECT_EQ(found.num_measured, std::ssize(machine.tried));
    }
  }
}

TEST(BatchSearchTest, WithinASixteenthAboveAndInFewMeasurements) {
  for (const int64_t wanted : {32, 50, 64, 200, 1000, 20000}) {
    Machine machine;
    const FoundBatch found = find(machine, {.memory = 100 * kMiB + 7 * kMiB * wanted});
    EXPECT_LE(found.batch, wanted);
    EXPECT_GE(found.batch, wanted - wanted / 16) << wanted;
    EXPECT_LE(static_cast<double>(found.num_measured), std::log2(static_cast<double>(wanted)) + 5.0)
        << wanted;
  }
}

TEST(BatchSearchTest, WhatTheDeviceRefusesIsTooLarge) {
  Machine machine{.device = 100 * kMiB + 7 * kMiB * 23};
  EXPECT_EQ(find(machine, {}).batch, 23);
  EXPECT_EQ(find(machine, {}, 400).batch, 23);
}

TEST(BatchSearchTest, LittleMoreIsTriedThanFits) {
  Machine machine;
  (void)find(machine, {.memory = 100 * kMiB + 7 * kMiB * 100});
  for (const int64_t batch : machine.tried) {
    EXPECT_LE(batch, 125);  // the line through two costs shows where memory ends
  }
}

TEST(BatchSearchTest, NotOneFits) {
  Machine machine;
  const FoundBatch found = find(machine, {.memory = 100 * kMiB}, 8);
  EXPECT_EQ(found.batch, 0);
  EXPECT_EQ(machine.tried.back(), 1);
}

TEST(BatchSearchTest, TheStepThatComesNearestToATime) {
  Machine machine;  // 10 ms and 2 ms a sample
  EXPECT_EQ(find(machine, {.seconds = 0.0305}).batch, 10);
  EXPECT_EQ(find(machine, {.seconds = 0.0319}).batch, 11);  // 32 ms is nearer than 30 ms
  EXPECT_EQ(find(machine, {.seconds = 0.001}).batch, 1);    // none is as short
  EXPECT_DOUBLE_EQ(find(machine, {.seconds = 0.001}).cost.seconds, 0.012);
}

TEST(BatchSearchTest, BothLimitsHold) {
  Machine machine;
  const int64_t memory_of_6 = 100 * kMiB + 7 * kMiB * 6;
  EXPECT_EQ(find(machine, {.seconds = 0.0305, .memory = memory_of_6}).batch, 6);
  EXPECT_EQ(find(machine, {.seconds = 0.0181, .memory = memory_of_6}).batch, 4);
  // The next larger batch would be nearer in time, but does not fit the memory.
  EXPECT_EQ(find(machine, {.seconds = 0.0239, .memory = memory_of_6}).batch, 6);
}

TEST(BatchSearchTest, CostsThatAreFlatAtFirst) {
  // A device that small batches do not fill.
  const auto measure = [](int64_t batch) -> std::optional<StepCost> {
    return StepCost{.seconds = 0.001 * static_cast<double>(std::max<int64_t>(batch, 16))};
  };
  const FoundBatch found = find_batch(measure, {.seconds = 0.0301});
  EXPECT_EQ(found.batch, 30);
  EXPECT_LE(found.num_measured, 10);
}

TEST(BatchSearchTest, EndsAtTheLargestThatMayBeTried) {
  Machine machine;
  const FoundBatch found = find(machine, {.batch = 20});
  EXPECT_EQ(found.batch, 20);
  EXPECT_EQ(find(machine, {.batch = 20}, 500).batch, 20);
}

}  // namespace batch_search_test
}  // namespace kinora::train
