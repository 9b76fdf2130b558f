// kinora bench sequence: every scheme does the same work; what it sends and keeps is known.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace bench_sequence_test {

class BenchSequenceTest : public testing::Test {
 protected:
  /// Layers of 32 channels on CPU ranks.
  [[nodiscard]] Outcome bench(const Arguments& more) const {
    Arguments arguments = {"bench", "sequence", "--device", "cpu",     "--hidden",
                           "32",    "--warmup", "1",        "--steps", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder_.path());
  }
  [[nodiscard]] nlohmann::json json_of(Arguments arguments) const {
    arguments.emplace_back("--json");
    const Outcome outcome = bench(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

 private:
  TemporaryFolder folder_;
};

double number(const nlohmann::json& row, const char* key) {
  return row.at(key).get<double>();
}

/// Of a layer within frames and one through time, in parts m = [4, 16, 32] of fp32.
struct Volume {
  int calls;  ///< of a step: all-to-alls and exchanges
  int sent;
  /// What autograd saves. A layer: input of the norm, input of the projections, q, k and v, their
  /// attention's result. Where that is exchanged once more the projection saves it in new memory;
  /// dsp exchanges the projections' input instead.
  int kept;
};
const std::map<std::string, Volume> kVolumes = {
    {"one", {0, 0, 2 * 12}},  // both ranks' parts
    {"ulysses4", {16, 16, 14}}, {"ulysses", {4, 8, 13}}, {"fastseq", {5, 5, 13}},
    {"dsp", {4, 4, 12}},        {"ring", {3, 6, 13}},
};
constexpr int kHeads = 4;
constexpr int kRows = 4 * 16;
constexpr int kPart = kRows * 32 * 4;

/// Two layers' mean and deviation of a token, and the normaliser of each head's softmax.
int kept_statistics(const std::string& scheme) {
  return (scheme == "one" ? 2 : 1) * 2 * kRows * (2 + kHeads) * 4;
}

TEST_F(BenchSequenceTest, SchemesDoTheSameWork) {
  const auto facts = json_of({"--heads", "4", "--ranks", "2", "--frames", "4", "--tokens", "31,32",
                              "--schemes", "one,ulysses4,ulysses,fastseq,dsp,ring,usp"});
  ASSERT_EQ(facts.at("rows").size(), 14U);
  double one = 0.0;
  for (const auto& row : facts.at("rows")) {
    const auto scheme = row.at("scheme").get<std::string>();
    const bool divides = row.at("tokens") == 32;
    SCOPED_TRACE(scheme + (divides ? " of 32" : " of 31"));
    if (scheme == "usp") {
      EXPECT_NE(row.at("refused").get<std::string>().find("no scheme is possible"),
                std::string::npos);
      EXPECT_FALSE(row.contains("ms"));
      continue;
    }
    EXPECT_LT(number(row, "difference"), 1e-5);
    const Volume& volume = kVolumes.at(scheme);
    EXPECT_EQ(row.at("calls"), volume.calls);
    EXPECT_EQ(row.at("bytes"), volume.sent * kPart);
    if (divides) {
      EXPECT_EQ(row.at("kept_bytes"), volume.kept * kPart + kept_statistics(scheme));
    }
    EXPECT_GT(row.at("peak_bytes"), row.at("kept_bytes"));
    EXPECT_GT(number(row, "compute_ms"), 0.0);
    EXPECT_NEAR(number(row, "exposed_ms"), number(row, "ms") - number(row, "compute_ms"), 1e-9);
    EXPECT_NEAR(number(row, "exposed_share"), number(row, "exposed_ms") / number(row, "ms"), 1e-9);
    if (scheme == "one") {
      one = number(row, "ms");
    } else {
      EXPECT_GT(number(row, "communication_ms"), 0.0);
      EXPECT_NEAR(number(row, "efficiency"), one / (2 * number(row, "ms")), 1e-9);
    }
  }
}

TEST_F(BenchSequenceTest, OneRankIsTimedAlone) {
  const Outcome outcome = bench({"--heads", "4", "--tokens", "8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("there is one rank"), std::string::npos) << outcome.out;
  const auto row = json_of({"--heads", "4", "--schemes", "one", "--tokens", "8"}).at("rows").at(0);
  EXPECT_EQ(number(row, "efficiency"), 1.0);
  EXPECT_EQ(number(row, "exposed_ms"), 0.0);
}

TEST_F(BenchSequenceTest, WrongArgumentsAreRefused) {
  const auto refusal = [&](const Arguments& arguments) {
    const Outcome outcome = bench(arguments);
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    return outcome.err;
  };
  const auto says = [](const std::string& error, const char* what) {
    return error.find(what) != std::string::npos;
  };
  EXPECT_PRED2(says, refusal({"--schemes", "one,swift"}), "swift");
  EXPECT_PRED2(says, refusal({"--tokens", "8,0"}), "--tokens");
  EXPECT_PRED2(says, refusal({"--heads", "5"}), "--heads must divide --hidden");
}

}  // namespace bench_sequence_test
}  // namespace kinora::apps
