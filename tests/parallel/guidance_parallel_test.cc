// Guidance on two ranks against guidance on one.
#include "kinora/parallel/guidance_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace guidance_parallel_test
}  // namespace kinora::parallel
