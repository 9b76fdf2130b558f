// Parts of a walk over a chain, and the places where sampling differs from diffusers, against what
// diffusers' schedulers do (tools/make_chain_part_fixtures.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/chain_solvers.h"
#include "kinora/diffusion/sampler.h"
#include "tests/diffusion/recorded_loops.h"
#include "tests/diffusion/tensors.h"
#include "tests/error_of.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::diffusion {
namespace chain_parts_test {

using nlohmann::json;
using testing::HasSubstr;

std::vector<json> records() {
  std::ifstream file(source_path("tests/diffusion/data/chain_parts.json"));
  return json::parse(file).get<std::vector<json>>();
}

std::vector<double> betas() {
  return make_betas(BetaCurve::kLinear, 1000, 1e-4, 0.02);
}

/// All timesteps, and the part of them that was taken.
ChainWalk walk_of(const json& record) {
  return {.alphas_cumprod = alphas_cumprod(betas()),
          .timesteps = record.at("timesteps").get<std::vector<int64_t>>(),
          .first = record.at("first").get<int64_t>(),
          .count = record.at("count").get<int64_t>()};
}

SolverPlan plan_of(const json& record, const ChainWalk& walk, StepTarget target) {
  const auto kind = record.at("kind").get<std::string>();
  if (kind == "ddim") {
    return ddim(walk, {.eta = record.at("eta").get<double>(), .target = target});
  }
  if (kind == "plms") {
    return plms(walk, {.target = target});
  }
  return ddpm(walk,
              kind == "ddpm_fixed_small" ? ChainVariance::kFixedSmall : ChainVariance::kFixedLarge);
}

/// How far the plan ends from what diffusers has.
double difference(const SolverPlan& plan, const json& record) {
  SolverState state(plan);
  at::Tensor x = start();
  for (int64_t k = 0; k < std::ssize(plan.steps); ++k) {
    x = state.step(k, x, denoised(x, plan.steps[static_cast<size_t>(k)].t, false), noise(k)).x;
  }
  const at::Tensor expected =
      at::tensor(record.at("x").get<std::vector<double>>(), at::kDouble).view({2, 3, 2, 2});
  return max_difference(x, expected);
}

TEST(ChainPartsTest, AreThoseOfDiffusers) {
  const std::vector<json> all = records();
  ASSERT_EQ(all.size(), 80U);
  for (const json& record : all) {
    EXPECT_LT(difference(plan_of(record, walk_of(record), StepTarget::kFixedStride), record),
              tolerance::kWholeModel)
        << record.dump();
  }
}

// A walk of four timesteps would have a stride of 250.
TEST(ChainPartsTest, APartOfTheTimestepsIsNotTakenForAllOfThem) {
  for (const json& record : records()) {
    const ChainWalk whole = walk_of(record);
    if (whole.count != 4 || record.at("kind").get<std::string>().starts_with("ddpm")) {
      continue;
    }
    ChainWalk part = whole;
    part.timesteps.assign(whole.timesteps.begin() + whole.first,
                          whole.timesteps.begin() + whole.first + whole.count);
    part.first = 0;
    part.count = -1;
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] { return plan_of(record, part, StepTarget::kFixedStride); }),
                HasSubstr("4 timesteps of a whole walk over 1000 must lie at least 250 apart"));
  }
  ChainWalk walk{.alphas_cumprod = alphas_cumprod(betas()), .timesteps = {100, 200, 300, 400}};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return ddim_inverse(walk); }),
              HasSubstr("at least 250 apart, got 100 to 400"));
  walk.first = 2;
  walk.count = 3;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return lcm(walk); }),
              HasSubstr("must lie in its 4 timesteps, got first 2 and count 3"));
}

