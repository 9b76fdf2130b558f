// Training on words: captions that a frozen text encoder encodes in the step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/text_file.h"
#include "kinora/models/text_encoders/text_linear.h"
#include "kinora/pipelines/shared_blocks.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/pipelines/tiny_text_encoder.h"

namespace kinora::apps {
namespace online_texts_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Turns the tiny recipe into a PixArt of 24 captioned pictures.
class OnlineTextsTest : public RunTest {
 protected:
  OnlineTextsTest() {
    pipelines::write_tiny_t5(folder() / "pipeline");
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 24; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i);
      write_text(folder() / (name + ".txt"), std::string(i % 3 == 0 ? "A <b>picture</b>" : "one") +
                                                 " of colour number " + std::to_string(i / 2) +
                                                 "\n");
    }
  }

  [[nodiscard]] Arguments pixart(const Arguments& more = {}) const {
    return joined(
        {"data.source=captions", "data.path=[" + path("photos") + "]", "model.architecture=pixart",
         "model.text_channels=24", "model.text_tokens=40", "train.steps=6", "train.micro_batch=4"},
        more);
  }
  /// The captions are encoded beforehand, in fp32. Returns the tokens of the longest.
  int64_t encode_beforehand(const Arguments& more = {}) const {
    const Outcome outcome =
        run_kinora(joined({"data", "encode-texts", recipe().string(), "run.dir=unused",
                           "--text-encoder", path("pipeline"), "--out", path("texts.safetensors"),
                           "--precision", "fp32", "--dtype", "fp32"},
                          pixart(more)),
                   folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return data::TextFile(path("texts.safetensors")).shape().length;
  }
  [[nodiscard]] Arguments cached(const Arguments& more = {}) const {
    return pixart(
        joined({"data.text=file", "data.text_embeddings=" + path("texts.safetensors")}, more));
  }
  [[nodiscard]] Arguments online(const Arguments& more = {}) const {
    return pixart(joined(
        {"data.text=tokens", "text.encoder=" + path("pipeline"), "text.precision=fp32"}, more));
  }
};

TEST_F(OnlineTextsTest, EncodingInTheStepLearnsAsFromTheFile) {
  const std::string length = "text.max_length=" + std::to_string(encode_beforehand());
  const Arguments shown = {"data.validation=4", "validation.every=3", "sample.every=3",
                           "sample.count=2"};
  train_well(run_dir("cached"), cached(shown));
  train_well(run_dir("online"), online(joined(shown, {length})));
  // Products of other numbers of rows may be rounded otherwise in the last bit.
  expect_close_losses(run_dir("online"), run_dir("cached"), 6, 1e-6);
  const auto stored = arrays_of(run_dir("online") / "checkpoints/step-6");
  EXPECT_EQ(stored.size(), arrays_of(run_dir("cached") / "checkpoints/step-6").size());
  EXPECT_EQ(read_text(run_dir("cached") / "samples/step-3.png"),
            read_text(run_dir("online") / "samples/step-3.png"));

  // It goes on where it was stopped.
  train_well(run_dir("parts"), online({length, "train.steps=3", "data.validation=4"}));
  train_well(run_dir("parts"), online({length, "data.validation=4", "--resume", "auto"}));
  train_well(run_dir("whole"), online({length, "data.validation=4", "data.threads=3"}));
  expect_same_log(run_dir("parts"), run_dir("whole"), 6);
}

TEST_F(OnlineTextsTest, AnEncoderIn8BitsIsThatOfAFileMadeSo) {
  const std::string length =
      "text.max_length=" + std::to_string(encode_beforehand({"--eight-bits", "int8"}));
  train_well(run_dir("cached"), cached());
  train_well(run_dir("int8"), online({length, "text.weights=int8"}));
  expect_close_losses(run_dir("int8"), run_dir("cached"), 6, 1e-6);
  train_well(run_dir("full"), online({length}));
  EXPECT_NE(read_text(run_dir("full") / "checkpoints/step-6/master.safetensors"),
            read_text(run_dir("int8") / "checkpoints/step-6/master.safetensors"));
}

TEST_F(OnlineTextsTest, TwoRanksLearnTheSameEitherWay) {
  const std::string length = "text.max_length=" + std::to_string(encode_beforehand());
  const auto train_two = [&](const std::string& name, const Arguments& more) {
    const Outcome outcome =
        run_kinora(joined(train_command(run_dir(name), more), {"--ranks", "2"}), folder());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  };
  train_two("cached", cached());
  train_two("online", online({length}));
  expect_same_log(run_dir("cached"), run_dir("online"), 6);
  // Each rank holds half of the encoder's blocks.
  train_two("shared", online({length, "text.shared=true"}));
  expect_same_log(run_dir("online"), run_dir("shared"), 6);
}

