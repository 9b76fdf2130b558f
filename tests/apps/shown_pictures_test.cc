// U-Nets that are shown pictures, trained: ControlNets beside them, inpainting and editing.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/stable_diffusion_run.h"

namespace kinora::apps {
namespace shown_pictures_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ControlNetTest : public StableDiffusionTest {
 protected:
  ControlNetTest() {
    for (int i = 0; i < 12; ++i) {
      write_picture(folder() / ("photos/" + std::to_string(i) + ".control.png"), i + 20, 64, 64);
    }
  }
  [[nodiscard]] Arguments controlled(const Arguments& more = {}) const {
    return tuned(joined(
        {"data.control=true", "model.unet.controls=1", "model.unet.control_channels=[4,4,8,8]",
         "finetune.train=[\"controlnets.*\"]", "finetune.fresh=[\"controlnets.*.controlnet_*\"]"},
        more));
  }
};

TEST_F(ControlNetTest, LearnsBesideAFrozenUnetAndIsDrawnWithElsewhere) {
  train_well(run_dir("plain"), tuned({"train.steps=1"}));
  train_well(run_dir("whole"), controlled({"sample.every=6", "sample.count=2", "lr.value=1.0e-2",
                                           "data.validation=4", "validation.every=3"}));
  // It adds nothing to begin with.
  train_well(run_dir("first"), controlled({"train.steps=1"}));
  EXPECT_NEAR(read_log(run_dir("first"))[0].at("loss"), read_log(run_dir("plain"))[0].at("loss"),
              1e-6);
  EXPECT_TRUE(fs::exists(run_dir("whole") / "samples/step-6.png"));
  run_well({"convert", run_dir("whole").string(), "--to", path("converted")});
  const auto unet = checkpoint::WeightsFile::open(kPipeline / "unet");
  const auto own = checkpoint::WeightsFile::open(folder() / "converted/unet");
  const auto net = checkpoint::WeightsFile::open(folder() / "converted/controlnet");
  for (const std::string& name : unet.names()) {
    EXPECT_TRUE(at::equal(own.read(name), unet.read(name).to(at::kFloat))) << name;
  }
  const std::string conv = "down_blocks.0.resnets.0.conv1.weight";
  EXPECT_FALSE(at::equal(net.read(conv), unet.read(conv).to(at::kFloat)));
  EXPECT_TRUE(net.read("controlnet_mid_block.weight").any().item<bool>());
  const Arguments control = {"--control", path("photos/3.control.png")};
  const auto by_run = drawn(joined({"--run", run_dir("whole").string()}, control), "by-run");
  const auto with = [&](const Arguments& more, const std::string& name) {
    return drawn(joined(joined({"--model", kPipeline.string()}, kSampler), more), name);
  };
  const Arguments beside = joined({"--controlnet", path("converted/controlnet")}, control);
  expect_close(by_run, with(beside, "beside"));
  const auto without = with({}, "without");
  EXPECT_GT(difference_of(by_run[0], without[0]).most, 1);
  expect_close(without, with(joined(beside, {"--control-scale", "0"}), "scaled"));
}

TEST_F(ControlNetTest, SixStepsEqualThreeAndThreeOnOneRankAndTwo) {
  train_well(run_dir("whole"), controlled());
  train_well(run_dir("parts"), controlled({"train.steps=3"}));
  train_well(run_dir("parts"), controlled({"--resume", "auto"}));
  expect_same_state(run_dir("whole") / "checkpoints/step-6",
                    run_dir("parts") / "checkpoints/step-6");
  expect_same_log(run_dir("whole"), run_dir("parts"), 6);
  run_well(joined(train_command(run_dir("two"), controlled({"parallel.plugin=zero3"})),
                  {"--ranks", "2"}));
  const std::vector<LogLine> one = read_log(run_dir("whole"));
  const std::vector<LogLine> two = read_log(run_dir("two"));
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double loss = one[i].at("loss");
    EXPECT_NEAR(two[i].at("loss"), loss, 1e-5 * loss) << i;
  }
}

