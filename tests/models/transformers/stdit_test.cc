#include "kinora/models/transformers/stdit.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "kinora/models/transformers/stdit2.h"
#include "kinora/models/transformers/stdit3.h"
#include "tests/error_of.h"
#include "tests/models/transformers/video_fixture.h"

namespace kinora::models {
namespace stdit_test {

struct Family {
  const char* fixture;
  const char* architecture;
};

class STDiTFixtureTest : public testing::TestWithParam<Family> {
 protected:
  [[nodiscard]] std::unique_ptr<Model> model(bool train) const {
    std::unique_ptr<Model> model = make_model(config_);
    set_weights(*model, fixture_, train);
    return model;
  }

  VideoFixture fixture_{GetParam().fixture};
  ModelConfig config_ = fixture_.config(GetParam().architecture);
};

TEST_P(STDiTFixtureTest, OutputsMatchReference) {
  expect_outputs(*model(false), fixture_);
}

TEST_P(STDiTFixtureTest, EveryGradientMatchesReferenceForEveryRecomputation) {
  for (int64_t recompute = 0; recompute <= config_.transformer.depth; ++recompute) {
    SCOPED_TRACE(std::to_string(recompute) + " blocks recomputed");
    const std::unique_ptr<Model> trained = model(true);
    trained->set_recompute(recompute);
    expect_gradients(*trained, fixture_);
  }
}

TEST_P(STDiTFixtureTest, BucketsHoldEveryParameterOnceAndIslandsApart) {
  const std::unique_ptr<Model> fresh = make_model(config_);
  std::map<std::string, bool> islands;
  for (const auto& [path, parameter] : fresh->named_parameters()) {
    islands[path] = parameter->fp32_island;
  }
  size_t in_buckets = 0;
  for (const nn::BucketSpec& bucket : fresh->buckets()) {
    EXPECT_FALSE(bucket.parameters.empty()) << bucket.name;
    EXPECT_EQ(bucket.ring, bucket.name.find("blocks.") == std::string::npos ? "" : "blocks");
    EXPECT_EQ(bucket.is_block, !bucket.ring.empty());
    for (const std::string& path : bucket.parameters) {
      ASSERT_TRUE(islands.contains(path)) << path;
      EXPECT_EQ(islands[path], bucket.fp32_island) << path;
      ++in_buckets;
    }
  }
  EXPECT_EQ(in_buckets, islands.size());
}

// What divides or offloads state relies on it: a bucket is announced before it is used, and its
// gradients are complete when it is given back.
TEST_P(STDiTFixtureTest, BucketsAreAnnouncedInOrderAndComplete) {
  using Moment = ops::BucketMoment;
  for (const int64_t recompute : {int64_t{0}, config_.transformer.depth}) {
    SCOPED_TRACE(std::to_string(recompute) + " blocks recomputed");
    const std::unique_ptr<Model> trained = model(true);
    trained->set_recompute(recompute);
    const std::vector<nn::BucketSpec> buckets = trained->buckets();
    std::map<std::string, nn::Parameter*> parameters;
    for (const auto& [path, parameter] : trained->named_parameters()) {
      parameters[path] = parameter;
    }
    std::vector<std::pair<Moment, std::string>> calls;
    std::map<std::string, at::Tensor> given_back;
    trained->tell_buckets([&](Moment moment, int64_t bucket) {
      const nn::BucketSpec& spec = buckets[static_cast<size_t>(bucket)];
      calls.emplace_back(moment, spec.name);
      for (const std::string& path : spec.parameters) {
        const at::Tensor& gradient = parameters.at(path)->grad;
        if (moment == Moment::kBeforeBackward) {
          EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0) << path;
        } else if (moment == Moment::kAfterBackward) {
          given_back[path] = gradient.clone();
        }
      }
    });
    expect_gradients(*trained, fixture_);

    std::vector<std::pair<Moment, std::string>> expected;
    for (const nn::BucketSpec& bucket : buckets) {
      if (!bucket.ring.empty()) {
        expected.emplace_back(Moment::kBeforeForward, bucket.name);
        expected.emplace_back(Moment::kAfterForward, bucket.name);
      }
    }
    for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) {
      if (!bucket->ring.empty()) {
        expected.emplace_back(Moment::kBeforeBackward, bucket->name);
        expected.emplace_back(Moment::kAfterBackward, bucket->name);
      }
    }
    EXPECT_EQ(calls, expected);
    for (const auto& [path, gradient] : given_back) {
      EXPECT_TRUE(gradient.equal(parameters.at(path)->grad)) << path;
    }
  }
}

