// Training of discrete chains beyond Iddpm's defaults, against diffusers and the authors' programs
// (tools/make_objective_fixtures.py).

#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/diffusion/speedit.h"
#include "kinora/kernels/diffusion_loss.h"
#include "kinora/ops/random.h"
#include "tests/diffusion/tensors.h"

namespace kinora::diffusion {
namespace chain_objective_test {

using testing::HasSubstr;
using Weights = LossWeights::Kind;

ObjectiveConfig parsed(const std::string& text) {
  return parse_config<ObjectiveConfig>({.text = "objective: {" + text + "}", .origin = "test"});
}

Iddpm chain(const std::string& text, bool learned_variance) {
  return std::get<Iddpm>(make_objective(parsed(text), learned_variance));
}

struct Case {
  std::string name;
  std::string settings;
  bool learned_variance;
};

const std::string kStableDiffusion = "betas: scaled_linear, beta_start: 0.00085, beta_end: 0.012";
const std::vector<Case> kCases = {
    {"v_scaled_linear_min_snr", "prediction: v, loss_weights: min_snr, " + kStableDiffusion, true},
    {"v_linear_zero_snr_min_snr", "prediction: v, zero_terminal_snr: true, loss_weights: min_snr",
     true},
    {"sample_squared_cosine_min_snr",
     "prediction: sample, betas: squared_cosine, loss_weights: min_snr, min_snr_gamma: 3", true},
    {"sample_linear_zero_snr_p2", "prediction: sample, zero_terminal_snr: true, loss_weights: p2",
     false},
    {"eps_scaled_linear_min_snr", "loss_weights: min_snr, " + kStableDiffusion, true},
    {"eps_linear_p2", "loss_weights: p2", true},
    {"v_squared_cosine_p2",
     "prediction: v, betas: squared_cosine, loss_weights: p2, p2_k: 2, p2_gamma: 0.5", false},
    {"sample_linear", "prediction: sample", true},
};

class ChainObjectiveTest : public testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] at::Tensor shared(const std::string& name) const {
    return tensor_of(records_.at(name)).to(at::kFloat);
  }
  [[nodiscard]] at::Tensor expected(const std::string& name) const {
    return tensor_of(records_.at(GetParam().name + "." + name));
  }

  const Records records_{"objectives.txt"};
};

TEST_P(ChainObjectiveTest, EqualsDiffusers) {
  const Iddpm objective = chain(GetParam().settings, GetParam().learned_variance);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    if (type == at::kFloat && GetParam().name == "sample_linear") {
      // The likelihood of levels fifty deviations away is a difference that float has no digits
      // for.
      continue;
    }
    SCOPED_TRACE(at::toString(type));
    const at::Tensor x0 = shared("x0").to(type);
    const NoisedBatch batch{{}, shared("t"), shared("noise").to(type), shared("weights").to(type)};
    const at::Tensor prediction = expected("prediction").to(type).requires_grad_();
    const Loss result = loss(objective, prediction, batch, x0);
    result.mean.backward();
    EXPECT_LT(relative_difference(result.mse, expected("mse")), 1e-6);
    const at::Tensor total = expected("loss_weights") * expected("mse") + expected("vb");
    EXPECT_LT(((result.per_sample - total) / total).abs().max().item<double>(), 1e-5);
    ASSERT_EQ(result.vb.defined(), GetParam().learned_variance);
    if (result.vb.defined()) {
      const at::Tensor vb = expected("vb");
      EXPECT_LT(((result.vb - vb) / vb).abs().max().item<double>(), 2e-5);
    }
    EXPECT_NEAR(result.mean.item<double>(), expected("mean").item<double>(),
                1e-6 * expected("mean").item<double>());
    // Sample by sample: their sizes differ by orders of magnitude.
    for (int64_t b = 0; b < x0.size(0); ++b) {
      EXPECT_LT(relative_difference(prediction.grad()[b], expected("gradient")[b]), 2e-5) << b;
    }
  }
}

TEST_P(ChainObjectiveTest, LossWeightsAreThoseOfTheFormulas) {
  // Of the table itself: beside a large bound they do not show in the loss.
  const Iddpm objective = chain(GetParam().settings, GetParam().learned_variance);
  const at::Tensor got =
      objective.table().index_select(0, shared("t").to(at::kLong)).select(1, kernels::kLossWeight);
  const at::Tensor want = expected("loss_weights");
  EXPECT_LT(((got - want) / want).abs().max().item<double>(), 1e-6);
}

