// Caches of latents with pictures before they were changed and references: kinora data encode, and
// runs on what it writes, which log the losses of runs that encode these pictures in each step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/io/image.h"
#include "tests/apps/run_folder.h"
#include "tests/apps/tiny_autoencoder.h"

namespace kinora::apps {
namespace cached_pictures_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// 24 captioned pictures of three shapes, each with one before it, a mask, a control picture, and
/// 0, 1 or 2 references, for a tiny Flux.
class CachedPairsTest : public RunTest {
 protected:
  CachedPairsTest() {
    write_tiny_autoencoder(folder() / "vae", 0.5);
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 24; ++i) {
      const std::string name = path("photos/" + std::to_string(10 + i));
      const int height = i % 3 == 0 ? 20 : 36;
      const int width = i % 3 == 1 ? 52 : 34;
      write_picture(name + ".png", i, height, width);
      write_picture(name + ".before.png", i + 50, height, width);
      write_picture(name + ".control.png", i + 70, height, width);
      io::Image mask;
      io::set_size(mask, height, width);
      for (size_t at = 0; at < mask.pixels.size(); ++at) {
        mask.pixels[at] =
            at / 3 % static_cast<size_t>(width) < 5U + static_cast<size_t>(i) ? 255 : 0;
      }
      io::write_png(name + ".mask.png", mask);
      write_text(name + ".txt", "picture " + std::to_string(i));
      for (int k = 1; k <= i % 3; ++k) {
        write_picture(name + ".reference" + (k > 1 ? "2" : "") + ".png", i + 99 + k, 24 + i, 30);
      }
    }
  }

  [[nodiscard]] Arguments of(const std::string& architecture, const Arguments& more) const {
    return joined(joined(kReads, {"model.architecture=" + architecture, "model.in_channels=4",
                                  "model.patch=2", "model.depth=1", "model.parallel_depth=1",
                                  "model.learn_sigma=false", "objective.kind=flow",
                                  "autoencoder.precision=fp32", "data.validation=4",
                                  "validation.every=3", "train.steps=6", "train.global_batch=4",
                                  "train.micro_batch=2", "train.label_dropout=0.2"}),
                  more);
  }
  [[nodiscard]] Arguments pictures(const Arguments& more) const {
    return of("flux", joined({"data.source=captions", "data.path=[" + path("photos") + "]"}, more));
  }
  [[nodiscard]] Outcome encode(const Arguments& recipe_of_set, const Arguments& more = {}) const {
    return run_kinora(
        joined(joined({"data", "encode", recipe().string(), "run.dir=unused", "--autoencoder",
                       path("vae"), "--out", path("cache"), "--dtype", "fp32"},
                      recipe_of_set),
               more),
        folder());
  }
  [[nodiscard]] Arguments cached(const Arguments& arguments) const {
    return joined(arguments, {"data.source=latents", "data.path=[" + path("cache") + "]"});
  }
  /// A run on the cache, and one that encodes in each step, log the same losses.
  void expect_learn_alike(const Arguments& arguments, const Arguments& encoding = {}) const {
    const Outcome outcome = encode(arguments, encoding);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    train_well(run_dir("cached"), cached(arguments));
    train_well(run_dir("online"), joined(arguments, {"autoencoder.path=" + path("vae")}));
    expect_close_losses(run_dir("online"), run_dir("cached"), 6, 1e-5);
    EXPECT_TRUE(read_log(run_dir("cached")).at(5).contains("validation_raw"));
    train_well(run_dir("parts"), joined(cached(arguments), {"train.steps=3"}));
    train_well(run_dir("parts"), joined(cached(arguments), {"--resume", "auto"}));
    expect_same_log(run_dir("cached"), run_dir("parts"), 6);
  }
  const Arguments pairs_ = {"model.input=reference", "data.before=true"};
  const Arguments references_ = {"model.references=2", "data.references=2"};
};

TEST_F(CachedPairsTest, PairsLearnAsOnLine) {
  expect_learn_alike(pictures(joined(pairs_, {"data.flip=true"})), {"--mirrored"});
}

