// kinora bench simulate: the tables that it makes, and what it refuses.

#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace bench_simulate_test {

class BenchSimulateTest : public RunTest {
 protected:
  [[nodiscard]] Outcome simulate(const Arguments& more) const {
    Arguments arguments = {"bench", "simulate", recipe().string(), "run.dir=unused"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }
};

TEST_F(BenchSimulateTest, PredictsARowForEachNumberOfNodes) {
  const Arguments arguments = {"--gpus-per-node", "8",         "--nodes",  "3",
                               "--step-seconds",  "0.5",       "--inside", "2e-5,4e11",
                               "--across",        "1e-5,2e10", "--json"};
  const Outcome outcome = simulate(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto facts = nlohmann::json::parse(outcome.out);
  const auto& rows = facts.at("rows");
  ASSERT_EQ(rows.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rows[i].at("nodes"), i + 1);
    EXPECT_EQ(rows[i].at("gpus"), 8 * (i + 1));
    EXPECT_NEAR(rows[i].at("ms").get<double>(), 500.0 + rows[i].at("exposed_ms").get<double>(),
                1e-6);
    EXPECT_NEAR(rows[i].at("scaling").get<double>(), 500.0 / rows[i].at("ms").get<double>(), 1e-9);
    EXPECT_GT(rows[i].at("exposed_ms").get<double>(), 0.0);
  }
  EXPECT_EQ(rows[0].at("across_ms"), 0.0);
  EXPECT_GT(rows[1].at("across_ms").get<double>(), 0.0);
  bool names_the_step = false;
  for (const auto& input : facts.at("inputs")) {
    names_the_step |= input.at("name") == "step of one GPU" && input.at("origin") == "given" &&
                      input.at("value") == 0.5;
  }
  EXPECT_TRUE(names_the_step) << facts.at("inputs");
}

/// Two GPUs a model: about half of the gradients each, and half of the samples.
TEST_F(BenchSimulateTest, TensorParallelModelsExchangeLess) {
  struct Facts {
    double gradients = 0.0;
    double samples_a_step = 0.0;
  };
  const auto facts = [this](const Arguments& more) {
    const Arguments links = {"--gpus-per-node", "4",     "--nodes",  "2",
                             "--step-seconds",  "0.5",   "--inside", "0,1e9",
                             "--across",        "0,1e8", "--json"};
    const Outcome outcome = simulate(joined(links, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    const auto& row = json.at("rows")[1];
    EXPECT_EQ(row.at("gpus"), 8);
    Facts result;
    result.samples_a_step =
        1e-3 * row.at("ms").get<double>() * row.at("samples_per_s").get<double>();
    for (const auto& input : json.at("inputs")) {
      if (input.at("name") == "gradients") {
        result.gradients = input.at("value");
      }
    }
    return result;
  };
  const Facts whole = facts({});
  const Facts half = facts({"parallel.tensor=2"});
  EXPECT_LT(half.gradients, whole.gradients);
  EXPECT_GT(half.gradients, 0.5 * whole.gradients) << "embedders are whole on both";
  EXPECT_NEAR(half.samples_a_step, 0.5 * whole.samples_a_step, 1e-6);
}

TEST_F(BenchSimulateTest, MeasuresTheStepAndSaysSo) {
  const Outcome outcome = simulate({"--gpus-per-node", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("predicted, not measured; ZeRO stage 0"), std::string::npos);
  EXPECT_NE(outcome.out.find("s               measured"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("100.0\n"), std::string::npos) << outcome.out;
}

TEST_F(BenchSimulateTest, WrongArgumentsAreRefused) {
  const auto refusal = [&](const Arguments& arguments) {
    const Outcome outcome = simulate(arguments);
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  const auto says = [](const std::string& error, const char* what) {
    return error.find(what) != std::string::npos;
  };
  EXPECT_PRED2(says, refusal({"--step-seconds", "1"}), "--inside is needed");
  EXPECT_PRED2(says, refusal({"--step-seconds", "1", "--gpus-per-node", "1", "--nodes", "2"}),
               "--across is needed");
  EXPECT_PRED2(says, refusal({"--step-seconds", "1", "--inside", "1e-5"}), "--inside");
  EXPECT_PRED2(says, refusal({"--step-seconds", "1", "--inside", "1e-5,0"}), "above 0");
  EXPECT_PRED2(says,
               refusal({"--gpus-per-node", "1", "--step-seconds", "1", "--update-seconds", "2"}),
               "--update-seconds");
  EXPECT_PRED2(says, refusal({"--zero-stage", "4"}), "--zero-stage");
  EXPECT_PRED2(says, refusal({"--route", "star"}), "--route");
  const Arguments given = {"--step-seconds", "1", "--inside", "1e-5,1e11", "--nodes", "1"};
  EXPECT_PRED2(says, refusal(joined(given, {"parallel.tensor=3"})), "must divide --gpus-per-node");
  EXPECT_PRED2(says, refusal(joined(given, {"parallel.pipeline=2"})), "parallel.pipeline");
  EXPECT_PRED2(says, refusal(joined(given, {"parallel.fp8_across=true"})), "needs --zero-stage");
  EXPECT_PRED2(says, refusal({"parallel.tensor=2", "--inside", "1e-5,1e11"}), "--step-seconds");
  EXPECT_PRED2(says, refusal({"--step-seconds", "0"}), "--step-seconds");
}

}  // namespace bench_simulate_test
}  // namespace kinora::apps
