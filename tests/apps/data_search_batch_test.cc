// kinora data search-batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/config.h"
#include "kinora/data/data_config.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace data_search_batch_test {

using testing::HasSubstr;

class DataSearchBatchTest : public RunTest {
 protected:
  /// Of a small STDiT3 on images of two sizes and clips of one.
  [[nodiscard]] Outcome search(const Arguments& more) const {
    Arguments arguments = joined(
        {"data", "search-batch", recipe().string(), "run.dir=" + run_dir("none").string(),
         R"(data.buckets={"32px": {1: [0.5, 8]}, "64px": {1: [[1.0, 0.3], 4], 4: [1.0, 2]}})",
         "data.bucket_multiple=8", "data.bucket_batches=2", "model.architecture=stdit3",
         "model.depth=1", "model.hidden=48", "model.learn_sigma=false", "objective.kind=flow"},
        kReads);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }
};

TEST_F(DataSearchBatchTest, TimesOfAllRowsAndABlockThatARecipeTakes) {
  const auto file = folder() / "buckets.yaml";
  const Outcome outcome = search({"--json", "--out", file.string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  const auto& rows = result.at("rows");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].at("batch"), 8);  // the base keeps its own
  EXPECT_EQ(rows[0].at("step_seconds"), result.at("aimed_seconds"));
  for (const auto& row : rows) {
    EXPECT_GE(row.at("batch"), 1);
    EXPECT_GT(row.at("step_seconds"), 0.0);
    EXPECT_GT(row.at("samples_per_s"), 0.0);
    EXPECT_GE(row.at("height").get<int64_t>() * row.at("width").get<int64_t>(),
              row.at("resolution") == "32px" ? 1024 : 4096);
  }
  EXPECT_EQ(rows[2].at("frames"), 4);
  EXPECT_GE(result.at("measurements"), 3);
  EXPECT_LT(result.at("measurements"), 40);
  EXPECT_THAT(outcome.err, HasSubstr("[search] 64px, 4 frames"));

  EXPECT_EQ(read_text(file), result.at("yaml").get<std::string>());
  const auto config = load_config<data::DataConfig>(file.string(), {});
  ASSERT_EQ(config.buckets.size(), 3U);
  EXPECT_EQ(config.buckets[0], (ConfigTableRow{"32px", 1, {0.5, 8.0}}));
  EXPECT_EQ(config.buckets[1],
            (ConfigTableRow{"64px", 1, {1.0, 0.3, rows[1].at("batch").get<double>()}}));
  EXPECT_EQ(config.buckets[2],
            (ConfigTableRow{"64px", 4, {1.0, rows[2].at("batch").get<double>()}}));
}

TEST_F(DataSearchBatchTest, TheLargestThatFitTheMemory) {
  const std::string buckets = R"(data.buckets={"64px": {4: [1.0, 4]}})";
  const auto row_of = [&](const Arguments& more) {
    Arguments arguments = {"--json", buckets};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = search(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("rows")[0];
  };
  const auto one = row_of({"--step-seconds", "1e-9"});  // no step is as short
  EXPECT_EQ(one.at("batch"), 1);
  const int64_t of_one = one.at("peak_memory").get<int64_t>();
  EXPECT_GT(of_one, 0);

  constexpr int64_t kMoreMiB = 200;
  const int64_t limit = of_one / (1 << 20) + kMoreMiB;
  const auto row =
      row_of({"--largest", "--memory-gib", std::to_string(static_cast<double>(limit) / 1024.0)});
  EXPECT_GE(row.at("batch"), 2);
  EXPECT_LE(row.at("peak_memory").get<int64_t>(), limit << 20);

  const Outcome none = search({"--largest", "--memory-gib", "0.01"});
  EXPECT_EQ(none.exit_code, kUsage) << none.err;
  EXPECT_THAT(none.err, HasSubstr("a sample of some row must fit 10.2 MiB"));
}

TEST_F(DataSearchBatchTest, AsText) {
  const Outcome outcome = search(
      {"--step-seconds", "0.02", "--memory-gib", "2", R"(data.buckets={"32px": {1: [1.0, 2]}})"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("aimed at steps of 20.0 ms, memory up to 2 GiB"));
  EXPECT_THAT(outcome.out, HasSubstr("32px, 1 frame, "));
  EXPECT_THAT(outcome.out, HasSubstr("data:\n  buckets:\n    \"32px\": {1: [1.0, "));
}

TEST_F(DataSearchBatchTest, OfLatentsTheyAreAsMuchSmaller) {
  const Outcome outcome =
      search({"--json", "--step-seconds", "1e-9", "data.source=latents", "data.path=[nothing]",
              "model.in_channels=4", "model.patch=2", "model.height=4", "model.width=4",
              R"(data.buckets={"32px": {1: [1.0, 2]}})"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out).at("rows")[0].at("batch"), 1);
}

TEST_F(DataSearchBatchTest, RefusesWhatItCannotSearch) {
  const auto refusal = [&](const Arguments& more) {
    const Outcome outcome = search(more);
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refusal({"data.buckets={}"}), HasSubstr("at least one row"));
  EXPECT_THAT(refusal({"--largest"}), HasSubstr("--memory-gib"));
  EXPECT_THAT(refusal({"--base", "8px:1"}), HasSubstr("32px:1, 64px:1, 64px:4"));
  EXPECT_THAT(refusal({"--largest", "--step-seconds", "1"}), HasSubstr("--step-seconds"));
  EXPECT_THAT(refusal({"model.architecture=stdit"}),
              HasSubstr("STDiT2, STDiT3, SD3, Flux, OpenSora2, HunyuanVideo, CogVideoX, Wan, "
                        "LTXVideo, UNet and ClassUNet"));
}

}  // namespace data_search_batch_test
}  // namespace kinora::apps
