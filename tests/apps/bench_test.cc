// kinora bench: what it measures on the CPU, and what it refuses.

#include <gtest/gtest.h>

#include "tests/apps/clips.h"
#include "tests/apps/program.h"
#include "tests/places.h"

namespace kinora::apps {
namespace bench_test {

class BenchTest : public RunTest {
 protected:
  /// Everything small; `command`: train, ablate or sample.
  [[nodiscard]] Arguments bench(const std::string& command, const Arguments& more = {}) const {
    Arguments arguments = {"bench", command, recipe().string(), "run.dir=unused"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  [[nodiscard]] nlohmann::json json_of(Arguments arguments) const {
    arguments.emplace_back("--json");
    const Outcome outcome = run_kinora(arguments, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  void expect_refusal(const Arguments& arguments, const std::string& message) const {
    const Outcome outcome = run_kinora(arguments, folder());
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos)
        << "not said: " << message << "\nin: " << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
};

TEST_F(BenchTest, TrainHasItsFiguresAndCeilings) {
  const auto facts = json_of(bench("train", {"--warmup", "1", "--steps", "7"}));
  for (const char* key : {"ms", "samples_per_s", "tflops", "gemm_tflops", "copy_bytes_per_s"}) {
    EXPECT_GT(facts.at(key).get<double>(), 0.0) << key;
  }
  EXPECT_EQ(facts.at("fp8_gemm_tflops").get<double>(), 0.0) << "a CPU has none";
  EXPECT_FALSE(facts.contains("profile"));
}

TEST_F(BenchTest, OneStepCanBeTimed) {
  EXPECT_GT(json_of(bench("train", {"--warmup", "0", "--steps", "1"})).at("ms").get<double>(), 0.0);
}

TEST_F(BenchTest, SampleHasItsFigures) {
  const Arguments command =
      bench("sample", {"--batch", "3", "--steps", "4", "--guidance", "4", "--repeats", "2",
                       "--warmup", "0", "sample.method=ddim"});
  const Outcome text = run_kinora(command, folder());
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* fact : {"ddim, 4 steps, guidance 4", "images/s", "plain path", "TFLOP/s",
                           "3 images", "peak memory"}) {
    EXPECT_NE(text.out.find(fact), std::string::npos) << fact << " not in " << text.out;
  }
  const auto facts = json_of(command);
  EXPECT_EQ(facts.at("batch"), 3);
  EXPECT_EQ(facts.at("steps"), 4);
  EXPECT_GT(facts.at("tflops").get<double>(), 0.0);
  EXPECT_NEAR(facts.at("samples_per_s").get<double>(), 3e3 / facts.at("ms").get<double>(),
              1e-6 * facts.at("samples_per_s").get<double>());
}

TEST_F(BenchTest, RanksSampleClipsTogether) {
  const Arguments command = bench(
      "sample",
      joined(kClips, {"model.architecture=stdit", "--batch", "1", "--guidance", "4", "--repeats",
                      "1", "--warmup", "0", "--ranks", "4", "--sequence-scheme", "dsp"}));
  const auto facts = json_of(command);
  EXPECT_EQ(facts.at("ranks"), "4 ranks = 1 group x guidance 2 x sequence 2: for 1 sample");
  EXPECT_NEAR(facts.at("seconds_each").get<double>(), facts.at("ms").get<double>() / 1e3, 1e-9);
  const Outcome text = run_kinora(command, folder());
  for (const char* fact : {"1 clips", "clips/s", "s each", "guidance 2 x sequence 2"}) {
    EXPECT_NE(text.out.find(fact), std::string::npos) << fact << " not in " << text.out;
  }
}

TEST_F(BenchTest, SampleDrawsWithTrainedWeights) {
  const auto drawing = [&](const Arguments& more) {
    return run_kinora(
        joined({"bench", "sample", source_path("configs/demo.yaml").string(), "--batch", "2",
                "--steps", "6", "--repeats", "1", "--warmup", "0", "sample.cache=first_block",
                "sample.cache_threshold=0.3", "train.device=cpu",
                "checkpoint.init_from=" + source_path("weights/shapes.safetensors").string()},
               more),
        folder());
  };
  const Outcome trained = drawing({"model.num_classes=16"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find("shapes.safetensors)"), std::string::npos) << trained.out;
  EXPECT_NE(drawing({"model.num_classes=3"}).err.find("does not fit the model"), std::string::npos);
}

TEST_F(BenchTest, SampleTakesTheRecipesSettings) {
  const auto facts = json_of(
      bench("sample", {"--batch", "1", "--repeats", "1", "--warmup", "0", "sample.guidance=1"}));
  EXPECT_EQ(facts.at("steps"), 3);
  EXPECT_EQ(facts.at("sampler"), "ddpm, 3 steps, no guidance");
}

TEST_F(BenchTest, SampleDoesNotCountWhatGuidanceDoesInPart) {
  const auto facts = json_of(bench("sample", {"--batch", "1", "--repeats", "1", "--warmup", "0",
                                              "sample.guidance_interval=[0.2,0.8]"}));
  EXPECT_TRUE(facts.at("tflops").is_null());
  EXPECT_GT(facts.at("ms").get<double>(), 0.0);
}

/// A tiny PixArt that reads T5-XXL's states.
const Arguments kReads = {
    "model.architecture=pixart", "model.text_channels=4096", "model.text_tokens=8",
    "model.in_channels=4",       "model.height=8",           "model.width=8",
    "data.source=latents",       "data.path=[unread]"};

TEST_F(BenchTest, PipelineHasItsStages) {
  const Arguments command =
      bench("pipeline", joined(kReads, {"--text-layers", "1", "--caption-tokens", "3", "--steps",
                                        "2", "--guidance", "4", "--warmup", "0", "--repeats", "1",
                                        "train.precision=bf16", "model.path=plain"}));
  const auto facts = json_of(command);
  EXPECT_EQ(facts.at("steps"), 2);
  EXPECT_EQ(facts.at("guidance"), 4.0);
  for (const char* key : {"ms", "encode_ms", "sample_ms", "decode_ms"}) {
    EXPECT_GT(facts.at(key).get<double>(), 0.0) << key;
  }
  expect_refusal(bench("pipeline", joined(kReads, {"--caption-tokens", "9"})),
                 "up to 8 tokens, got 9");
  expect_refusal(bench("pipeline"), "takes texts of 4096 channels");
}

TEST_F(BenchTest, TrainComparesEncodedTextsWithCachedOnes) {
  const auto facts =
      json_of(bench("train", joined(kReads, {"--encode-texts", "3", "--text-layers", "1",
                                             "--warmup", "0", "--steps", "1"})));
  for (const char* key : {"ms", "cached_ms", "encoder_ms"}) {
    EXPECT_GT(facts.at(key).get<double>(), 0.0) << key;
  }
  expect_refusal(bench("train", joined(kReads, {"--encode-texts", "9"})), "take 9 tokens");
  expect_refusal(bench("train", {"--encode-texts", "3"}), "(T5-XXL's)");
}

TEST_F(BenchTest, LoadHasItsParts) {
  const auto folder_of = [](const char* name) {
    return source_path("tests/inference/data/").string() + name;
  };
  const auto facts = json_of({"bench", "load", folder_of("pixart_alpha"), "--repeats", "1"});
  for (const char* key :
       {"bytes", "read_s", "load_s", "text_encoder_s", "transformer_s", "autoencoder_s"}) {
    EXPECT_GT(facts.at(key).get<double>(), 0.0) << key;
  }
  EXPECT_EQ(json_of({"bench", "load", folder_of("dit")}).at("text_encoder_s"), 0.0);
  expect_refusal({"bench", "load", source_path("tests/apps").string()}, "has no pipeline");
}

TEST_F(BenchTest, AblateSaysWhichSwitchesDoNotApplyOnTheCpu) {
  const Arguments command = bench("ablate", {"--warmup", "0", "--steps", "2"});
  const Outcome text = run_kinora(command, folder());
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("all on"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("does not apply"), std::string::npos) << text.out;
  const auto facts = json_of(command);
  const auto& rows = facts.at("rows");
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_EQ(rows[0].at("switch"), "all on");
  EXPECT_EQ(rows[0].at("ratio"), 1.0);
  EXPECT_GT(rows[0].at("samples_per_s").get<double>(), 0.0);
  const std::vector<std::string> switches = {"kernels.adaln=off",    "kernels.attention=off",
                                             "kernels.epilogue=off", "kernels.optimizer=off",
                                             "kernels.graphs=off",   "model.path=plain",
                                             "train.fp8=true"};
  for (size_t i = 0; i < switches.size(); ++i) {
    EXPECT_EQ(rows[i + 1].at("switch"), switches[i]);
    EXPECT_NE(rows[i + 1].at("note").get<std::string>().find("does not apply"), std::string::npos);
    EXPECT_FALSE(rows[i + 1].contains("ms"));
  }
}

TEST_F(BenchTest, AblateComparesThePathsOnTheCpu) {
  const auto facts = json_of(bench("ablate", {"--warmup", "0", "--steps", "1", "model.path=fast"}));
  const auto& plain = facts.at("rows").at(6);
  EXPECT_EQ(plain.at("switch"), "model.path=plain");
  EXPECT_GT(plain.at("ratio").get<double>(), 0.0);
  EXPECT_NE(plain.at("kernels"), facts.at("rows").at(0).at("kernels"));
}

TEST_F(BenchTest, AblateRefusesAWrongRecipe) {
  expect_refusal(bench("ablate", {"train.recompute=mlp"}), "needs the fast path");
}

TEST_F(BenchTest, BucketsAreTimedByDynamicAndFixedRanks) {
  const Arguments sizes = {
      "model.name=custom",       "model.architecture=stdit3",
      "model.depth=1",           "model.hidden=48",
      "model.heads=4",           "model.patch=2",
      "model.text_channels=8",   "model.text_tokens=4",
      "model.learn_sigma=false", "data.bucket_ratios=square",
      "data.bucket_multiple=2",  "data.buckets={8px: {1: [1.0, 2]}, 4px: {1: [1.0, 3]}}"};
  Arguments command = bench("buckets", {"--ranks", "2", "--oversubscribe", "--warmup", "0",
                                        "--steps", "2", "parallel.sequence=2"});
  command.insert(command.end(), sizes.begin(), sizes.end());
  const auto facts = json_of(command);
  EXPECT_EQ(facts.at("batches"), 2);
  const auto& rows = facts.at("rows");
  ASSERT_EQ(rows.size(), 3U);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("ranks_a_sample"), std::vector<int>({0, 2, 1})[i]);
    EXPECT_NEAR(rows[i].at("slowdown").get<double>() * rows[0].at("step_ms").get<double>(),
                rows[i].at("step_ms").get<double>(), 1e-9 * rows[i].at("step_ms").get<double>());
  }
  expect_refusal(bench("buckets"), "times the sizes of data.buckets");
}

TEST_F(BenchTest, ProfileNeedsAGpu) {
  for (const char* command : {"train", "sample"}) {
    expect_refusal(bench(command, {"--profile"}), "--profile traces a GPU");
  }
  expect_refusal({"bench", "decode", "--device", "cpu", "--profile"}, "--profile traces a GPU");
  expect_refusal(bench("ablate", {"--profile"}), "--profile");
  expect_refusal(bench("train", {"--trace", "trace.json"}), "--trace requires --profile");
  const Outcome nowhere =
      run_kinora(bench("train", {"--profile", "--trace", "nowhere/trace.json"}), folder());
  EXPECT_EQ(nowhere.exit_code, kIo);
  EXPECT_NE(nowhere.err.find("--trace wants a file in a folder that is there, got nowhere"),
            std::string::npos)
      << nowhere.err;
}

TEST_F(BenchTest, WrongArgumentsAreRefused) {
  expect_refusal({"bench"}, "subcommand");
  expect_refusal({"bench", "train"}, "config");
  expect_refusal(bench("train", {"--steps", "0"}), "--steps");
  expect_refusal(bench("train", {"--warmup", "-1"}), "--warmup");
  expect_refusal(bench("train", {"train.stepz=1"}), "did you mean train.steps?");
  expect_refusal(bench("sample", {"--batch", "0"}), "--batch");
  expect_refusal(bench("sample", {"--repeats", "many"}), "--repeats");
  expect_refusal(bench("sample", {"sample.method=euler", "sample.clip_denoised=true"}),
                 "sample.threshold must be off");
  expect_refusal(bench("sample", {"--guidance", "-2"}), "--guidance");
}

}  // namespace bench_test
}  // namespace kinora::apps