// Control pictures lie in the cache as pixels, cut as their samples and mirrored when they are
// read.
TEST_F(ControlNetTest, LearnsFromACacheAsOnLine) {
  for (const int i : {1, 4, 7}) {
    write_picture(folder() / ("photos/" + std::to_string(i) + ".png"), i, 80, 96);
    write_picture(folder() / ("photos/" + std::to_string(i) + ".control.png"), i + 20, 80, 96);
  }
  // From a ControlNet that has learned, so that the pictures matter from the first step on.
  train_well(run_dir("start"), controlled({"lr.value=3.0e-1", "train.steps=24"}));
  const Arguments own =
      controlled({"checkpoint.init_from=" + (run_dir("start") / "checkpoints/step-24").string(),
                  "finetune.fresh=[]", "data.flip=true", "data.validation=4", "validation.every=3",
                  "validation.bands=2", "sample.every=6", "sample.count=2"});
  const auto encode = [&](const Arguments& arguments, const std::string& name) {
    run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out", path(name),
                     "--dtype", "fp32", "--mirrored"},
                    arguments));
  };
  const auto on = [&](const std::string& name, const Arguments& arguments) {
    return joined(arguments, {"data.source=latents", "data.path=[" + path(name) + "]"});
  };
  const auto grid = [&](const std::string& name) {
    return read_image(run_dir(name) / "samples/step-6.png");
  };
  encode(own, "cache");
  train_well(run_dir("online"), own);
  train_well(run_dir("cached"), on("cache", own));
  expect_close_losses(run_dir("online"), run_dir("cached"), 6, 1e-5);
  EXPECT_TRUE(read_log(run_dir("cached")).at(5).contains("validation_raw"));
  EXPECT_LE(difference_of(grid("online"), grid("cached")).most, 1);
  train_well(run_dir("parts"), joined(on("cache", own), {"train.steps=3"}));
  train_well(run_dir("parts"), joined(on("cache", own), {"--resume", "auto"}));
  expect_same_log(run_dir("cached"), run_dir("parts"), 6);
  train_well(run_dir("plain"), on("cache", tuned({"train.steps=1"})));  // which asks for none

  // Others would have been seen.
  for (int i = 0; i < 12; ++i) {
    const fs::path control = folder() / ("photos/" + std::to_string(i) + ".control.png");
    const io::Image picture = read_image(control);
    write_picture(control, i + 90, picture.height, picture.width);
  }
  encode(own, "other-cache");
  train_well(run_dir("others"), on("other-cache", own));
  const LogLine seen = read_log(run_dir("cached")).at(5);
  const LogLine other = read_log(run_dir("others")).at(5);
  for (const char* const key : {"loss", "validation_raw"}) {
    EXPECT_GT(std::abs(other.at(key).get<double>() - seen.at(key).get<double>()), 3e-4) << key;
  }
  EXPECT_GT(difference_of(grid("others"), grid("cached")).most, 1);

  encode(tuned(), "without");
  const Outcome refused = train(run_dir("refused"), on("without", own));
  EXPECT_EQ(refused.exit_code, kUsage);
  EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("holds no control pictures (data.control)"),
                                          HasSubstr("kinora data encode with data.control=true")));
}

TEST_F(ControlNetTest, WhatIsMissingOrDoesNotFitIsNamed) {
  const auto failure = [&](const Arguments& arguments) {
    return train(run_dir("bad"), arguments).err;
  };
  EXPECT_THAT(failure(controlled({"data.control=false"})),
              HasSubstr("data.control is false, but the model has 1 ControlNets"));
  EXPECT_THAT(failure(tuned({"data.control=true"})),
              HasSubstr("data.control is true, but the model has 0 ControlNets"));
  fs::remove(folder() / "photos/3.control.png");
  EXPECT_THAT(failure(controlled({"data.max_bad=0"})),
              HasSubstr("a picture without NAME.control.png beside it"));
  write_picture(folder() / "photos/3.control.png", 1, 64, 32);
  EXPECT_THAT(failure(controlled({"data.max_bad=0"})),
              HasSubstr("3.control.png must have the size of its picture, 64 x 64, got"));
}

