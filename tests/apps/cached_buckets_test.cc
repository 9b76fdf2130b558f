// Caches of latents of several sizes: kinora data encode of a recipe with data.buckets, and runs on
// what it writes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/latent_cache.h"
#include "kinora/data/text_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/apps/tiny_autoencoder.h"
#include "tests/pipelines/tiny_text_encoder.h"

namespace kinora::apps {
namespace cached_buckets_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// Turns the tiny recipe into one of latents of clips that chance shows at 32 or 16 pixels.
class CachedBucketsTest : public RunTest, public testing::WithParamInterface<const char*> {
 protected:
  CachedBucketsTest() { write_tiny_autoencoder(folder() / "vae", 0.5); }

  [[nodiscard]] Arguments clips(const Arguments& more) const {
    return joined(
        joined(kClips, {"model.architecture=stdit3", "model.in_channels=4", "model.patch=2",
                        "model.hidden=48", "data.height=32", "data.width=32", "data.count=40",
                        "data.validation=4", "validation.every=3",
                        R"(data.buckets={"32px": {4: [0.5, 2]}, "16px": {4: [1.0, 4]}})",
                        "data.bucket_ratios=square", "data.bucket_batches=2", "train.steps=8",
                        "autoencoder.precision=fp32"}),
        more);
  }
  [[nodiscard]] Outcome encode(const Arguments& more = {}) const {
    return run_kinora(
        joined(joined({"data", "encode", recipe().string(), "run.dir=unused", "--autoencoder",
                       path("vae"), "--out", path("cache"), "--dtype", "fp32"},
                      clips({})),
               more),
        folder());
  }
  [[nodiscard]] Arguments cached(const Arguments& more = {}) const {
    return clips(joined({"data.source=latents", "data.path=[" + path("cache") + "]"}, more));
  }
  [[nodiscard]] Arguments online(const Arguments& more = {}) const {
    return clips(joined({"autoencoder.path=" + path("vae")}, more));
  }
  void train_two(const std::string& name, const Arguments& more) const {
    const Outcome outcome =
        run_kinora(joined(train_command(run_dir(name), more), {"--ranks", "2"}), folder());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  /// Latents on line are computed of other numbers of samples at once, which libraries may round
  /// otherwise.
  void expect_close(const std::string& left, const std::string& right) const {
    expect_close_losses(run_dir(left), run_dir(right), 8, 1e-5);
  }
};

TEST_P(CachedBucketsTest, LearnsAsOnLineOnAnyRanksAndResumed) {
  const std::string architecture = std::string("model.architecture=") + GetParam();
  const Outcome outcome = encode({architecture});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const data::LatentCache cache(path("cache"));
  EXPECT_EQ(cache.size(), 40);
  EXPECT_EQ(cache.manifest().sizes.size(), 2U);
  train_well(run_dir("cached"), cached({architecture}));
  train_well(run_dir("online"), online({architecture}));
  expect_close("cached", "online");
  EXPECT_TRUE(read_log(run_dir("cached")).at(5).contains("validation_raw"));

  train_two("two", cached({architecture}));
  expect_close("cached", "two");

  train_well(run_dir("parts"), cached({architecture, "train.steps=5"}));
  train_well(run_dir("parts"), cached({architecture, "--resume", "auto"}));
  expect_same_log(run_dir("cached"), run_dir("parts"), 8);
  expect_same_state(run_dir("cached") / "checkpoints/step-8",
                    run_dir("parts") / "checkpoints/step-8");
}
INSTANTIATE_TEST_SUITE_P(Families, CachedBucketsTest, testing::Values("stdit2", "stdit3"));

/// 30 pictures of three shapes with two captions each, and one that no bucket takes. Of one the
/// header can be read, and the pixels cannot.
class CachedPicturesTest : public CachedBucketsTest {
 protected:
  CachedPicturesTest() {
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 31; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i, i == 30 ? 8 : (i % 3 == 0 ? 20 : 36),
                    i == 30 ? 8 : (i % 3 == 1 ? 52 : 34));
      write_text(folder() / (name + ".txt"),
                 "picture " + std::to_string(i) + "\nanother picture\n");
    }
    const fs::path broken = folder() / "photos/7.png";
    fs::resize_file(broken, fs::file_size(broken) / 2);
  }