TEST_F(OnlineTextsTest, PromptsAreEncodedByTheRunsEncoder) {
  train_well(run_dir("run"), online());
  const auto sample = [&](const Arguments& more, const std::string& out) {
    return run_kinora(joined({"sample", "--run", run_dir("run").string(), "--steps", "2", "--out",
                              path(out), "--device", "cpu"},
                             more),
                      folder());
  };
  const Outcome words = sample({"--prompt", "one of colour number 3"}, "words");
  ASSERT_EQ(words.exit_code, 0) << words.err;
  write_text(folder() / "captions.txt", "one of colour number 3\n");
  const Outcome encoded =
      run_kinora({"data", "encode-texts", (run_dir("run") / "config.yaml").string(),
                  "--text-encoder", path("pipeline"), "--captions-file", path("captions.txt"),
                  "--out", path("prompts.safetensors"), "--dtype", "fp32", "--precision", "fp32"},
                 folder());
  ASSERT_EQ(encoded.exit_code, 0) << encoded.err;
  const Outcome file = sample({"--text-embeddings", path("prompts.safetensors")}, "file");
  ASSERT_EQ(file.exit_code, 0) << file.err;
  EXPECT_EQ(read_text(folder() / "words/grid.png"), read_text(folder() / "file/grid.png"));
  // Without any, the captions of the data.
  const Outcome data = sample({"--count", "3"}, "data");
  ASSERT_EQ(data.exit_code, 0) << data.err;
}

TEST_F(OnlineTextsTest, WhatDoesNotFitIsNamedBeforeTraining) {
  const auto expect_refused = [&](const Arguments& more, int code, const auto& message) {
    const Outcome outcome = train(run_dir("refused"), more);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    EXPECT_THAT(outcome.err, message);
    EXPECT_TRUE(checkpoint_steps(run_dir("refused")).empty());
  };
  expect_refused(online({"model.text_channels=32"}), kUsage,
                 AllOf(HasSubstr("vectors of 24 numbers"), HasSubstr("model.text_channels is 32")));
  expect_refused(online({"text.tokenizer=" + pipelines::tokenizer_data("clip").string()}), kUsage,
                 AllOf(HasSubstr("1064 tokens"), HasSubstr("700")));
  expect_refused(pixart({"data.text=tokens"}), kUsage, HasSubstr("there is no tokenizer"));
  expect_refused(pixart({"data.text=tokens", "text.tokenizer=" + path("pipeline/tokenizer")}),
                 kUsage, AllOf(HasSubstr("texts are tokens"), HasSubstr("text.encoder")));
  expect_refused(
      online({"text.encoder=" + path("nowhere"), "text.tokenizer=" + path("pipeline/tokenizer")}),
      kIo, HasSubstr("nowhere"));
  expect_refused(online({"text.max_length=41"}), kUsage,
                 AllOf(HasSubstr("up to 41"), HasSubstr("model.text_tokens is 40")));
}

TEST_F(OnlineTextsTest, ThePlanCountsTheEncoder) {
  const auto plan = [&](const Arguments& more) {
    const Outcome outcome =
        run_kinora(joined({"plan", recipe().string(), "run.dir=unused"}, more), folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(plan(online()), AllOf(HasSubstr("text encoder"), HasSubstr("encoded texts")));
  EXPECT_THAT(plan(pixart({"data.text=file", "data.text_embeddings=texts.safetensors"})),
              Not(HasSubstr("text encoder")));
  // Of blocks that ranks share, their part and two whole ones.
  const auto bytes_of = [&](const Arguments& more) {
    const auto facts = nlohmann::json::parse(
        plan(online(joined(more, {"train.global_batch=16", "--ranks", "4", "--json"}))));
    return facts.at("parts").at("text encoder").get<int64_t>();
  };
  const auto encoder = pipelines::outlined_text_encoder(path("pipeline"));
  const pipelines::BlockLayout layout(*encoder);
  int64_t elements = pipelines::SharedBlocks::elements_held(layout, 4);
  for (int64_t i = 0; i < layout.num_blocks(); ++i) {
    for (const pipelines::PlacedParameter& placed : layout.block(i)) {
      elements -= placed.count;
    }
  }
  const int64_t whole = bytes_of({});
  EXPECT_EQ(bytes_of({"text.shared=true"}), whole + 4 * elements);
  int64_t widened = 0;  // fp32 linears against a byte a number and a scale a row
  for (const models::TextLinear* linear : encoder->linears()) {
    widened += 3 * linear->weight.numel() - 4 * linear->weight.shape.front();
  }
  EXPECT_EQ(bytes_of({"text.weights=int8"}), whole - widened);
}

}  // namespace online_texts_test
}  // namespace kinora::apps
