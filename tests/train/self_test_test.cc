#include "kinora/train/self_test.h"

#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/optim/optimizer.h"
#include "tests/train/tiny_dit.h"

namespace kinora::train {
namespace self_test_test {

/// Steps with gradients of one everywhere but where `keep_zero` says.
std::string run(TinyDit& tiny, double lr, const std::string& keep_zero = "none",
                SelfTest::SmallSteps small_steps = SelfTest::SmallSteps::kStop) {
  const auto parameters = tiny.model.named_parameters();
  SelfTest test(parameters, tiny.arena);
  optim::Optimizer optimizer({}, tiny.arena);
  for (int64_t step = 0; step < SelfTest::kSteps; ++step) {
    for (const auto& [path, parameter] : parameters) {
      if (path != keep_zero) {
        parameter->grad.fill_(1.0);
      }
    }
    test.see_gradients(tiny.arena);
    optimizer.step(tiny.arena, lr);
  }
  try {
    test.finish(tiny.arena, small_steps);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
    return error.what();
  }
  return "";
}

TEST(SelfTestTest, PassesWhenAllLearn) {
  TinyDit tiny;
  EXPECT_EQ(run(tiny, 1e-4), "");
}

TEST(SelfTestTest, NamesTheParameterWithoutGradient) {
  TinyDit tiny;
  const std::string message = run(tiny, 1e-4, "blocks.1.mlp.fc1.weight");
  EXPECT_NE(message.find("\n1 parameter has had no gradient:\n  blocks.1.mlp.fc1.weight"),
            std::string::npos)
      << message;
  EXPECT_EQ(message.find("not moved"), std::string::npos) << message;
}

TEST(SelfTestTest, NamesWhatDoesNotMove) {
  TinyDit tiny;
  const std::string message = run(tiny, 0.0);
  EXPECT_EQ(message.find("no gradient"), std::string::npos) << message;
  for (const auto& [path, parameter] : tiny.model.named_parameters()) {
    EXPECT_NE(message.find(path), std::string::npos) << path;
  }
}

// A step of 1e-12 is lost when it is added to a weight of 0.05 in fp32.
TEST(SelfTestTest, SeesStepsThatAreLostInTheStoredType) {
  TinyDit tiny;
  EXPECT_NE(run(tiny, 1e-12).find("parameters have not moved"), std::string::npos);
}

TEST(SelfTestTest, WarnsAtMostOfSmallStepsWhereTheRuleHasThem) {
  TinyDit tiny;
  EXPECT_EQ(run(tiny, 1e-12, "none", SelfTest::SmallSteps::kWarn), "");
  const std::string message =
      run(tiny, 1e-12, "blocks.1.mlp.fc1.weight", SelfTest::SmallSteps::kWarn);
  EXPECT_NE(message.find("1 parameter has had no gradient"), std::string::npos) << message;
}

TEST(SelfTestTest, OneGradientInTwentyStepsIsEnough) {
  TinyDit tiny;
  const auto parameters = tiny.model.named_parameters();
  SelfTest test(parameters, tiny.arena);
  optim::Optimizer optimizer({}, tiny.arena);
  for (int64_t step = 0; step < SelfTest::kSteps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (static_cast<int64_t>(i) % SelfTest::kSteps == step) {
        parameters[i].parameter->grad.flatten()[0].fill_(-1e-6);
      }
    }
    test.see_gradients(tiny.arena);
    optimizer.step(tiny.arena, 1e-3);
  }
  EXPECT_NO_THROW(test.finish(tiny.arena, SelfTest::SmallSteps::kStop));
}

}  // namespace self_test_test
}  // namespace kinora::train
