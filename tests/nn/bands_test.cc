#include "kinora/nn/bands.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "kinora/nn/conv.h"
#include "tests/error_of.h"
#include "tests/nn/random_values.h"

namespace kinora::nn {
namespace bands_test {

/// Norm, SiLU and a convolution whose edges are zeros, then a sum over all places times the result.
class Network : public Module {
 public:
  explicit Network(int64_t stride)
      : conv_({.in_channels = 6,
               .out_channels = 4,
               .kernel = {3, 3},
               .stride = {stride, stride},
               .padding = {{1, 1}, {1, 1}}}) {
    add_child("norm", norm_);
    add_child("conv", conv_);
    give_random_values(*this, at::kDouble);
  }

  [[nodiscard]] at::Tensor whole(const at::Tensor& x) const {
    const at::Tensor y = conv_.forward(at::silu(norm_.forward(x)));
    return y * y.mean({2, 3}, true);
  }

  /// The last sum is of the plan's second stage.
  [[nodiscard]] at::Tensor banded(const at::Tensor& x, const BandPlan& plan) const {
    const Bands bands(x, plan);
    const int64_t elements = bands.group_elements(3);
    const at::Tensor sums = band_sums(bands, norm_);
    const auto layer = [=, this](const Rows& rows, const std::vector<at::Tensor>& also) {
      return conv_.forward(at::silu(norm_.apply(rows.x, also[0], elements)),
                           {rows.missing, {1, 1}});
    };
    Bands y = over_bands(bands, {1, 1 - (conv_.shape().stride[0] - 1)}, layer, {sums});
    y = std::move(y).next_stage();
    EXPECT_EQ(y.size(), static_cast<size_t>(plan.stages[1].bands));
    return over_whole(y,
                      [](const at::Tensor& all) {
                        return all * all.mean({2, 3}, true);
                      })
        .joined();
  }

 private:
  GroupNorm norm_{3, 6};
  Conv conv_;
};

struct Case {
  int64_t rows;
  int64_t stride;
  BandPlan plan;
};

class BandsTest : public testing::TestWithParam<Case> {
 protected:
  at::Tensor x_ = normal({2, 6, GetParam().rows, 5}, 1).to(at::kDouble).set_requires_grad(true);
  Network network_{GetParam().stride};

