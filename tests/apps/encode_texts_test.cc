// From captions to embeddings: kinora data encode-texts, and runs on what it writes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "kinora/data/text_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/pipelines/tiny_text_encoder.h"

namespace kinora::apps {
namespace encode_texts_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Turns the tiny recipe into a PixArt of 24 captioned pictures.
class EncodeTextsTest : public RunTest {
 protected:
  EncodeTextsTest() {
    pipelines::write_tiny_t5(folder() / "pipeline");
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 24; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i);
      write_text(folder() / (name + ".txt"),
                 "A <b>picture</b> of colour number " + std::to_string(i / 2) + "\n");
    }
  }

  [[nodiscard]] Arguments pixart(const Arguments& more = {}) const {
    return joined({"data.source=captions", "data.path=[" + path("photos") + "]", "data.text=file",
                   "data.text_embeddings=" + path("texts.safetensors"), "model.architecture=pixart",
                   "model.text_channels=24", "model.text_tokens=40", "train.steps=6"},
                  more);
  }
  [[nodiscard]] Outcome encode(const Arguments& more) const {
    Arguments command = {"data",           "encode-texts",           recipe().string(),
                         "run.dir=unused", "--text-encoder",         path("pipeline"),
                         "--out",          path("texts.safetensors")};
    return run_kinora(joined(command, more), folder());
  }
};

TEST_F(EncodeTextsTest, ARunLearnsFromWhatIsWritten) {
  const Outcome outcome = encode(pixart());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("12 different captions of 24 samples"),
                                 HasSubstr("12/12"), HasSubstr("holds 12 captions")));
  const data::TextFile file(path("texts.safetensors"));
  EXPECT_EQ(file.num_texts(), 12);
  EXPECT_TRUE(file.find_key("A <b>picture</b> of colour number 11").has_value());
  const auto stored = io::SafetensorsFile::open(path("texts.safetensors"));
  EXPECT_EQ(stored.metadata().at("cleaned"), "yes");  // as PixArt was published
  EXPECT_EQ(stored.find("embeddings")->dtype, DType::kBF16);
  train_well(run_dir("run"), pixart());
  EXPECT_EQ(read_log(run_dir("run")).size(), 6U);

  // The run's own recipe says how captions of a file are embedded.
  write_text(folder() / "captions.txt",
             "a blue picture\n\na picture of a picture\na blue picture\n");
  const Outcome lines =
      run_kinora({"data", "encode-texts", (run_dir("run") / "config.yaml").string(),
                  "--text-encoder", path("pipeline/text_encoder"), "--tokenizer",
                  path("pipeline/tokenizer"), "--captions-file", path("captions.txt"), "--out",
                  path("prompts.safetensors"), "--dtype", "fp32", "--precision", "fp32"},
                 folder());
  ASSERT_EQ(lines.exit_code, 0) << lines.err;
  EXPECT_EQ(data::TextFile(path("prompts.safetensors")).num_texts(), 3);
  const Outcome sample = run_kinora(
      {"sample", "--run", run_dir("run").string(), "--text-embeddings", path("prompts.safetensors"),
       "--count", "3", "--steps", "2", "--out", path("pictures"), "--device", "cpu"},
      folder());
  ASSERT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_TRUE(fs::exists(folder() / "pictures/grid.png"));
}