// No spacing makes whole walks that are refused.
TEST(ChainPartsTest, WholeWalksOfEverySpacingAreTaken) {
  for (const Spacing spacing :
       {Spacing::kDit, Spacing::kLeading, Spacing::kTrailing, Spacing::kLinspace}) {
    for (int64_t num_steps = 1; num_steps <= 1000; ++num_steps) {
      const ChainWalk walk{.alphas_cumprod = alphas_cumprod(betas()),
                           .timesteps = chain_timesteps(1000, spacing, num_steps)};
      ASSERT_NO_THROW((void)ddim(walk, {})) << to_string(spacing) << " " << num_steps;
    }
  }
}

// Two parts, one behind the other, are the whole: what the first leaves the second goes on from.
TEST(ChainPartsTest, MeetWhereTheyShould) {
  for (const json& record : records()) {
    const auto kind = record.at("kind").get<std::string>();
    if (kind == "plms" || record.at("count") != 10) {  // plms begins anew with each part
      continue;
    }
    for (const StepTarget target : {StepTarget::kFixedStride, StepTarget::kNextTimestep}) {
      ChainWalk walk = walk_of(record);
      const SolverPlan whole = plan_of(record, walk, target);
      walk.count = 3;
      SolverPlan joined = plan_of(record, walk, target);
      walk.first = 3;
      walk.count = -1;
      const SolverPlan rest = plan_of(record, walk, target);
      joined.steps.insert(joined.steps.end(), rest.steps.begin(), rest.steps.end());
      EXPECT_EQ(difference(joined, record), difference(whole, record));
    }
  }
}

/// What sample.method=ddpm and ddim do.
double difference_of_sampler(const json& record) {
  std::vector<int64_t> ascending = record.at("timesteps").get<std::vector<int64_t>>();
  std::ranges::reverse(ascending);
  const DiscreteSchedule schedule = respaced(schedule_from_betas(betas()), ascending);
  const auto kind = record.at("kind").get<std::string>();
  at::Tensor x = start();
  for (int64_t k = 0; k < schedule.num_timesteps(); ++k) {
    const int64_t index = schedule.num_timesteps() - 1 - k;
    const at::Tensor prediction =
        denoised(x, static_cast<double>(schedule.timestep_map[static_cast<size_t>(index)]), false);
    x = kind == "ddim" ? ddim_step({.schedule = schedule, .eta = record.at("eta").get<double>()},
                                   index, x, prediction, noise(k))
                             .x
                       : ddpm_step({.schedule = schedule,
                                    .variance = kind == "ddpm_fixed_small" ? Variance::kFixedSmall
                                                                           : Variance::kFixedLarge},
                                   index, x, prediction, noise(k))
                             .x;
  }
  const at::Tensor expected =
      at::tensor(record.at("x").get<std::vector<double>>(), at::kDouble).view({2, 3, 2, 2});
  return max_difference(x, expected);
}

// docs/sampling.md says where, and why.
TEST(ChainPartsTest, SamplersDifferFromDiffusersWhereTheDocsSay) {
  constexpr double kSeen = 0.01;
  int64_t num_different = 0;
  for (const json& record : records()) {
    const auto kind = record.at("kind").get<std::string>();
    if (record.at("count") != 10) {
      continue;
    }
    const auto spacing = record.at("spacing").get<std::string>();
    const bool ends_at_0 = record.at("timesteps").back() == 0;
    bool differs = false;
    if (kind == "ddpm_fixed_large") {
      differs = !ends_at_0;  // the noise of the last step
    } else if (kind != "ddpm_fixed_small") {
      // The step from each timestep: also the last, which leads below 0 in leading and trailing.
      differs = spacing == "linspace";
    }
    const double seen =
        kind == "plms"
            ? difference(plan_of(record, walk_of(record), StepTarget::kNextTimestep), record)
            : difference_of_sampler(record);
    if (differs) {
      EXPECT_GT(seen, kSeen) << record.dump();
      ++num_different;
    } else {
      EXPECT_LT(seen, tolerance::kWholeModel) << record.dump();
    }
  }
  EXPECT_EQ(num_different, 5);
}

}  // namespace chain_parts_test
}  // namespace kinora::diffusion
