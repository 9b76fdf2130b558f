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
  EXPECT_PRED2(says, refusal({"--step-seconds", "0"}), "--step-seconds");
}

}  // namespace bench_simulate_test
}  // namespace kinora::apps