/// Inpainting and editing, from the U-Net of a plain pipeline.
class ShownUnetTest : public StableDiffusionTest {
 protected:
  ShownUnetTest() {
    for (int i = 0; i < 12; ++i) {
      write_picture(folder() / ("photos/" + std::to_string(i) + ".before.png"), i + 20, 64, 64);
      write_picture(folder() / ("photos/" + std::to_string(i) + ".control.png"), i + 30, 64, 64);
    }
  }
  [[nodiscard]] Arguments inpainting(const Arguments& more = {}) const {
    return tuned(joined({"model.unet.input=inpaint", "data.mask=drawn"}, more));
  }
  [[nodiscard]] Arguments editing(const Arguments& more = {}) const {
    return tuned(joined({"model.unet.input=edit", "data.before=true"}, more));
  }
  void expect_exact(const std::string& name, const Arguments& own) const {
    SCOPED_TRACE(name);
    const fs::path whole = run_dir(name + "-whole");
    const fs::path parts = run_dir(name + "-parts");
    train_well(whole, own);
    train_well(parts, joined(own, {"train.steps=3"}));
    train_well(parts, joined(own, {"--resume", "auto"}));
    expect_same_state(whole / "checkpoints/step-6", parts / "checkpoints/step-6");
    expect_same_log(whole, parts, 6);
    run_well(joined(train_command(run_dir(name + "-two"), joined(own, {"parallel.plugin=zero3"})),
                    {"--ranks", "2"}));
    const std::vector<LogLine> one = read_log(whole);
    const std::vector<LogLine> two = read_log(run_dir(name + "-two"));
    ASSERT_EQ(two.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      const double loss = one[i].at("loss");
      EXPECT_NEAR(two[i].at("loss"), loss, 1e-5 * loss) << i;
      if (one[i].contains("validation_raw")) {
        const double validation = one[i].at("validation_raw");
        EXPECT_NEAR(two[i].at("validation_raw"), validation, 1e-5 * validation) << i;
      }
    }
  }
  /// A pipeline of that class with the U-Net that a run learned.
  void write_pipeline(const std::string& name, const std::string& class_name,
                      const std::string& run) const {
    run_well({"convert", run_dir(run).string(), "--to", path(name + "-converted")});
    fs::copy(kPipeline, folder() / name, fs::copy_options::recursive);
    fs::remove_all(folder() / name / "unet");
    fs::copy(folder() / (name + "-converted") / "unet", folder() / name / "unet",
             fs::copy_options::recursive);
    auto index = nlohmann::json::parse(read_text(folder() / name / "model_index.json"));
    index["_class_name"] = class_name;
    write_text(folder() / name / "model_index.json", index.dump());
  }
};

// The new channels add nothing to begin with, and then they learn.
TEST_F(ShownUnetTest, APlainUnetLearnsToFillInAndToEdit) {
  train_well(run_dir("plain"), tuned({"train.steps=1"}));
  const double first = read_log(run_dir("plain"))[0].at("loss");
  write_picture(folder() / "hole.png", 0, 64, 64);
  io::Image hole;
  io::set_size(hole, 64, 64);
  for (size_t i = 0; i < hole.pixels.size(); ++i) {
    hole.pixels[i] = i < hole.pixels.size() / 2 ? 255 : 0;
  }
  io::write_png(folder() / "hole.png", hole);
  const Arguments shown = {"sample.every=6",     "sample.count=2",     "data.validation=4",
                           "validation.every=3", "validation.bands=2", "lr.value=1.0e-2"};
  const Arguments image = {"--image", path("photos/3.before.png")};
  struct Case {
    std::string name;
    Arguments own;
    std::string channels;
    std::string pipeline;
    Arguments given;
  };
  const std::vector<Case> cases = {{"inpaint", inpainting(), "5", "StableDiffusionInpaintPipeline",
                                    joined(image, {"--mask", path("hole.png")})},
                                   {"edit", editing({"sample.given_guidance=1.5"}), "4",
                                    "StableDiffusionInstructPix2PixPipeline", image}};
  for (const auto& [name, own, channels, pipeline, given] : cases) {
    SCOPED_TRACE(name);
    const Outcome start = train(run_dir(name + "-first"), joined(own, {"train.steps=1"}));
    ASSERT_EQ(start.exit_code, 0) << start.err;
    EXPECT_THAT(start.err,
                HasSubstr("conv_in.weight has weights of zero for " + channels + " channels"));
    EXPECT_NEAR(read_log(run_dir(name + "-first"))[0].at("loss"), first, 1e-6);
    train_well(run_dir(name), joined(own, shown));
    EXPECT_TRUE(fs::exists(run_dir(name) / "samples/step-6.png"));
    EXPECT_GT(read_log(run_dir(name))[5].at("validation_raw"), 0.0);
    const auto by_run = drawn(joined({"--run", run_dir(name).string()}, given), name + "-by-run");
    write_pipeline(name + "-pipeline", pipeline, name);
    expect_close(by_run,
                 drawn(joined(joined({"--model", path(name + "-pipeline")}, kSampler), given),
                       name + "-by-pipeline"));
    const at::Tensor weight =
        checkpoint::WeightsFile::open(folder() / (name + "-pipeline/unet")).read("conv_in.weight");
    const at::Tensor added = weight.narrow(1, 4, weight.size(1) - 4);
    EXPECT_EQ(added.size(1), std::stoi(channels));
    EXPECT_GT(added.abs().amax({0, 2, 3}).min().item<double>(), 1e-3);
    // It goes on from a U-Net that is shown as much, too.
    const Outcome again = train(
        run_dir(name + "-again"),
        joined(own, {"train.steps=1", "checkpoint.init_from=" + path(name + "-pipeline/unet")}));
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.err, testing::Not(HasSubstr("weights of zero")));
  }
}