TEST_P(ChainObjectiveTest, NoisesAsDiffusers) {
  const Iddpm objective = chain(GetParam().settings, GetParam().learned_variance);
  const at::Tensor x0 = shared("x0");
  const at::Tensor t = shared("t");
  const NoisedBatch batch = noise_at(objective, x0, {t, {}}, {.sample_index = sample_numbers(6)});
  // x_t = signal x_0 + deviation noise: the same two factors with the fixture's noise.
  const at::Tensor of_fixture = batch.x_t - expected("x_t").to(at::kFloat);
  const at::Tensor deviation = (batch.noise - shared("noise"));
  for (int64_t b = 0; b < 6; ++b) {
    const auto index = t[b].item<int64_t>();
    const double factor = objective.schedule().sqrt_one_minus_alphas_cumprod[index];
    EXPECT_LT(max_difference(of_fixture[b], factor * deviation[b]), 2e-6) << b;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChainObjectiveTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(IddpmTest, FrameMasksLimitTheWeightedLossOfEveryPrediction) {
  // A clip whose masked frames hold anything has the loss of the clip without them.
  for (const char* prediction : {"eps", "sample", "v"}) {
    const Iddpm objective =
        chain(std::string("loss_weights: min_snr, prediction: ") + prediction, true);
    const auto normals = [](at::IntArrayRef shape, uint64_t seed) {
      return ops::random_normal(shape, sample_numbers(shape[0]), seed, 0, RandomPurpose::kTest,
                                at::kCPU);
    };
    const at::Tensor x0 = normals({2, 1, 3, 2, 2}, 1);
    const at::Tensor noise = normals({2, 1, 3, 2, 2}, 2);
    const at::Tensor output = normals({2, 2, 3, 2, 2}, 3);
    const at::Tensor t = at::tensor({0.0F, 300.0F});
    const at::Tensor mask = at::tensor({1, 0, 1, 1, 0, 1}).to(at::kBool).view({2, 3});
    const Loss masked = loss(objective, output, {{}, t, noise, at::ones_like(t), mask}, x0);
    const auto kept = [](const at::Tensor& x) {
      return at::cat({x.narrow(2, 0, 1), x.narrow(2, 2, 1)}, 2);
    };
    const Loss whole =
        loss(objective, kept(output), {{}, t, kept(noise), at::ones_like(t)}, kept(x0));
    EXPECT_LT(relative_difference(masked.per_sample, whole.per_sample), 1e-6) << prediction;
    EXPECT_LT(relative_difference(masked.mse, whole.mse), 1e-6) << prediction;
  }
}

TEST(SpeeditTest, ProbabilitiesAreThoseOfThePairsOfTheReference) {
  const Records records("objectives.txt");
  for (const auto& [name, settings] : std::vector<std::pair<std::string, std::string>>{
           {"speedit_linear", "betas: linear"},
           {"speedit_scaled_linear", kStableDiffusion},
           {"speedit_cosine", "betas: squared_cosine"}}) {
    const std::vector<double> p =
        speedit_probabilities(chain(settings, false).schedule().alphas_cumprod);
    const std::vector<double>& want = records.values(name);
    ASSERT_EQ(p.size(), want.size());
    for (size_t t = 0; t < p.size(); ++t) {
      // One timestep lies in the middle of the tanh, where rounding is blown up a million times.
      ASSERT_NEAR(p[t], want[t], 1e-6) << name << " " << t;
    }
  }
}

TEST(SpeeditTest, TimestepsAreDrawnSo) {
  constexpr int64_t kDraws = 200000;
  const Objective objective = chain("timestep_sampling: speedit, loss_weights: p2", true);
  const Records records("objectives.txt");
  const NoiseKey key{.seed = 3, .sample_index = sample_numbers(kDraws)};
  const Timesteps drawn = draw_timesteps(objective, key, at::kCPU);
  EXPECT_FALSE(drawn.weights.defined());
  EXPECT_EQ(max_difference(drawn.t, drawn.t.floor()), 0.0);
  const at::Tensor counts = at::bincount(drawn.t.to(at::kLong), {}, 1000).to(at::kDouble);
  const at::Tensor mean = tensor_of(records.at("speedit_linear")) * static_cast<double>(kDraws);
  // Chi-square of 999 degrees of freedom: mean 999, deviation 45.
  EXPECT_NEAR(((counts - mean).square() / mean).sum().item<double>(), 999.0, 5.0 * 45.0);
  // Of its sample alone.
  const Timesteps one =
      draw_timesteps(objective, {.seed = 3, .sample_index = sample_numbers(1, 77)}, at::kCPU);
  EXPECT_EQ(one.t.item<float>(), drawn.t[77].item<float>());
}

TEST(SpeeditTest, NeedsAChainWhoseNoiseStopsGrowing) {
  try {
    (void)chain("timestep_sampling: speedit, timesteps: 100, " + kStableDiffusion, true);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("objective.timesteps=1000"));
  }
}

TEST(ObjectiveConfigTest, DefaultsAreTheOnesOfIddpm) {
  const Iddpm before(500, true);
  const Iddpm now = chain("timesteps: 500", true);
  EXPECT_EQ(now.schedule().betas, before.schedule().betas);
  EXPECT_EQ(max_difference(now.table(), before.table()), 0.0);
  EXPECT_EQ(now.prediction(), Prediction::kEps);
  EXPECT_FALSE(now.cumulative().defined());
}

TEST(ObjectiveConfigTest, ContradictionsAreRefusedWithTheWayOut) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      (void)make_objective(parsed(text), true);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << text;
      return error.what();
    }
    ADD_FAILURE() << text;
    return "";
  };
  EXPECT_THAT(refusal("zero_terminal_snr: true"), HasSubstr("objective.prediction=v"));
  EXPECT_THAT(refusal("kind: flow, prediction: v"), HasSubstr("be eps for flow"));
  EXPECT_THAT(refusal("kind: flow, betas: squared_cosine"), HasSubstr("be linear for flow"));
  EXPECT_THAT(refusal("kind: flow, loss_weights: p2"), HasSubstr("be none for flow"));
  EXPECT_THAT(refusal("kind: flow, zero_terminal_snr: true"), HasSubstr("be false for flow"));
  EXPECT_THAT(refusal("kind: flow, timestep_sampling: speedit"), HasSubstr("be uniform for flow"));
  EXPECT_THAT(refusal("beta_start: 0.03"), HasSubstr("at most objective.beta_end"));
  EXPECT_THAT(refusal("timesteps: 100, beta_end: 0.2"), HasSubstr("timesteps / 1000"));
  EXPECT_THAT(refusal("prediction: noise"), HasSubstr("eps, sample, v"));
  EXPECT_THAT(refusal("min_snr_gamma: 0"), HasSubstr("min_snr_gamma"));
  EXPECT_THAT(refusal("p2_k: 0"), HasSubstr("p2_k"));
  EXPECT_THAT(refusal("p2_gamma: -1"), HasSubstr("p2_gamma"));
}

