// kinora sample --image-model: clips from words by way of pictures, with the tiny pipelines of
// tools/reference/make_pipeline_fixtures.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "tests/apps/run_folder.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"

namespace kinora::apps {
namespace first_frames_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const fs::path kData = source_path("tests/inference/data");
const Arguments kPrompts = {"--prompt", "a red circle", "a blue square"};

class FirstFramesTest : public RunTest {
 protected:
  [[nodiscard]] Outcome sample(const std::string& out, const Arguments& more) const {
    return run_kinora(
        joined({"sample", "--device", "cpu", "--seed", "3", "--out", path(out)}, more), folder());
  }
  Outcome draw(const std::string& out, const Arguments& more) const {
    Outcome outcome = sample(out, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  /// Clips that go on from a frame.
  [[nodiscard]] static Arguments clips(const Arguments& more) {
    return joined({"--model", (kData / "ltx").string(), "--frames", "8", "--height", "32",
                   "--width", "64", "--steps", "2", "--save-latents"},
                  more);
  }
  [[nodiscard]] at::Tensor latents(const std::string& name) const {
    return checkpoint::WeightsFile::open(folder() / name / "latents.safetensors").read("latents");
  }
};

const std::string kAlpha = (kData / "pixart_alpha").string();

TEST_F(FirstFramesTest, AreThoseOfTwoCommands) {
  const Arguments both = joined(clips(kPrompts), {"--image-model", kAlpha});
  const Outcome once = draw("once", joined(both, {"--json"}));
  EXPECT_THAT(once.err, AllOf(HasSubstr("first frames are drawn by"), HasSubstr("LTXPipeline in")));
  EXPECT_EQ(nlohmann::json::parse(once.out)["out"], path("once")) << "what was asked for alone";
  (void)draw("pictures", joined({"--model", kAlpha}, kPrompts));
  std::vector<std::string> pictures;
  for (const char* name : {"image-00000.png", "image-00001.png"}) {
    const fs::path first = folder() / "once/first-frames" / name;
    pictures.push_back((folder() / "pictures" / name).string());
    const auto read = [](const fs::path& file) {
      return io::decode_image(io::read_file(file, 1 << 20), file.string()).pixels;
    };
    EXPECT_EQ(read(first), read(pictures.back())) << name;
  }
  (void)draw("clips", joined(clips(kPrompts), joined({"--image"}, pictures)));
  const at::Tensor drawn = latents("once");
  EXPECT_TRUE(drawn.equal(latents("clips")));
  // And each clip has its own.
  (void)draw("swapped", joined(clips(kPrompts), {"--image", pictures[1], pictures[0]}));
  EXPECT_FALSE(drawn.equal(latents("swapped")));

  // The same command has nothing to draw, and more clips go on from these.
  EXPECT_THAT(draw("once", both).err, HasSubstr("2 of 2 are there already"));
  EXPECT_THAT(draw("once", joined(both, {"--count", "3"})).err,
              AllOf(HasSubstr("2 of 3 are there already"), Not(HasSubstr("of another drawing"))));
  EXPECT_TRUE(latents("once").narrow(0, 0, 2).equal(drawn));
  // One of them is drawn again from what its file says, with its picture alone.
  const std::string clip = (folder() / "once/clip-00001.webp").string();
  (void)draw("again", {"--like", clip});
  EXPECT_EQ(io::read_file(clip, 1 << 24),
            io::read_file(folder() / "again/clip-00001.webp", 1 << 24));
  EXPECT_TRUE(fs::exists(folder() / "again/first-frames/image-00001.png"));
  EXPECT_FALSE(fs::exists(folder() / "again/first-frames/image-00000.png"));
}

TEST_F(FirstFramesTest, RanksDrawThemTooBeforeTheClips) {
  const Arguments both = joined(clips(kPrompts), {"--image-model", kAlpha});
  (void)draw("one", both);
  (void)draw("two", joined(both, {"--ranks", "2"}));
  // Pictures have 8 bits, of which a rounding can change one; another picture is 1 off.
  EXPECT_LT(ops::relative_error(latents("two"), latents("one")), 1e-2);
}

TEST_F(FirstFramesTest, AreDrawnAgainByAnotherModelWhereTheirOwnIsGone) {
  const fs::path pictures = folder() / "pictures-model";
  fs::copy(kAlpha, pictures, fs::copy_options::recursive);
  (void)draw("out", joined(clips({"--prompt", "a"}), {"--image-model", pictures.string()}));
  fs::remove_all(pictures);
  const Arguments like = {"--like", (folder() / "out/clip-00000.webp").string()};
  const Outcome outcome = sample("again", like);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("pictures-model\", which is not here. Hint: --image-model PATH"));
  (void)draw("again", joined(like, {"--image-model", kAlpha}));
  EXPECT_TRUE(fs::exists(folder() / "again/clip-00000.webp"));
}

TEST_F(FirstFramesTest, HaveTheShapeOfTheClipsWhereTheirModelTakesAnySize) {
  const std::string flux = (kData / "flux").string();
  write_text(folder() / "flux.yaml",
             "model: {architecture: flux, in_channels: 4, height: 8, width: 8, compression: 8, "
             "learn_sigma: false, num_classes: 1, text_channels: 16, text_tokens: 512, "
             "pooled_channels: 16, depth: 2, parallel_depth: 2, hidden: 32, heads: 2, patch: 2, "
             "rotary_axes: [4, 6, 6], guidance: 3.5}\n"
             "objective: {kind: flow}\nsample: {steps: 1, guidance: 1.0}\nema: {decays: []}\n"
             "text: {encoder: " +
                 flux + "}\nautoencoder: {path: " + flux + "/vae}\n");
  const Outcome converted = run_kinora({"convert", flux + "/transformer", "--config",
                                        path("flux.yaml"), "--to", path("own.safetensors")},
                                       folder());
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  (void)draw("out", joined(clips({"--prompt", "a"}), {"--image-model", path("own.safetensors")}));
  const fs::path first = folder() / "out/first-frames/image-00000.png";
  const io::Image image = io::decode_image(io::read_file(first, 1 << 20), first.string());
  // As 32 x 64 with about 64 x 64 pixels, in whole patches of 16.
  EXPECT_EQ(image.height, 48);
  EXPECT_EQ(image.width, 96);
}

TEST_F(FirstFramesTest, WhatHasNoneIsRefused) {
  const auto refusal = [this](const Arguments& more) {
    const Outcome outcome = sample("out", more);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_FALSE(fs::exists(folder() / "out/first-frames/image-00000.png"));
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--model", kAlpha, "--prompt", "a", "--image-model", kAlpha}),
              HasSubstr("draws first frames of clips"));
  EXPECT_THAT(refusal(clips({"--image-model", kAlpha})), HasSubstr("from captions, got none"));
  const std::string wan = (kData / "wan").string();
  EXPECT_THAT(refusal({"--model", wan, "--prompt", "a", "--image-model", kAlpha}),
              HasSubstr("was never given frames while it trained"));
  EXPECT_THAT(refusal(joined(clips(kPrompts), {"--image-model", (kData / "dit").string()})),
              HasSubstr("draws pictures from captions, got"));
  EXPECT_THAT(refusal(joined(clips(kPrompts), {"--image-model", "nowhere"})), HasSubstr("nowhere"));
  EXPECT_THAT(refusal(joined(clips(kPrompts), {"--image-model", kAlpha, "--image", "a.png"})),
              HasSubstr("--image"));
}

}  // namespace first_frames_test
}  // namespace kinora::apps
