// Which blocks are where, and who does what when.
#include "kinora/parallel/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "tests/error_of.h"

namespace kinora::parallel {
namespace pipeline_test {

using Kind = PipelineAction::Kind;

StagePlan even_plan(int64_t ranks, int64_t chunks) {
  return plan_stages(std::vector(static_cast<size_t>(ranks * chunks), 1.0), ranks, chunks);
}

double dearest(const StagePlan& plan, const std::vector<double>& costs) {
  double most = 0.0;
  for (int64_t stage = 0; stage < plan.num_stages(); ++stage) {
    const auto at = [&](int64_t s) { return costs.begin() + plan.begins[static_cast<size_t>(s)]; };
    most = std::max(most, std::accumulate(at(stage), at(stage + 1), 0.0));
  }
  return most;
}

/// The least that the dearest of `stages` can cost, by trying all divisions.
double best_of_all(const std::vector<double>& costs, int64_t stages) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int64_t> begins(static_cast<size_t>(stages) + 1, 0);
  begins.back() = std::ssize(costs);
  const std::function<void(size_t)> choose = [&](size_t next) {
    if (next + 1 == begins.size()) {
      best = std::min(best, dearest({.ranks = stages, .begins = begins}, costs));
      return;
    }
    for (begins[next] = begins[next - 1] + 1; begins[next] < std::ssize(costs); ++begins[next]) {
      choose(next + 1);
    }
  };
  choose(1);
  return best;
}

TEST(StagePlanTest, DividesByCost) {
  const std::vector<double> costs = {2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0};
  const StagePlan plan = plan_stages(costs, 2, 1);
  EXPECT_THAT(plan.begins, testing::ElementsAre(0, 3, 9));
  EXPECT_EQ(plan.stage_of_block(2), 0);
  EXPECT_EQ(plan.stage_of_block(3), 1);
  EXPECT_THAT(plan_stages(costs, 3, 1).begins, testing::ElementsAre(0, 2, 5, 9));
}

TEST(StagePlanTest, TheDearestStageIsAsCheapAsCanBe) {
  const std::vector<std::vector<double>> models = {
      {1, 1, 1, 1, 1, 1, 1}, {5, 1, 1, 1, 1, 5}, {1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 1, 1, 1, 9, 2}};
  for (const std::vector<double>& costs : models) {
    for (const int64_t stages : {1, 2, 3, 4, 5}) {
      EXPECT_EQ(dearest(plan_stages(costs, stages, 1), costs), best_of_all(costs, stages));
    }
  }
}

/// Lets the ranks of a plan run, each action as soon as what it needs has been made: the time at
/// which the last ends; nothing where ranks wait for each other forever.
std::optional<double> makespan(PipelineSchedule schedule, const StagePlan& plan,
                               int64_t micro_batches, const std::map<Kind, double>& costs) {
  const auto ranks = static_cast<size_t>(plan.ranks);
  std::vector<std::vector<PipelineAction>> actions;
  for (int64_t rank = 0; rank < plan.ranks; ++rank) {
    actions.push_back(pipeline_actions(schedule, plan, rank, micro_batches));
  }
  std::map<std::tuple<Kind, int64_t, int64_t>, double> ends;  // of kind, micro-batch, stage
  std::vector<size_t> next(ranks, 0);
  std::vector<double> clock(ranks, 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      while (next[rank] < actions[rank].size()) {
        const PipelineAction& action = actions[rank][next[rank]];
        const int64_t stage = action.chunk * plan.ranks + static_cast<int64_t>(rank);
        std::vector<std::tuple<Kind, int64_t, int64_t>> needs;
        if (action.kind == Kind::kForward && stage > 0) {
          needs.emplace_back(Kind::kForward, action.micro_batch, stage - 1);
        } else if (action.kind == Kind::kBackward) {
          needs.emplace_back(Kind::kForward, action.micro_batch, stage);
          if (stage + 1 < plan.num_stages()) {
            needs.emplace_back(Kind::kBackward, action.micro_batch, stage + 1);
          }
        } else if (action.kind == Kind::kWeights) {
          needs.emplace_back(Kind::kBackward, action.micro_batch, stage);
        }
        double begin = clock[rank];
        bool is_there = true;
        for (const auto& need : needs) {
          const auto found = ends.find(need);
          is_there = is_there && found != ends.end();
          begin = is_there ? std::max(begin, found->second) : begin;
        }
        if (!is_there) {
          break;
        }
        const auto [where, is_new] = ends.emplace(
            std::tuple(action.kind, action.micro_batch, stage), begin + costs.at(action.kind));
        EXPECT_TRUE(is_new) << "done twice";
        clock[rank] = where->second;
        ++next[rank];
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (next[rank] < actions[rank].size()) {
      return std::nullopt;
    }
  }
  const auto of_kind = [&](Kind kind) {
    return std::ranges::count_if(
        ends, [kind](const auto& entry) { return std::get<0>(entry.first) == kind; });
  };
  EXPECT_EQ(of_kind(Kind::kForward), micro_batches * plan.num_stages());
  EXPECT_EQ(of_kind(Kind::kBackward), micro_batches * plan.num_stages());
  return *std::ranges::max_element(clock);
}

TEST(PipelineScheduleTest, OneForwardOneBackwardWaitsAsItsFormulaSays) {
  const std::map<Kind, double> costs = {{Kind::kForward, 1.0}, {Kind::kBackward, 2.0}};
  for (const int64_t ranks : {2, 3, 4, 8}) {
    for (const int64_t micro_batches : {1, 2, 4, 8, 24}) {
      const auto time =
          makespan(PipelineSchedule::k1F1B, even_plan(ranks, 1), micro_batches, costs);
      ASSERT_TRUE(time.has_value());
      // Narayanan et al. 2021, section 2.2.1: (p - 1) (t_f + t_b) beside m (t_f + t_b).
      EXPECT_EQ(*time, static_cast<double>(3 * (micro_batches + ranks - 1)));
    }
  }
}

TEST(PipelineScheduleTest, SeveralStagesARankWaitLess) {
  const std::map<Kind, double> costs = {{Kind::kForward, 1.0}, {Kind::kBackward, 2.0}};
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t chunks : {2, 3, 4}) {
      for (const int64_t rounds : {1, 2, 4}) {
        const auto time =
            makespan(PipelineSchedule::k1F1B, even_plan(ranks, chunks), rounds * ranks, costs);
        ASSERT_TRUE(time.has_value()) << ranks << " ranks, " << chunks << " stages each";
        // Section 2.2.2: of a chunk's time the same bubble, that is 1 / v of it.
        EXPECT_EQ(*time, static_cast<double>(3 * (rounds * ranks * chunks + ranks - 1)));
      }
    }
  }
}