TEST(ObjectiveConfigTest, KeysParseBack) {
  const std::string text = dump_config(
      parsed("prediction: v, betas: scaled_linear, beta_start: 0.00085, beta_end: 0.012, "
             "zero_terminal_snr: true, loss_weights: min_snr, timestep_sampling: speedit"));
  EXPECT_EQ(dump_config(parse_config<ObjectiveConfig>({.text = text, .origin = "dump"})), text);
}

TEST(IddpmTest, RefusesWhatCannotBeLearned) {
  const std::vector<double> zero_snr = zero_terminal_snr(linear_betas(1000));
  EXPECT_THROW((void)Iddpm(IddpmOptions{.betas = zero_snr}), Error);
  EXPECT_NO_THROW((void)Iddpm(IddpmOptions{.betas = zero_snr, .prediction = Prediction::kV}));
  EXPECT_THROW(
      (void)Iddpm(IddpmOptions{.betas = linear_betas(50), .prediction = Prediction::kFlow}), Error);
  EXPECT_THROW(
      (void)Iddpm(IddpmOptions{.betas = linear_betas(50), .timestep_probabilities = {0.5, 0.5}}),
      Error);
  for (const LossWeights& weights : {LossWeights{.min_snr_gamma = 0.0}, LossWeights{.p2_k = 0.0},
                                     LossWeights{.p2_gamma = -1.0}}) {
    EXPECT_THROW((void)Iddpm(IddpmOptions{.betas = linear_betas(50), .weights = weights}), Error);
  }
}

}  // namespace chain_objective_test
}  // namespace kinora::diffusion