TEST_P(STDiTFixtureTest, NullTextStandsForTheCaptionOnly) {
  const std::unique_ptr<Model> fixed = model(false);
  const at::NoGradGuard no_grad;
  diffusion::Conditions conditions = fixture_.conditions("forward");
  const at::Tensor null = fixture_.tensor("weights.y_embedder.y_embedding");
  conditions.null_text = at::ones_like(conditions.null_text);
  const auto run = [&] {
    return fixed->forward(fixture_.tensor("forward.x_t"), fixture_.tensor("forward.t"), conditions);
  };
  const at::Tensor nulled = run();
  conditions.text = null.expand_as(conditions.text).contiguous();
  conditions.null_text = at::Tensor();
  EXPECT_TRUE(nulled.equal(run()));
}

TEST_P(STDiTFixtureTest, AMaskOfNoisedFramesChangesNothing) {
  if (config_.transformer.given_embedders) {
    GTEST_SKIP() << "frames of Open-Sora 1.3 are given beside the input, and see t";
  }
  const std::unique_ptr<Model> fixed = model(false);
  const at::NoGradGuard no_grad;
  diffusion::Conditions conditions = fixture_.conditions("forward");
  const at::Tensor x = fixture_.tensor("forward.x_t");
  conditions.frame_mask = at::Tensor();
  const at::Tensor expected = fixed->forward(x, fixture_.tensor("forward.t"), conditions);
  conditions.frame_mask = at::ones({x.size(0), x.size(2)}, at::kBool);
  EXPECT_LT(relative_error(fixed->forward(x, fixture_.tensor("forward.t"), conditions), expected),
            1e-6);
  conditions.frame_mask = conditions.frame_mask.logical_not();
  const at::Tensor given = fixed->forward(x, fixture_.tensor("forward.t"), conditions);
  EXPECT_TRUE(given.equal(fixed->forward(x, fixture_.tensor("forward.t") * 0.5, conditions)))
      << "given frames do not see t";
}

TEST_P(STDiTFixtureTest, LowerPrecisionIsNear) {
  const std::unique_ptr<Model> fixed = model(false);
  for (const auto& [path, parameter] : fixed->named_parameters()) {
    if (!parameter->fp32_island) {
      parameter->value = parameter->value.to(at::kBFloat16);
    }
  }
  const at::NoGradGuard no_grad;
  const at::Tensor output = fixture_.run(*fixed, "forward");
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_LT(relative_error(output, fixture_.tensor("forward.output")), 0.03);
}

