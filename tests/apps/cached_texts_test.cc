// One cache of latents and texts: kinora data encode with text.encoder, and runs on what it writes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/text_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/apps/tiny_autoencoder.h"
#include "tests/pipelines/tiny_text_encoder.h"

namespace kinora::apps {
namespace cached_texts_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// Turns the tiny recipe into a PixArt of latents of 24 pictures, each with two captions.
class CachedTextsTest : public RunTest {
 protected:
  CachedTextsTest() {
    write_tiny_autoencoder(folder() / "pipeline/vae", 0.5);
    pipelines::write_tiny_t5(folder() / "pipeline");
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 24; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i);
      write_text(folder() / (name + ".txt"),
                 "A <b>picture</b> of number " + std::to_string(i) + "\nanother of its kind\n");
    }
  }

  [[nodiscard]] Arguments pixart(const Arguments& more) const {
    return joined({"model.architecture=pixart", "model.text_channels=24", "model.text_tokens=40",
                   "model.in_channels=4", "model.patch=2", "data.captions=random", "train.steps=6",
                   "train.micro_batch=4", "autoencoder.precision=fp32", "text.precision=fp32"},
                  more);
  }
  [[nodiscard]] Arguments online(const Arguments& more = {}) const {
    return pixart(joined({"data.source=captions", "data.path=[" + path("photos") + "]",
                          "autoencoder.path=" + path("pipeline/vae"), "data.text=tokens",
                          "text.encoder=" + path("pipeline")},
                         more));
  }
  [[nodiscard]] Arguments cached(const Arguments& more = {}) const {
    return pixart(joined(
        {"data.source=latents", "data.path=[" + path("cache") + "]", "data.text=file"}, more));
  }
  [[nodiscard]] Outcome encode(const Arguments& more = {}) const {
    return run_kinora(joined(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out",
                                     path("cache"), "--dtype", "fp32"},
                                    online()),
                             more),
                      folder());
  }
};

TEST_F(CachedTextsTest, LearnsAsOnLine) {
  const Outcome outcome = encode();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("latents of 24 samples"),
                                 HasSubstr("25 different captions of 24 samples"),
                                 HasSubstr("texts of 25 captions")));
  const data::TextFile texts(path("cache/texts.safetensors"));
  EXPECT_TRUE(texts.find_key("A <b>picture</b> of number 11").has_value());
  EXPECT_TRUE(texts.find_key("another of its kind").has_value());
  const std::string length = "text.max_length=" + std::to_string(texts.shape().length);
  const Arguments held_out = {"data.validation=4", "validation.every=3"};
  train_well(run_dir("cached"), cached(held_out));
  train_well(run_dir("online"), online(joined(held_out, {length})));
  expect_close_losses(run_dir("online"), run_dir("cached"), 6, 1e-5);
  EXPECT_TRUE(read_log(run_dir("cached")).at(5).contains("validation_raw"));
}

TEST_F(CachedTextsTest, HoldsTheTokensThatCount) {
  ASSERT_EQ(encode().exit_code, 0);
  const auto file = io::SafetensorsFile::open(path("cache/texts.safetensors"));
  const data::TextFile texts(path("cache/texts.safetensors"));
  int64_t tokens = 0;
  data::Text text;
  for (int64_t i = 0; i < texts.num_texts(); ++i) {
    texts.read(i, text);
    tokens += text.length;
  }
  EXPECT_EQ(file.find("embeddings")->shape, (std::vector<int64_t>{tokens, 24}));
  EXPECT_LT(tokens, texts.num_texts() * texts.shape().length);
}

TEST_F(CachedTextsTest, OnlyWhatChangedIsEncodedAgain) {
  ASSERT_EQ(encode().exit_code, 0);
  const auto latents = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(path("cache"))) {
      if (entry.path().filename() == "part-00000.safetensors") {
        return fs::last_write_time(entry.path());
      }
    }
    return fs::file_time_type();
  };
  const auto texts = [&] { return fs::last_write_time(path("cache/texts.safetensors")); };
  const auto latents_before = latents();
  const auto texts_before = texts();
  ASSERT_EQ(encode().exit_code, 0);
  EXPECT_EQ(texts(), texts_before);
  const Outcome raw = encode({"text.clean=off", "text.precision=bf16"});
  ASSERT_EQ(raw.exit_code, 0) << raw.err;
  EXPECT_NE(texts(), texts_before);
  EXPECT_EQ(latents(), latents_before);
  const auto record = io::SafetensorsFile::open(path("cache/texts.safetensors")).metadata();
  EXPECT_EQ(record.at("cleaned"), "no");
  EXPECT_EQ(record.at("computed_in"), "Float");  // as --dtype
}

TEST_F(CachedTextsTest, RanksMakeTheSameTexts) {
  ASSERT_EQ(encode().exit_code, 0);
  const std::string alone = read_text(path("cache/texts.safetensors"));
  fs::remove_all(path("cache"));
  const Outcome two = encode({"--ranks", "2"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(read_text(path("cache/texts.safetensors")), alone);
}

TEST_F(CachedTextsTest, WhatDoesNotFitIsNamed) {
  const Outcome wide = encode({"model.text_channels=32"});
  EXPECT_EQ(wide.exit_code, kUsage);
  EXPECT_THAT(wide.err, HasSubstr("vectors of 24 numbers"));
  EXPECT_FALSE(fs::exists(path("cache/manifest.json")));  // before latents are computed

  ASSERT_EQ(encode({R"(text.encoder="")", "data.text=none"}).exit_code, 0);
  const Outcome none = train(run_dir("none"), cached());
  EXPECT_EQ(none.exit_code, kUsage);
  EXPECT_THAT(none.err, AllOf(HasSubstr("have no texts.safetensors"), HasSubstr("text.encoder")));

  ASSERT_EQ(encode().exit_code, 0);
  pipelines::write_tiny_clip(folder() / "clip");
  const Outcome other = train(run_dir("other"), cached({"text.encoder=" + path("clip")}));
  EXPECT_EQ(other.exit_code, kUsage);
  EXPECT_THAT(other.err, HasSubstr("of another text encoder than text.encoder"));
  const Outcome tags = train(run_dir("tags"), cached({"data.shuffle_tags=true"}));
  EXPECT_EQ(tags.exit_code, kUsage);
  EXPECT_THAT(tags.err, HasSubstr("be false for data.text file"));
}

}  // namespace cached_texts_test
}  // namespace kinora::apps
