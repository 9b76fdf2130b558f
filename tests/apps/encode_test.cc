// From pictures to latents: kinora data encode, and training that encodes them itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/float_values.h"
#include "kinora/data/latent_cache.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/apps/tiny_autoencoder.h"

namespace kinora::apps {
namespace encode_test {

using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

/// Turns the tiny recipe into one that learns 4 x 8 x 8 latents of 60 pictures, some mirrored.
const Arguments kLatents = {
    "model.in_channels=4", "model.patch=2",       "data.flip=true",
    "data.count=60",       "data.validation=8",   "validation.every=2",
    "train.steps=8",       "train.micro_batch=4", "autoencoder.precision=fp32"};

class EncodeTest : public RunTest {
 protected:
  EncodeTest() { write_tiny_autoencoder(folder() / "vae", 0.5); }

  [[nodiscard]] Outcome encode(const std::string& out, const Arguments& more = {}) const {
    const Arguments command = {"data",
                               "encode",
                               recipe().string(),
                               "run.dir=unused",
                               "--autoencoder",
                               (folder() / "vae").string(),
                               "--out",
                               (folder() / out).string(),
                               "--dtype",
                               "fp32",
                               "--mirrored"};
    return run_kinora(joined(joined(command, kLatents), more), folder());
  }

  [[nodiscard]] Arguments from_cache(const std::string& cache) const {
    return joined(kLatents,
                  {"data.source=latents", "data.path=[" + (folder() / cache).string() + "]"});
  }
  [[nodiscard]] Arguments on_line(const std::string& name = "vae") const {
    return joined(kLatents,
                  {"autoencoder.path=" + (folder() / name).string(), "autoencoder.micro_batch=3"});
  }
};

TEST_F(EncodeTest, ACacheAndItsPicturesTrainAlike) {
  const Outcome outcome = encode("cache");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("60/60"), HasSubstr("latents of 60 samples")));
  train_well(run_dir("cached"), from_cache("cache"));
  train_well(run_dir("on-line"), joined(on_line(), {"sample.every=8", "sample.count=2"}));
  EXPECT_FALSE(fs::exists(run_dir("cached") / "samples/step-8.png"));  // latents
  EXPECT_TRUE(fs::exists(run_dir("on-line") / "samples/step-8.png"));
  const std::vector<LogLine> cached = read_log(run_dir("cached"));
  const std::vector<LogLine> encoded = read_log(run_dir("on-line"));
  ASSERT_EQ(cached.size(), 8U);
  ASSERT_EQ(encoded.size(), 8U);
  for (size_t i = 0; i < cached.size(); ++i) {
    const double loss = cached[i].at("loss");
    EXPECT_NEAR(encoded[i].at("loss"), loss, 1e-4 * loss) << i;
  }
  const double validation = cached[7].at("validation_raw");
  EXPECT_NEAR(encoded[7].at("validation_raw"), validation, 1e-4 * validation);
}

TEST_F(EncodeTest, ARunThatEncodesIsSampledAsPictures) {
  train_well(run_dir("run"), joined(on_line(), {"train.steps=1"}));
  const auto sample = [&](const std::string& out, const Arguments& more) {
    return run_kinora(joined({"sample", "--run", run_dir("run").string(), "--count", "2", "--steps",
                              "2", "--out", (folder() / out).string()},
                             more),
                      folder());
  };
  const Outcome pictures = sample("pictures", {});
  ASSERT_EQ(pictures.exit_code, 0) << pictures.err;
  EXPECT_TRUE(fs::exists(folder() / "pictures/grid.png"));
  EXPECT_FALSE(fs::exists(folder() / "pictures/latents.safetensors"));
  const Outcome latents = sample("latents", {"--set", R"(autoencoder.path="")"});
  ASSERT_EQ(latents.exit_code, 0) << latents.err;
  EXPECT_TRUE(fs::exists(folder() / "latents/latents.safetensors"));
  fs::rename(folder() / "vae", folder() / "moved");
  const Outcome lost = sample("lost", {});
  EXPECT_EQ(lost.exit_code, kIo);
  EXPECT_THAT(lost.err, HasSubstr("Hint: --autoencoder PATH"));
}

TEST_F(EncodeTest, ARunThatEncodesGoesOnAsItWouldHave) {
  train_well(run_dir("whole"), on_line());
  train_well(run_dir("parts"), joined(on_line(), {"train.steps=5"}));
  train_well(run_dir("parts"), joined(on_line(), {"--resume", "auto"}));
  expect_same_log(run_dir("whole"), run_dir("parts"), 8);
  expect_same_state(run_dir("whole") / "checkpoints/step-8",
                    run_dir("parts") / "checkpoints/step-8");
}

TEST_F(EncodeTest, WhatIsStoredInFp32IsComputedInFp32) {
  ASSERT_EQ(encode("stated").exit_code, 0);  // autoencoder.precision=fp32
  ASSERT_EQ(encode("left-open", {"autoencoder.precision=bf16"}).exit_code, 0);
  const auto latents = [&](const std::string& cache) {
    const data::LatentCache source(folder() / cache);
    data::Sample sample;
    source.read(7, sample);
    std::vector<float> values(4 * 8 * 8);
    data::read_floats(sample.latent.mean.bytes.data(), sample.latent.mean.dtype, 0, values);
    return values;
  };
  EXPECT_EQ(latents("left-open"), latents("stated"));
}

TEST_F(EncodeTest, RanksShareTheWork) {
  const Outcome outcome = encode("ranks", {"--ranks", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("latents of 60 samples"));
  train_well(run_dir("run"), from_cache("ranks"));
}

TEST_F(EncodeTest, ACacheOfAnotherAutoencoderIsRefused) {
  ASSERT_EQ(encode("cache").exit_code, 0);
  write_tiny_autoencoder(folder() / "other", 0.25);
  const Outcome outcome =
      train(run_dir("run"),
            joined(from_cache("cache"), {"autoencoder.path=" + (folder() / "other").string()}));
  EXPECT_EQ(outcome.exit_code, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("of another autoencoder than autoencoder.path"));
}

TEST_F(EncodeTest, AnAutoencoderIsNeeded) {
  const Outcome outcome = run_kinora(
      {"data", "encode", recipe().string(), "run.dir=unused", "--out", "cache"}, folder());
  EXPECT_EQ(outcome.exit_code, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("--autoencoder PATH"));
}

TEST_F(EncodeTest, WhereNothingCanBeWrittenIsSaidBeforeAnythingIsRead) {
  write_text(folder() / "file", "not a folder");
  const Outcome outcome =
      run_kinora({"data", "encode", recipe().string(), "run.dir=unused", "--autoencoder", "none",
                  "--out", (folder() / "file/cache").string()},
                 folder());
  EXPECT_EQ(outcome.exit_code, kIo);
  EXPECT_THAT(outcome.err, HasSubstr("cannot make the folder"));
}

TEST_F(EncodeTest, TheBenchmarkEncodesInEachStep) {
  const Outcome outcome =
      run_kinora(joined(joined({"bench", "train", recipe().string(), "run.dir=unused"}, on_line()),
                        {"--warmup", "0", "--steps", "2"}),
                 folder());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("pixels encoded in each step"));
}

}  // namespace encode_test
}  // namespace kinora::apps