TEST_P(STDiTFixtureTest, WrongInputsAreNamed) {
  const std::unique_ptr<Model> fixed = model(false);
  const at::Tensor x = fixture_.tensor("forward.x_t");
  const at::Tensor t = fixture_.tensor("forward.t");
  const auto message = [&](const at::Tensor& x_t, const at::Tensor& time,
                           const diffusion::Conditions& conditions) {
    return error_of(ErrorKind::kShape, [&] { return fixed->forward(x_t, time, conditions); });
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const diffusion::Conditions good = fixture_.conditions("forward");
  expect(message(x.narrow(1, 0, 1), t, good), "x_t must have shape [B, 2");
  expect(message(x, t.to(at::kDouble), good), "t must be float32 [3]");
  diffusion::Conditions conditions = good;
  conditions.text = at::Tensor();
  expect(message(x, t, conditions), "needs text");
  conditions.text = good.text.narrow(2, 0, 4);
  expect(message(x, t, conditions), "text must have shape");
  conditions = good;
  conditions.frame_mask = at::ones_like(t).to(at::kBool).unsqueeze(1);
  expect(message(x, t, conditions), "frame_mask must be bool");
  if (config_.architecture == "stdit") {
    expect(message(x.narrow(2, 0, 2), t, good), "is for x_t of 4 x 6 x 8");
    return;
  }
  conditions = good;
  conditions.fps = at::Tensor();
  expect(message(x, t, conditions), "needs fps");
  conditions = good;
  conditions.height = at::Tensor();
  expect(message(x, t, conditions), "height");
}

INSTANTIATE_TEST_SUITE_P(Families, STDiTFixtureTest,
                         testing::Values(Family{"stdit", "stdit"}, Family{"stdit2", "stdit2"},
                                         Family{"stdit3", "stdit3"},
                                         Family{"stdit3_windows", "stdit3"},
                                         Family{"stdit3_given", "stdit3"}),
                         [](const auto& info) { return std::string(info.param.fixture); });

class STDiT3Test : public testing::Test {
 protected:
  STDiT3Test() { set_weights(model_, fixture_, false); }

  at::NoGradGuard no_grad_;
  VideoFixture fixture_{"stdit3"};
  STDiT3 model_{fixture_.config("stdit3")};
  at::Tensor x_ = fixture_.tensor("image.x_t");  // [2, 2, 1, 4, 10]
  at::Tensor t_ = fixture_.tensor("image.t");
  diffusion::Conditions conditions_ = fixture_.conditions("image");
};

TEST_F(STDiT3Test, AnImageIsAClipOfOneFrame) {
  const at::Tensor image = model_.forward(x_.squeeze(2), t_, conditions_);
  EXPECT_TRUE(image.unsqueeze(2).equal(model_.forward(x_, t_, conditions_)));
}

TEST_F(STDiT3Test, PatchesAtTheEndNeedNotBeFull) {
  const at::Tensor odd = x_.narrow(3, 0, 3).narrow(4, 0, 9);
  at::Tensor full = x_.clone();
  full.narrow(3, 3, 1).zero_();
  full.narrow(4, 9, 1).zero_();
  const at::Tensor got = model_.forward(odd, t_, conditions_);
  EXPECT_TRUE(got.equal(model_.forward(full, t_, conditions_).narrow(3, 0, 3).narrow(4, 0, 9)));
}

TEST_F(STDiT3Test, CaptionsWithoutLengthsAreWhole) {
  conditions_.text_lengths.fill_(conditions_.text.size(1));
  const at::Tensor expected = model_.forward(x_, t_, conditions_);
  conditions_.text_lengths = at::Tensor();
  EXPECT_TRUE(model_.forward(x_, t_, conditions_).equal(expected));
}

// Open-Sora prints these in units of 2^20: STDiT "724M", STDiT3 "1.1B".
TEST(STDiTSizeTest, ParametersAreAsManyAsPublished) {
  struct Row {
    const char* name;
    double millions;
  };
  for (const Row& row :
       {Row{"STDiT-XL/2", 759.6}, Row{"STDiT3-XL/2", 1207.6}, Row{"STDiT3-3B/2", 3182.0}}) {
    ModelConfig config;
    config.name = row.name;
    config.in_channels = 4;
    config.frames = 16;
    config.height = 32;
    config.width = 32;
    const std::unique_ptr<Model> model = make_model(resolved(config));
    int64_t count = 0;
    for (const auto& [path, parameter] : model->named_parameters()) {
      count += parameter->numel();
    }
    EXPECT_NEAR(static_cast<double>(count) / 1e6, row.millions, row.millions * 5e-4) << row.name;
  }
}

TEST(STDiT3ConfigTest, WindowsAndTheirRotationBelongTogether) {
  ModelConfig config = VideoFixture("stdit3_windows").config("stdit3");
  const auto refusal = [&config] {
    return error_of(ErrorKind::kConfig, [&] { return resolved(config).name; });
  };
  EXPECT_EQ(refusal(), "no error");
  config.transformer.rotary_3d = false;
  EXPECT_NE(refusal().find("both or neither"), std::string::npos);
  config.transformer.rotary_3d = true;
  config.transformer.heads = 3;  // 8 dims each: no three axes of pairs
  EXPECT_NE(refusal().find("multiple of 6"), std::string::npos);
}

}  // namespace stdit_test
}  // namespace kinora::models