  /// The result, then all gradients of sum(result * weights).
  std::vector<at::Tensor> with_gradients(const at::Tensor& result) {
    const at::Tensor weights = normal(result.sizes().vec(), 2).to(at::kDouble);
    torch::autograd::backward({(result * weights).sum()}, {});
    std::vector<at::Tensor> all = {result.detach(), x_.grad().clone()};
    x_.mutable_grad().reset();
    for (const auto& [path, parameter] : network_.named_parameters()) {
      all.push_back(parameter->value.grad().clone());
      parameter->value.mutable_grad().reset();
    }
    return all;
  }
};

TEST_P(BandsTest, ValuesAndGradientsAreThoseOfTheWhole) {
  const std::vector<at::Tensor> expected = with_gradients(network_.whole(x_));
  const std::vector<at::Tensor> got = with_gradients(network_.banded(x_, GetParam().plan));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(), 1e-11) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, BandsTest,
    testing::Values(
        Case{7, 1, {.stages = {{}, {}}}},
        Case{7, 1, {.stages = {{.bands = 2}, {.bands = 2}}, .recompute = true}},
        Case{7, 1, {.stages = {{.bands = 7}, {.bands = 3}}, .recompute = true, .on_host = true}},
        Case{3, 1, {.stages = {{.bands = 8}, {.bands = 1}}}},
        Case{8, 2, {.stages = {{.bands = 3, .units = 4}, {.bands = 4}}, .recompute = true}},
        Case{12, 2, {.stages = {{.bands = 2, .units = 6}, {.bands = 3, .units = 3}}}},
        Case{12, 2, {.stages = {{.bands = 6, .units = 6}, {.bands = 4}}}}));

TEST(BandsMemoryTest, BandsAreFreedWhileTheyAreRead) {
  const at::NoGradGuard no_grad;
  Bands x(normal({1, 2, 9, 4}, 1), {.stages = {{.bands = 9}}});
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> bands;
  for (size_t i = 0; i < x.size(); ++i) {
    bands.emplace_back(x[i].getIntrusivePtr());
  }
  std::vector<int64_t> alive;
  const auto layer = [&](const Rows& rows, const auto& /*also*/) {
    int64_t count = 0;
    for (const auto& band : bands) {
      count += band.expired() ? 0 : 1;
    }
    alive.push_back(count);
    return rows.x.narrow(2, rows.missing[0] == 0 ? 1 : 0, 1).clone();
  };
  (void)over_bands(std::move(x), {1, 1}, layer);
  EXPECT_EQ(alive, (std::vector<int64_t>{9, 9, 8, 7, 6, 5, 4, 3, 2}));
}

TEST(BandsMemoryTest, OnlyTheSoleOwnerOverwrites) {
  const Bands x(normal({1, 2, 9, 4}, 1).clone(), {});
  EXPECT_FALSE(x.may_overwrite());  // gradients
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(x.may_overwrite());
  {
    const std::array<Bands, 2> both = {x, x};
    EXPECT_FALSE(both[0].may_overwrite());
  }
  EXPECT_TRUE(x.may_overwrite());
  const at::Tensor all = normal({1, 2, 9, 4}, 1).clone();
  EXPECT_FALSE(Bands(all.narrow(2, 0, 4), {}).may_overwrite());  // a view
  EXPECT_TRUE(Bands(all.clone(), BandPlan{.stages = {{.bands = 2}}}).may_overwrite());
  const BandPlan on_host = {.stages = {{.bands = 2}}, .on_host = true};
  EXPECT_FALSE(Bands(all.clone(), on_host).may_overwrite());
}

TEST(BandsTest, RowsOfSeveralBands) {
  const at::Tensor all = normal({1, 2, 9, 4}, 1);
  const Bands x(all, {.stages = {{.bands = 4}}});
  for (int64_t from = 0; from < 9; ++from) {
    for (int64_t to = from + 1; to <= 9; ++to) {
      EXPECT_TRUE(x.rows(from, to).equal(all.narrow(2, from, to - from))) << from << " to " << to;
    }
  }
}

TEST(BandsPlanTest, HostMemoryAndGradientsGather) {
  const std::vector<BandStage> stages = {
      {.needs = {{.stored = 1000, .work = 100, .gathered_work = 500, .rows = 10}}, .units = 10}};
  EXPECT_EQ(plan_bands(stages, {1010}, false).stages[0].bands, 10);
  EXPECT_FALSE(plan_bands(stages, {1010}, false).on_host);
  const BandPlan host = plan_bands(stages, {260}, false);
  EXPECT_TRUE(host.on_host);
  EXPECT_EQ(host.stages[0].bands, 2);                              // 500 / 2
  EXPECT_EQ(plan_bands(stages, {1500}, true).stages[0].bands, 4);  // 3 * 500 * 3 / 10
}

TEST(BandsPlanTest, TheFewestBandsThatFit) {
  const std::vector<BandNeed> needs = {
      {.stored = 1000, .kept = 500, .work = 800, .rows = 80, .halo = 1},
      {.stored = 100, .kept = 200, .work = 3200, .rows = 160, .halo = 2}};
  const auto plan = [&](int64_t budget) {
    return plan_bands({{.needs = needs, .units = 10}}, {budget}, false);
  };
  EXPECT_EQ(plan(0).stages[0].bands, 1);
  // One band takes 100 + 3200, five take 1000 + 10 * (80 / 5 + 2).
  EXPECT_EQ(plan(3300).stages[0].bands, 1);
  const BandPlan five = plan(1180);
  EXPECT_EQ(five.stages[0].bands, 5);
  EXPECT_EQ(five.stages[0].units, 10);
  EXPECT_TRUE(five.recompute);
  EXPECT_FALSE(five.on_host);
  EXPECT_EQ(plan(1179).stages[0].bands, 10);
  const BandPlan host = plan(900);
  EXPECT_TRUE(host.on_host);
  EXPECT_EQ(host.stages[0].bands, 5);
  const std::string error = error_of(ErrorKind::kConfig, [&] { (void)plan(399); });
  EXPECT_NE(error.find("must be 400 bytes or more"), std::string::npos) << error;
}

TEST(BandsPlanTest, EveryStageHasItsOwn) {
  const std::vector<BandStage> stages = {
      {.needs = {{.stored = 100, .kept = 50, .work = 200, .rows = 10, .halo = 0}}, .units = 10},
      {.needs = {{.stored = 400, .kept = 100, .work = 800, .rows = 20, .halo = 1}}, .units = 20}};
  const BandPlan drawn = plan_bands(stages, {640}, false);
  ASSERT_EQ(drawn.stages.size(), 2U);
  EXPECT_EQ(drawn.stages[0].bands, 1);
  EXPECT_EQ(drawn.stages[1].bands, 5);  // 400 + 40 * (20 / 5 + 2)
  // With gradients 150 are kept, and layers take three times as much.
  const BandPlan trained = plan_bands(stages, {910}, true);
  EXPECT_EQ(trained.stages[0].bands, 1);
  EXPECT_EQ(trained.stages[1].bands, 20);  // 150 + 400 + 120 * (1 + 2)
}

}  // namespace bands_test
}  // namespace kinora::nn
