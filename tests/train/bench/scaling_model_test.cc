// Predicted steps against closed forms.
#include "kinora/train/bench/scaling_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/error_of.h"

namespace kinora::train {
namespace scaling_model_test {

constexpr double kTolerance = 1e-12;

const ZeroStage kStages[] = {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kGradients,
                             ZeroStage::kWeights};

StepCosts one_bucket() {
  return {{{.gradient_bytes = 800.0, .weight_bytes = 400.0, .forward_s = 1.0, .backward_s = 2.0}},
          1,
          0.5};
}

/// Links of 100 and 10 bytes/s, `latency` each.
Cluster cluster(int64_t ranks_per_node, int64_t nodes, double latency = 0.0) {
  Cluster result;
  result.ranks_per_node = ranks_per_node;
  result.nodes = nodes;
  result.inside = {latency, 100.0};
  result.across = {latency, 10.0};
  return result;
}

TEST(ScalingModelTest, OneGpuExchangesNothing) {
  for (const ZeroStage stage : kStages) {
    const ScalingPrediction result = predict_step(one_bucket(), cluster(1, 1, 5.0), stage);
    EXPECT_NEAR(result.step_s, 3.5, kTolerance);
    EXPECT_NEAR(result.exposed_s, 0.0, kTolerance);
    EXPECT_NEAR(result.efficiency, 1.0, kTolerance);
    EXPECT_EQ(result.inside_s, 0.0);
    EXPECT_EQ(result.across_s, 0.0);
  }
}

TEST(ScalingModelTest, LinksThatCostNothingScaleFully) {
  StepCosts costs = one_bucket();
  costs.buckets.assign(5, costs.buckets.front());
  Cluster free;
  free.ranks_per_node = 8;
  free.nodes = 16;
  for (const ZeroStage stage : kStages) {
    const ScalingPrediction result = predict_step(costs, free, stage);
    const double update_s = stage == ZeroStage::kNone ? 0.5 : 0.5 / 128.0;
    EXPECT_NEAR(result.step_s, 15.0 + update_s, kTolerance);
    EXPECT_NEAR(result.exposed_s, 0.0, kTolerance);
  }
}

/// Nothing hides the communication of a single bucket.
TEST(ScalingModelTest, OneBucketIsExposed) {
  const double reduce_s = 1.0 + 0.75 * 800.0 / 100.0;  // four ranks, latency 1
  const double gather_s = 1.0 + 0.75 * 400.0 / 100.0;
  const double all_reduce_s = 2.0 * reduce_s;
  // Stage 3 still has for backward what it gathered for forward.
  const double exposed[] = {all_reduce_s, reduce_s + gather_s, reduce_s + gather_s,
                            reduce_s + gather_s};
  for (const ZeroStage stage : kStages) {
    const ScalingPrediction result = predict_step(one_bucket(), cluster(4, 1, 1.0), stage);
    const double update_s = stage == ZeroStage::kNone ? 0.5 : 0.125;
    const double expected = exposed[static_cast<size_t>(stage)];
    EXPECT_NEAR(result.exposed_s, expected, kTolerance);
    EXPECT_NEAR(result.inside_s, expected, kTolerance);
    EXPECT_NEAR(result.step_s, 3.0 + update_s + expected, kTolerance);
    EXPECT_NEAR(result.efficiency, 3.5 / result.step_s, kTolerance);
  }
}

/// Of many buckets that compute longer than they travel, only the last reduced and the first
/// gathered one are exposed.
TEST(ScalingModelTest, ComputationHidesAllButTheEnds) {
  StepCosts costs;
  costs.buckets.assign(
      10, {.gradient_bytes = 200.0, .weight_bytes = 100.0, .forward_s = 1.0, .backward_s = 2.0});
  const double reduce_s = 0.5 * 200.0 / 100.0;
  const double gather_s = 0.5 * 100.0 / 100.0;
  EXPECT_NEAR(predict_step(costs, cluster(2, 1), ZeroStage::kNone).exposed_s, 2.0 * reduce_s,
              kTolerance);
  for (const ZeroStage stage :
       {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kWeights}) {
    EXPECT_NEAR(predict_step(costs, cluster(2, 1), stage).exposed_s, reduce_s + gather_s,
                kTolerance);
  }
}

/// Where links are the bottleneck, they never rest.
TEST(ScalingModelTest, SlowLinksSetThePace) {
  StepCosts costs;
  costs.buckets.assign(
      10, {.gradient_bytes = 200.0, .weight_bytes = 100.0, .forward_s = 0.0, .backward_s = 0.0});
  // Stage 3 gathers for backward all but the last two, which it still has.
  const double bytes[] = {4000.0, 3000.0, 3000.0, 3800.0};
  for (const ZeroStage stage : kStages) {
    const ScalingPrediction result = predict_step(costs, cluster(2, 1), stage);
    EXPECT_NEAR(result.step_s, 0.5 * bytes[static_cast<size_t>(stage)] / 100.0, 1e-9);
    EXPECT_NEAR(result.exposed_s, result.step_s, 1e-9);
  }
}

TEST(ScalingModelTest, AccumulationReducesOnceWhereItMay) {
  StepCosts costs = one_bucket();
  costs.accumulation = 3;
  const double reduce_s = 0.75 * 800.0 / 100.0;
  const double gather_s = 0.75 * 400.0 / 100.0;
  const auto busy = [&](ZeroStage stage) {
    return predict_step(costs, cluster(4, 1), stage).inside_s;
  };
  EXPECT_NEAR(busy(ZeroStage::kNone), 2.0 * reduce_s, kTolerance);
  EXPECT_NEAR(busy(ZeroStage::kOptimizer), reduce_s + gather_s, kTolerance);
  EXPECT_NEAR(busy(ZeroStage::kGradients), 3.0 * reduce_s + gather_s, kTolerance);
  EXPECT_NEAR(busy(ZeroStage::kWeights), 3.0 * reduce_s + gather_s, kTolerance);
  // The second and third micro-step hide what they can: 2 s of it, in forward.
  const ScalingPrediction result = predict_step(costs, cluster(4, 1), ZeroStage::kGradients);
  EXPECT_LT(result.exposed_s, 3.0 * reduce_s + gather_s);
}

/// They are not gone through one by one.
TEST(ScalingModelTest, ManyMicroStepsAddUp) {
  constexpr double kMany = 1000.0;
  StepCosts costs = one_bucket();
  const auto step_of = [&costs](double count, const Cluster& cluster, ZeroStage stage) {
    costs.accumulation = static_cast<int64_t>(count);
    return predict_step(costs, cluster, stage);
  };
  for (const ZeroStage stage : kStages) {
    EXPECT_NEAR(step_of(kMany, cluster(1, 1), stage).step_s, 3.0 * kMany + 0.5, 1e-6);
  }
  // What one reduces takes longer than what the next one computes.
  const double reduce_s = 0.75 * 800.0 / 100.0;
  const ScalingPrediction two = step_of(2.0, cluster(4, 1), ZeroStage::kGradients);
  const ScalingPrediction many = step_of(kMany, cluster(4, 1), ZeroStage::kGradients);
  EXPECT_NEAR(many.step_s, two.step_s + (kMany - 2.0) * reduce_s, 1e-6);
  EXPECT_NEAR(many.inside_s, two.inside_s + (kMany - 2.0) * reduce_s, 1e-6);
  // Each gathers two buckets of three that the one before does not hold, the first four.
  costs.buckets.assign(
      3, {.gradient_bytes = 0.0, .weight_bytes = 100.0, .forward_s = 1.0, .backward_s = 1.0});
  EXPECT_NEAR(step_of(kMany, cluster(2, 1), ZeroStage::kWeights).inside_s,
              (4.0 + 2.0 * (kMany - 1.0)) * 0.5 * 100.0 / 100.0, 1e-6);
}

/// 2 x 2 ranks, 800 bytes: inside half of 400 for each piece, across a part of 200.
TEST(ScalingModelTest, TwoLevelsOverlapWherePipelined) {
  const double inside_s = 200.0 / 100.0;
  const double across_s = 200.0 / 10.0;
  StepCosts costs = one_bucket();
  costs.buckets[0].weight_bytes = 0.0;
  Cluster torus = cluster(2, 2);
  torus.min_pipelined_bytes = 200;
  // The second piece is reduced inside while the first crosses.
  EXPECT_NEAR(predict_step(costs, torus, ZeroStage::kOptimizer).exposed_s, inside_s + across_s,
              kTolerance);
  // Stage 0 gathers too: the own piece inside while the other crosses, then that one inside.
  EXPECT_NEAR(predict_step(costs, torus, ZeroStage::kNone).exposed_s, 2.0 * (inside_s + across_s),
              kTolerance);
  torus.min_pipelined_bytes = 201;
  const ScalingPrediction in_turn = predict_step(costs, torus, ZeroStage::kNone);
  EXPECT_NEAR(in_turn.exposed_s, 2.0 * (2.0 * inside_s + across_s), kTolerance);
  EXPECT_NEAR(in_turn.inside_s, 4.0 * inside_s, kTolerance);
  EXPECT_NEAR(in_turn.across_s, 2.0 * across_s, kTolerance);
}

/// One rank a node: a ring of messages.
TEST(ScalingModelTest, NodesOfOneGpuHaveOneLevel) {
  StepCosts costs = one_bucket();
  costs.buckets[0].weight_bytes = 0.0;
  const ScalingPrediction result = predict_step(costs, cluster(1, 4, 1.0), ZeroStage::kNone);
  EXPECT_NEAR(result.exposed_s, 2.0 * 3.0 * (1.0 + 200.0 / 10.0), kTolerance);
  EXPECT_EQ(result.inside_s, 0.0);
}

/// Three buckets of 100 bytes of weights on two ranks: what stage 3 gathers in a step.
TEST(ScalingModelTest, StageThreeHoldsTwoBucketsOfARing) {
  StepCosts costs;
  costs.buckets.assign(
      3, {.gradient_bytes = 0.0, .weight_bytes = 100.0, .forward_s = 1.0, .backward_s = 1.0});
  const auto gathers = [&costs] {
    return predict_step(costs, cluster(2, 1), ZeroStage::kWeights).inside_s / (0.5 * 100.0 / 100.0);
  };
  EXPECT_NEAR(gathers(), 4.0, kTolerance) << "backward misses the first bucket";
  costs.accumulation = 2;
  EXPECT_NEAR(gathers(), 6.0, kTolerance) << "the second forward misses the last bucket";
  costs.buckets[1].ring = 1;
  EXPECT_NEAR(gathers(), 3.0, kTolerance) << "two rings hold all";
  costs.buckets[1].ring = 0;
  costs.buckets[0].ring.reset();
  EXPECT_NEAR(gathers(), 3.0, kTolerance);
}

/// 2 x 2 ranks, 800 bytes of gradients, links across of 10 bytes/s: how long they travel where
/// nothing hides it.
TEST(ScalingModelTest, FlatRoutesSendMoreAcross) {
  StepCosts costs;
  costs.buckets = {{.gradient_bytes = 800.0}};
  const auto step_s = [&costs](Route route, double ranks_per_link, ZeroStage stage) {
    Cluster two = cluster(2, 2, 1.0);
    two.inside = {};
    two.route = route;
    two.ranks_per_link = ranks_per_link;
    return predict_step(costs, two, stage).step_s;
  };
  // A part is 200 bytes; where two ranks share a link it carries both of theirs.
  EXPECT_NEAR(step_s(Route::kTorus, 2.0, ZeroStage::kOptimizer), 1.0 + 400.0 / 10.0, kTolerance);
  EXPECT_NEAR(step_s(Route::kTorus, 1.0, ZeroStage::kOptimizer), 1.0 + 200.0 / 10.0, kTolerance);
  // Three messages of 200 bytes around one link of each node, or of 100 around two.
  EXPECT_NEAR(step_s(Route::kRing, 2.0, ZeroStage::kOptimizer), 3.0 * (1.0 + 200.0 / 10.0),
              kTolerance);
  EXPECT_NEAR(step_s(Route::kRing, 1.0, ZeroStage::kOptimizer), 3.0 * (1.0 + 100.0 / 10.0),
              kTolerance);
  // Two ranks send 200 bytes to each of two others.
  EXPECT_NEAR(step_s(Route::kGloo, 2.0, ZeroStage::kOptimizer), 1.0 + 800.0 / 10.0, kTolerance);
  EXPECT_NEAR(step_s(Route::kGloo, 2.0, ZeroStage::kNone),
              1.0 + 800.0 / 10.0 + 3.0 * (1.0 + 200.0 / 10.0), kTolerance);
}

/// 132 bytes for 128 elements; weights that are read in fp32 stay as they are.
TEST(ScalingModelTest, EightBitsAcross) {
  StepCosts costs;
  costs.buckets = {{.gradient_bytes = 1024.0, .weight_bytes = 512.0, .elements = 256.0}};
  Cluster two = cluster(2, 2);
  two.inside = {};
  two.fp8_across = true;
  const double part = 264.0 / 4.0;
  EXPECT_NEAR(predict_step(costs, two, ZeroStage::kOptimizer).across_s, 2.0 * part / 10.0,
              kTolerance);
  two.quantised_bytes_per_s = 64.0;  // half of a bucket a rank
  EXPECT_NEAR(predict_step(costs, two, ZeroStage::kOptimizer).across_s,
              2.0 * part / 10.0 + (512.0 + 256.0) / 64.0, kTolerance);
  two.quantised_bytes_per_s = std::numeric_limits<double>::infinity();
  costs.buckets[0].has_exact_weights = true;
  EXPECT_NEAR(predict_step(costs, two, ZeroStage::kOptimizer).across_s, (part + 512.0 / 4.0) / 10.0,
              kTolerance);
}

/// Hybrid sharding: weights stay inside; slices are summed behind backward, which hides nothing.
TEST(ScalingModelTest, ReplicasSendSlicesAcross) {
  Cluster two = cluster(2, 2, 1.0);
  two.is_replicated = true;
  const ScalingPrediction result = predict_step(one_bucket(), two, ZeroStage::kOptimizer);
  // A reduce-scatter and an all-gather of 400 bytes between two.
  EXPECT_NEAR(result.across_s, 2.0 * (1.0 + 200.0 / 10.0), kTolerance);
  EXPECT_NEAR(result.inside_s, 1.0 + 400.0 / 100.0 + 1.0 + 200.0 / 100.0, kTolerance);
  EXPECT_NEAR(result.exposed_s, result.across_s + result.inside_s, kTolerance);
  EXPECT_NEAR(result.step_s, 3.0 + 0.25 + result.exposed_s, kTolerance) << "updated by two ranks";
}

TEST(ScalingModelTest, NothingCannotBePredicted) {
  EXPECT_NE(
      error_of(ErrorKind::kConfig, [] { return predict_step({}, cluster(1, 1), ZeroStage::kNone); })
          .find("[scaling] needs buckets"),
      std::string::npos);
  EXPECT_NE(error_of(ErrorKind::kConfig,
                     [] { return predict_step(one_bucket(), cluster(0, 1), ZeroStage::kNone); })
                .find("got 1, 1, 0 and 1"),
            std::string::npos);
}

TEST(BucketSizeTest, WithoutBackwardOneBucketIsBest) {
  const BucketChoice choice = bucket_size(1000.0, 0.0, {0.5, 100.0});
  EXPECT_EQ(choice.count, 1);
  EXPECT_EQ(choice.bytes, 1000.0);
  EXPECT_NEAR(choice.exposed_s, 10.5, kTolerance);
}

TEST(BucketSizeTest, BalancesTheTailAgainstLatencies) {
  // All but the tail is hidden while n * 0.1 + 10 <= 20.
  const BucketChoice choice = bucket_size(1000.0, 20.0, {0.1, 100.0});
  EXPECT_EQ(choice.count, 100);
  EXPECT_NEAR(choice.exposed_s, 0.1 + 10.0 / 100.0, kTolerance);
}

/// Its formula against the simulated step, where backward hides all, some and little.
TEST(BucketSizeTest, ExposesWhatTheSimulationDoes) {
  for (const double backward_s : {40.0, 12.0, 1.0}) {
    const BucketChoice choice = bucket_size(1000.0, backward_s, {0.5, 100.0});
    StepCosts costs;
    costs.buckets.assign(static_cast<size_t>(choice.count),
                         {.gradient_bytes = 2.0 * choice.bytes,  // two ranks send half of them
                          .weight_bytes = 0.0,
                          .forward_s = 0.0,
                          .backward_s = backward_s / static_cast<double>(choice.count)});
    EXPECT_NEAR(predict_step(costs, cluster(2, 1, 0.5), ZeroStage::kOptimizer).exposed_s,
                choice.exposed_s, 1e-9)
        << backward_s;
  }
}

TEST(BucketSizeTest, WithoutLatencyTheSmallestIsBest) {
  EXPECT_EQ(bucket_size(1000.0, 20.0, {0.0, 100.0}).count, 1024);
  EXPECT_EQ(bucket_size(1000.0, 20.0, {}).count, 1) << "of equals, the fewest";
}

}  // namespace scaling_model_test
}  // namespace kinora::train