  const Arguments pictures_ = {"data.source=captions",
                               "data.path=[" + path("photos") + "]",
                               "data.captions=random",
                               "data.frames=1",
                               "frame_masks.image_head=0",
                               R"(data.buckets={"32px": {1: [1.0, 4]}, "16px": {1: [1.0, 2]}})",
                               "data.bucket_ratios=opensora2",
                               "data.bucket_multiple=4",
                               "data.validation=0",
                               "validation.every=0"};
  const Arguments of_cache_ = {"data.source=latents", "data.path=[" + path("cache") + "]"};
};

TEST_F(CachedPicturesTest, LearnAsOnLineOnAnyRanks) {
  const Outcome outcome = encode(pictures_);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("left out 1 sample"));
  EXPECT_EQ(data::LatentCache(path("cache")).size(), 31);
  train_well(run_dir("cached"), joined(clips(pictures_), of_cache_));
  train_well(run_dir("online"), online(pictures_));
  expect_close("online", "cached");
  train_two("two", joined(clips(pictures_), of_cache_));
  train_two("two_online", online(pictures_));
  expect_close("two_online", "two");
}

TEST_F(CachedPicturesTest, TextsOfTheirCaptionsAreInTheCacheToo) {
  pipelines::write_tiny_t5(folder() / "t5");
  const auto stdit = [&](const Arguments& more) {
    return joined(
        {"model.architecture=stdit3", "model.in_channels=4", "model.patch=2", "model.hidden=48",
         "model.text_channels=24", "model.text_tokens=40", "model.learn_sigma=false",
         "objective.kind=flow", "data.height=32", "data.width=32", "train.steps=8",
         "autoencoder.precision=fp32", "text.precision=fp32"},
        joined(pictures_, more));
  };
  const Arguments in_step =
      stdit({"autoencoder.path=" + path("vae"), "data.text=tokens", "text.encoder=" + path("t5")});
  const Outcome outcome = run_kinora(joined({"data", "encode", recipe().string(), "run.dir=unused",
                                             "--out", path("cache"), "--dtype", "fp32"},
                                            in_step),
                                     folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  // Of the 29 samples that have latents, the one that all share, and the empty one of the others.
  EXPECT_THAT(outcome.err, HasSubstr("texts of 31 captions"));
  const data::TextFile texts(path("cache/texts.safetensors"));
  EXPECT_TRUE(texts.find_key("picture 6").has_value());
  EXPECT_FALSE(texts.find_key("picture 30").has_value());
  train_well(run_dir("cached"), stdit(joined(of_cache_, {"data.text=file"})));
  train_well(run_dir("online"),
             joined(in_step, {"text.max_length=" + std::to_string(texts.shape().length)}));
  expect_close("online", "cached");
}

TEST_F(CachedBucketsTest, RanksMakeTheSameCache) {
  ASSERT_EQ(encode().exit_code, 0);
  const auto files = [&] {
    std::map<std::string, std::string> content;
    for (const auto& entry : fs::recursive_directory_iterator(path("cache"))) {
      if (entry.path().extension() == ".safetensors") {
        content[entry.path().filename()] = read_text(entry.path());
      }
    }
    return content;
  };
  const auto alone = files();
  EXPECT_GT(alone.size(), 3U);
  fs::remove_all(path("cache"));
  ASSERT_EQ(encode({"--ranks", "2"}).exit_code, 0);
  EXPECT_EQ(files(), alone);
}

TEST_F(CachedBucketsTest, OtherSizesAreNamed) {
  ASSERT_EQ(encode().exit_code, 0);
  const auto expect_refused = [&](const Arguments& more, const auto& message) {
    const Outcome outcome = train(run_dir("refused"), cached(more));
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    EXPECT_THAT(outcome.err, message);
  };
  expect_refused({"data.buckets={}"}, HasSubstr("holds latents of several sizes"));
  expect_refused({R"(data.buckets={"24px": {4: [1.0, 2]}})", "data.bucket_multiple=8"},
                 AllOf(HasSubstr("were not encoded"), HasSubstr("24px, 4 frames, 24 x 24"),
                       HasSubstr("kinora data encode")));
  expect_refused({"data.height=16", "data.width=16"},
                 HasSubstr("made for data.height, width and frames other than 16 x 16, 4"));
  fs::remove_all(path("cache"));
  ASSERT_EQ(encode({"data.buckets={}"}).exit_code, 0);
  expect_refused({}, HasSubstr("one size, and data.buckets wants several"));
}

}  // namespace cached_buckets_test
}  // namespace kinora::apps