TEST_F(ShownUnetTest, SixStepsEqualThreeAndThreeOnOneRankAndTwo) {
  const Arguments held_out = {"data.validation=4", "validation.every=3", "validation.bands=2",
                              "lr.value=1.0e-2", "data.flip=true"};
  expect_exact("edit", editing(held_out));
  expect_exact("controlled",
               inpainting(joined(held_out, {"data.control=true", "model.unet.controls=1",
                                            "model.unet.control_channels=[4,4,8,8]",
                                            "finetune.fresh=[\"controlnets.*.controlnet_*\"]"})));
}

// A mask from a file says what is filled in, and weighs no loss; a black one shows the picture.
TEST_F(ShownUnetTest, MasksOfFilesSayWhatIsFilledIn) {
  const auto loss = [&](const std::string& name, uint8_t grey) {
    for (int i = 0; i < 12; ++i) {
      io::Image mask;
      io::set_size(mask, 64, 64);
      std::fill(mask.pixels.begin(), mask.pixels.end(), grey);
      io::write_png(folder() / ("photos/" + std::to_string(i) + ".mask.png"), mask);
    }
    train_well(run_dir(name), inpainting({"data.mask=true", "lr.value=1.0e-1"}));
    return read_log(run_dir(name));
  };
  const std::vector<LogLine> black = loss("black", 127);
  const std::vector<LogLine> white = loss("white", 128);
  EXPECT_NEAR(black[0].at("loss"), white[0].at("loss"), 1e-6);
  EXPECT_GT(black[0].at("loss"), 0.1);
  EXPECT_GT(std::abs(black[5].at("loss").get<double>() - white[5].at("loss").get<double>()), 1e-5);
}

// The pictures before lie in the cache as the model's latents; the U-Net is shown them not scaled.
TEST_F(ShownUnetTest, EditsFromACacheAsOnLine) {
  const Arguments own = editing({"data.validation=4", "validation.every=3", "validation.bands=2",
                                 "lr.value=1.0e-2", "sample.every=6", "sample.count=2"});
  run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out", path("cache"),
                   "--dtype", "fp32"},
                  own));
  const Arguments cached =
      joined(own, {"data.source=latents", "data.path=[" + path("cache") + "]"});
  train_well(run_dir("online"), own);
  train_well(run_dir("cached"), cached);
  expect_close_losses(run_dir("online"), run_dir("cached"), 6, 1e-5);
  EXPECT_TRUE(fs::exists(run_dir("cached") / "samples/step-6.png"));
  EXPECT_THAT(
      train(run_dir("bad"), joined(cached, {R"(autoencoder.path="")", "sample.every=0"})).err,
      HasSubstr("a U-Net with input edit is shown a picture's without their scale"));
}

TEST_F(ShownUnetTest, WhatIsMissingOrDoesNotFitIsNamed) {
  const auto failure = [&](const Arguments& arguments) {
    return train(run_dir("bad"), arguments).err;
  };
  EXPECT_THAT(failure(inpainting({"data.mask=false"})),
              HasSubstr("data.mask is false, but the model learns to fill in"));
  EXPECT_THAT(failure(tuned({"data.mask=drawn"})),
              HasSubstr("data.mask is drawn, but the input of the model is plain"));
  EXPECT_THAT(failure(editing({"data.before=false"})),
              HasSubstr("data.before is false, but the input of the model is edit"));
  EXPECT_THAT(failure(inpainting({"data.before=true"})),
              HasSubstr("data.before is true, but the input of the model is inpaint"));
  EXPECT_THAT(failure(editing({"train.label_dropout=0.7"})),
              HasSubstr("train.label_dropout must be at most 2/3"));
  EXPECT_THAT(failure(inpainting({"data.source=latents"})),
              HasSubstr("be drawn for pictures alone, not for clips or latents"));
  EXPECT_THAT(failure(editing({"finetune.train=[\"mid_block.*\"]"})),
              HasSubstr("Hint: name conv_in.* in finetune.train"));
  fs::remove(folder() / "photos/3.before.png");
  EXPECT_THAT(failure(editing({"data.max_bad=0"})),
              HasSubstr("a picture without NAME.before.png beside it"));
  write_picture(folder() / "photos/3.before.png", 1, 64, 32);
  EXPECT_THAT(failure(editing({"data.max_bad=0"})),
              HasSubstr("3.before.png must have the size of its picture, 64 x 64, got"));
}

}  // namespace shown_pictures_test
}  // namespace kinora::apps
