// Guidance on two ranks against guidance on one.
#include "kinora/parallel/guidance_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kinora/diffusion/guidance.h"
#include "tests/comm/ranks.h"
#include "tests/ops/tensors.h"

namespace kinora::parallel {
namespace guidance_parallel_test {

/// x + label + t, by way of `prepared` where it is given; notes the rows it was asked for.
class NotingDenoiser : public diffusion::Denoiser {
 public:
  explicit NotingDenoiser(bool prepares) : prepares_(prepares) {}

  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                     const diffusion::Conditions& conditions,
                     const diffusion::Pass& pass) override {
    rows.push_back(x_t.size(0));
    EXPECT_EQ(pass.prepared.any(), prepares_);
    const at::Tensor moved = prepares_ ? pass.prepared.of_times : conditions.labels + t;
    return x_t + moved.view({-1, 1, 1, 1});
  }
  diffusion::Prepared prepare(const at::Tensor& times,
                              const diffusion::Conditions& conditions) override {
    return {.of_times = prepares_ ? conditions.labels + times.unsqueeze(1) : at::Tensor()};
  }
  std::vector<int64_t> rows;

 private:
  bool prepares_;
};

at::Tensor predicted(diffusion::Denoiser& denoiser, int64_t batch, double scale, bool prepares) {
  const diffusion::Conditions labels = {at::arange(batch, at::kLong)};
  diffusion::GuidedDenoiser guided(denoiser, labels,
                                   {.scale = scale, .null = {at::full({batch}, 99, at::kLong)}});
  const at::Tensor x = ops::normal({batch, 3, 2, 2}, 1);
  if (!prepares) {
    return guided.predict(x, 5.0, 0.5);
  }
  guided.prepare({{4.0, 0.4}, {5.0, 0.5}}, at::arange(4, 6, at::kFloat));
  return guided.predict(x, 1);
}

TEST(GuidanceParallelTest, TwoRanksPredictAHalfEach) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const bool prepares : {false, true}) {
      for (const double scale : {1.0, 4.0}) {
        for (const int64_t batch : {1, 2, 3}) {
          NotingDenoiser alone(prepares);
          NotingDenoiser half(prepares);
          GuidanceParallel together(half, world);
          world.reset_traffic();
          EXPECT_TRUE(at::equal(predicted(together, batch, scale, prepares),
                                predicted(alone, batch, scale, prepares)));
          const int64_t all = scale == 1.0 ? batch : 2 * batch;
          const bool divides = all % 2 == 0;
          EXPECT_THAT(half.rows, testing::ElementsAre(divides ? all / 2 : all));
          EXPECT_EQ(world.traffic(comm::Operation::kAllGather).calls, divides ? 1 : 0);
        }
      }
    }
  });
}

/// Keeps a step cache, and asks it whether labels that are added to x_t changed.
class CachingDenoiser : public diffusion::Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                     const diffusion::Conditions& conditions,
                     const diffusion::Pass& pass) override {
    const at::Tensor now = x_t + conditions.labels.view({-1, 1, 1, 1});
    if (pass.cache == nullptr) {
      return now;
    }
    reuses.push_back(pass.cache->reuses(now, [](const at::Tensor& /*numbers*/) {}));
    if (!reuses.back()) {
      pass.cache->keep(now);
    }
    return pass.cache->residual();
  }
  std::unique_ptr<diffusion::StepCache> make_cache() override {
    return std::make_unique<diffusion::StepCache>(config, use);
  }
  diffusion::StepCacheConfig config{.kind = diffusion::StepCacheConfig::Kind::kFirstBlock,
                                    .threshold = 0.05};
  diffusion::StepCacheUse use;
  std::vector<bool> reuses;
};

// The unconditional half, whose label is 0, changes twice as much as the other.
TEST(GuidanceParallelTest, BothRanksLeaveOutWhatOneRankDoes) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const auto predictions = [](diffusion::Denoiser& denoiser) {
      diffusion::GuidedDenoiser guided(denoiser, {at::full({1}, 1, at::kLong)},
                                       {.scale = 4.0, .null = {at::full({1}, 0, at::kLong)}});
      const std::vector<double> values = {1.0, 1.02, 1.06, 1.08};
      std::vector<diffusion::GuidedDenoiser::Moment> moments(values.size(), {4.0, 0.4});
      guided.prepare(moments, at::full({4}, 4.0, at::kFloat));
      std::vector<at::Tensor> all;
      for (size_t i = 0; i < values.size(); ++i) {
        all.push_back(guided.predict(at::full({1, 3, 2, 2}, values[i], at::kFloat), i));
      }
      return at::stack(all);
    };
    CachingDenoiser alone;
    CachingDenoiser half;
    GuidanceParallel together(half, world);
    EXPECT_TRUE(at::equal(predictions(together), predictions(alone)));
    EXPECT_THAT(alone.reuses, testing::ElementsAre(false, true, false, true));
    EXPECT_EQ(half.reuses, alone.reuses);
  });
}

}  // namespace guidance_parallel_test
}  // namespace kinora::parallel