TEST_F(CachedPairsTest, MasksToFillInLearnAsOnLine) {
  expect_learn_alike(pictures({"model.input=fill", "data.mask=true", "data.flip=true"}),
                     {"--mirrored"});
}

TEST_F(CachedPairsTest, MasksWeighLossesAsOnLine) {
  expect_learn_alike(pictures({"data.mask=true", "data.flip=true"}), {"--mirrored"});
}

TEST_F(CachedPairsTest, SamplesWithFewerReferencesLearnAsOnLine) {
  expect_learn_alike(pictures(references_));
  // They are seen.
  train_well(run_dir("plain"), pictures({"autoencoder.path=" + path("vae"), "train.steps=6"}));
  EXPECT_NE(read_log(run_dir("plain")).at(5).at("loss"),
            read_log(run_dir("cached")).at(5).at("loss"));
}

TEST_F(CachedPairsTest, MirroredReferencesInBucketsLearnAsOnLine) {
  expect_learn_alike(
      of("open_sora2",
         joined(references_,
                {"data.source=captions", "data.path=[" + path("photos") + "]", "data.flip=true",
                 "train.global_batch=8", "train.micro_batch=8", "data.bucket_multiple=4",
                 R"(data.buckets={"32px": {1: [1.0, 3]}, "16px": {1: [1.0, 2]}})"})),
      {"--mirrored"});
}

TEST_F(CachedPairsTest, ReferencesOfClipsLearnAsOnLine) {
  expect_learn_alike(of("open_sora2", joined(references_, {"data.source=moving_shapes",
                                                           "data.frames=4", "data.count=30"})));
}

TEST_F(CachedPairsTest, RanksMakeTheSameCache) {
  const Arguments arguments =
      pictures(joined(references_, {"data.before=true", "data.control=true"}));
  const auto encoded = [&](const Arguments& more) {
    EXPECT_EQ(encode(arguments, more).exit_code, 0);
    std::map<std::string, std::string> content;
    for (const auto& entry : fs::recursive_directory_iterator(path("cache"))) {
      if (entry.path().extension() == ".safetensors") {
        content[entry.path().filename()] = read_text(entry.path());
      }
    }
    fs::remove_all(path("cache"));
    return content;
  };
  const auto alone = encoded({});
  EXPECT_TRUE(alone.contains("part-00000.beside.safetensors"));
  EXPECT_TRUE(alone.contains("part-00000.control.safetensors"));
  EXPECT_EQ(encoded({"--ranks", "2"}), alone);
}

TEST_F(CachedPairsTest, WhatTheCacheLacksIsNamed) {
  const auto expect_refused = [&](const Arguments& arguments, const auto& message) {
    const Outcome outcome = train(run_dir("refused"), cached(arguments));
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    EXPECT_THAT(outcome.err, message);
  };
  const Outcome masked = encode(pictures({"data.mask=drawn"}));
  ASSERT_EQ(masked.exit_code, 0) << masked.err;
  EXPECT_THAT(masked.err,
              AllOf(HasSubstr("a cache of latents holds no masks that are drawn anew each time "
                              "(data.mask=drawn), nor what they leave of pictures"),
                    HasSubstr("trains on the pictures, with autoencoder.path, or on masks of files "
                              "(data.mask=true)")));
  expect_refused(pictures({"model.input=fill", "data.mask=drawn"}),
                 HasSubstr("what each mask leaves is encoded in each step, from pictures with "
                           "autoencoder.path"));
  expect_refused(pictures(references_), AllOf(HasSubstr("latents of no references a sample"),
                                              HasSubstr("data.references=2")));
  expect_refused(pictures({"model.input=fill", "data.mask=true"}),
                 HasSubstr("holds no masks (data.mask)"));
  expect_refused(pictures(pairs_), HasSubstr("no latents of pictures before they were changed"));
  expect_refused(pictures({"data.before=true"}), HasSubstr("no latents of pictures before"));
  expect_refused(pictures({"model.references=2"}),
                 HasSubstr("data.references is 0, but model.references is 2"));
}

}  // namespace cached_pictures_test
}  // namespace kinora::apps