TEST(PipelineScheduleTest, LateWeightsWaitAsTheirFormulaSays) {
  const std::map<Kind, double> costs = {
      {Kind::kForward, 1.0}, {Kind::kBackward, 1.0}, {Kind::kWeights, 1.0}};
  for (const int64_t ranks : {2, 3, 4, 8}) {
    for (const int64_t micro_batches : {8, 16, 24}) {
      const auto time =
          makespan(PipelineSchedule::kZeroBubble, even_plan(ranks, 1), micro_batches, costs);
      ASSERT_TRUE(time.has_value());
      // Qi et al. 2023, table 2: (p - 1) (t_f + t_b - t_w).
      EXPECT_EQ(*time, static_cast<double>(3 * micro_batches + ranks - 1)) << ranks;
    }
  }
}

TEST(PipelineScheduleTest, ARankKeepsAsManyPassesAsThereAreStagesBehindIt) {
  for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    for (int64_t rank = 0; rank < 4; ++rank) {
      int64_t open = 0;
      int64_t most = 0;
      for (const PipelineAction& action : pipeline_actions(schedule, even_plan(4, 1), rank, 16)) {
        open += action.kind == Kind::kForward ? 1 : action.kind == Kind::kBackward ? -1 : 0;
        most = std::max(most, open);
      }
      EXPECT_EQ(most, 4 - rank);
    }
  }
}

TEST(PipelineScheduleTest, SaysForWhatItIsNot) {
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [] { (void)pipeline_actions(PipelineSchedule::k1F1B, even_plan(4, 2), 0, 6); }),
      testing::HasSubstr("a multiple of parallel.pipeline's 4 micro-batches, got 6"));
  EXPECT_THAT(
      error_of(
          ErrorKind::kConfig,
          [] { (void)pipeline_actions(PipelineSchedule::kZeroBubble, even_plan(2, 2), 0, 4); }),
      testing::HasSubstr("has one stage a rank"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] {
                         (void)plan_stages({1.0, 1.0}, 3, 1);
                       }),
              testing::HasSubstr("more stages than the model's 2 blocks"));
}

}  // namespace pipeline_test
}  // namespace kinora::parallel
