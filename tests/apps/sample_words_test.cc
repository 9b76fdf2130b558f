// kinora sample from words, with the tiny pipelines of tools/reference/make_pipeline_fixtures.py.

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "tests/apps/clips.h"
#include "tests/apps/program_server.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace sample_words_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const fs::path kAlpha = source_path("tests/inference/data/pixart_alpha");

class SampleWordsTest : public RunTest {};

TEST_F(SampleWordsTest, PicturesAreThoseOfDiffusersPipeline) {
  const auto drawn = checkpoint::WeightsFile::open(kAlpha / "drawn.safetensors");
  const auto prompts =
      nlohmann::json::parse(drawn.metadata("prompts")).get<std::vector<std::string>>();
  Arguments arguments = {"sample",
                         "--model",
                         kAlpha.string(),
                         "--out",
                         (folder() / "out").string(),
                         "--steps",
                         "4",
                         "--seed",
                         drawn.metadata("seed"),
                         "--device",
                         "cpu",
                         "--prompt"};
  const Outcome outcome = run_kinora(joined(arguments, prompts), folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("PixArtAlphaPipeline in"), HasSubstr("dpm++"),
                                 HasSubstr("64 x 64 pixels"), HasSubstr("longer than 120 tokens")));
  const at::Tensor theirs = drawn.read("pictures").to(at::kFloat);  // [B, 3, H, W]
  for (int64_t b = 0; b < std::ssize(prompts); ++b) {
    const fs::path path = folder() / "out" / ("image-0000" + std::to_string(b) + ".png");
    const io::Image image = io::decode_image(io::read_file(path, 1 << 20), path.string());
    const at::Tensor wanted = (theirs[b].permute({1, 2, 0}).contiguous() * 255.0).flatten();
    ASSERT_EQ(std::ssize(image.pixels), wanted.numel());
    for (int64_t i = 0; i < wanted.numel(); ++i) {
      ASSERT_LE(std::abs(image.pixels[static_cast<size_t>(i)] - wanted.const_data_ptr<float>()[i]),
                1.0F);
    }
  }
}

/// A program that finds no memory for the first operation of that name.
class HungrySampleTest : public RunTest {
 protected:
  ~HungrySampleTest() override {
    ::unsetenv(kHungryStep);
    ::unsetenv(kHungryOperation);
  }
  [[nodiscard]] Outcome sample(const char* operation) const {
    ::setenv(kHungryStep, "0", 1);
    ::setenv(kHungryOperation, operation, 1);
    return run_kinora({"sample", "--model", kAlpha.string(), "--prompt", "a red circle", "--steps",
                       "2", "--device", "cpu", "--out", path("out")},
                      folder());
  }
};

TEST_F(HungrySampleTest, SaysWhatSamplingCanDo) {
  const Outcome outcome = sample("aten::gelu");
  EXPECT_EQ(outcome.exit_code, 8);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("planted: no memory"),
                                 HasSubstr("Hint: --vram-budget auto"), Not(HasSubstr("train."))));
}

TEST_F(HungrySampleTest, DecodesInPiecesWhatHasNoRoomAsAWhole) {
  const Outcome outcome = sample("aten::native_group_norm");  // of the autoencoder alone
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("from here on in pieces within"));
  EXPECT_TRUE(fs::exists(folder() / "out/image-00000.png"));
}

TEST_F(SampleWordsTest, WhatCannotBeDrawnIsRefused) {
  const auto refusal = [this](const Arguments& more) {
    const Outcome outcome = run_kinora(
        joined({"sample", "--out", (folder() / "out").string(), "--device", "cpu"}, more),
        folder());
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--model", kAlpha.string()}), HasSubstr("draws what words say, got none"));
  // Before the text encoder is read.
  EXPECT_THAT(refusal({"--model", kAlpha.string(), "--prompt", "a", "--height", "128"}),
              AllOf(HasSubstr("height must be 64"), HasSubstr("leave it out"),
                    Not(HasSubstr("text encoder"))));
  EXPECT_THAT(
      refusal({"--model", (kAlpha / "transformer").string(), "--negative", "a", "--prompt", "a"}),
      HasSubstr("are for pipelines with a text encoder"));
  EXPECT_THAT(refusal({"--model", "PixArt-alpha/PixArt-XL-2-512x512", "--prompt", "a"}),
              HasSubstr("nothing is downloaded"));

  fs::copy(kAlpha, folder() / "broken", fs::copy_options::recursive);
  const Arguments broken = {"--model", (folder() / "broken").string(), "--prompt", "a"};
  write_text(folder() / "broken/model_index.json", "{\"_class_name\": ");
  EXPECT_THAT(refusal(broken), HasSubstr("model_index.json is not a JSON object. Hint: it may be"));
  fs::remove(folder() / "broken/model_index.json");
  EXPECT_THAT(refusal(broken), HasSubstr("where its model_index.json is there"));
}

}  // namespace sample_words_test
}  // namespace kinora::apps