TEST_F(EncodeTextsTest, ModelsOfAPooledVectorTakeClip) {
  pipelines::write_tiny_clip(folder() / "clip");
  const Arguments vdit = {"data.source=moving_shapes",
                          "data.count=40",
                          "data.frames=4",
                          "data.text=file",
                          "data.text_embeddings=" + path("texts.safetensors"),
                          "model.architecture=vdit",
                          "model.text_channels=10",
                          "train.steps=2"};
  const Outcome without = encode(vdit);
  EXPECT_EQ(without.exit_code, kUsage);
  EXPECT_THAT(without.err, AllOf(HasSubstr("takes a pooled vector"), HasSubstr("gives none")));
  const Outcome outcome =
      run_kinora(joined({"data", "encode-texts", recipe().string(), "run.dir=unused",
                         "--text-encoder", path("clip"), "--out", path("texts.safetensors")},
                        vdit),
                 folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto stored = io::SafetensorsFile::open(path("texts.safetensors"));
  EXPECT_EQ(stored.metadata().at("cleaned"), "no");
  EXPECT_EQ(stored.find("pooled")->shape.back(), 10);
  train_well(run_dir("run"), joined(vdit, {"model.text_tokens=77"}));
}

TEST_F(EncodeTextsTest, WhatDoesNotFitIsNamed) {
  const auto expect_refused = [&](const Arguments& more, int code, const auto& message) {
    const Outcome outcome = encode(pixart(more));
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    EXPECT_THAT(outcome.err, message);
    EXPECT_FALSE(fs::exists(path("texts.safetensors")));
  };
  expect_refused({"model.text_channels=32"}, kUsage,
                 AllOf(HasSubstr("vectors of 24 numbers"), HasSubstr("model.text_channels is 32")));
  expect_refused({"model.architecture=dit"}, kUsage, HasSubstr("is not conditioned on texts"));
  expect_refused({"--max-tokens", "41"}, kUsage, HasSubstr("at most 40"));
  expect_refused({"--captions-file", path("nowhere.txt")}, kIo, HasSubstr("nowhere.txt"));
  expect_refused({"--tokenizer", path("nowhere")}, kIo, HasSubstr("nowhere"));
  expect_refused({"--streamed", "--eight-bits", "int8"}, kUsage, HasSubstr("--eight-bits"));
  fs::rename(folder() / "pipeline/tokenizer", folder() / "elsewhere");
  expect_refused({}, kIo, AllOf(HasSubstr("pipeline/tokenizer"), HasSubstr("--tokenizer")));
  fs::remove(folder() / "pipeline/text_encoder/model.safetensors");
  expect_refused({"--tokenizer", path("elsewhere")}, kIo, HasSubstr("pipeline/text_encoder"));
}

TEST_F(EncodeTextsTest, AnInterruptedFileGoesOn) {
  const Arguments slow = {"--batch", "1", "--save-every", "0"};
  ASSERT_EQ(encode(pixart(slow)).exit_code, 0);
  fs::rename(folder() / "texts.safetensors", folder() / "whole.safetensors");
  const Arguments command =
      joined(joined({"data", "encode-texts", recipe().string(), "run.dir=unused", "--text-encoder",
                     path("pipeline"), "--out", path("texts.safetensors")},
                    pixart()),
             slow);
  {
    Program program(command, folder());
    const fs::path record = path("texts.safetensors.partial.json");
    while (program.is_running() && !fs::exists(record)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    program.send(SIGKILL);
    (void)program.wait();
  }
  if (!fs::exists(path("texts.safetensors"))) {
    EXPECT_THAT(train(run_dir("early"), pixart()).err, HasSubstr("texts.safetensors"));
  }
  ASSERT_EQ(encode(pixart(slow)).exit_code, 0);
  EXPECT_EQ(read_text(folder() / "texts.safetensors"), read_text(folder() / "whole.safetensors"));
}

TEST_F(EncodeTextsTest, PicturesThatCannotBeReadAreLeftOut) {
  write_text(folder() / "photos/3.png", "no picture");
  const Outcome outcome = encode(pixart());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("3.png"), HasSubstr("of 23 samples")));
  fs::remove(folder() / "texts.safetensors");
  const Outcome strict = encode(pixart({"data.max_bad=0"}));
  EXPECT_EQ(strict.exit_code, kIo);
  EXPECT_THAT(strict.err, HasSubstr("more than 0 samples cannot be read"));
  EXPECT_FALSE(fs::exists(path("texts.safetensors")));
}

}  // namespace encode_texts_test
}  // namespace kinora::apps
