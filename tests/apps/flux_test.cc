// Flux drawn with and tuned by LoRA, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): a T5 and a CLIP, captions with their padding.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace flux_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const fs::path kPipeline = source_path("tests/inference/data/flux");

constexpr const char* kRecipe = R"(model:
  architecture: flux
  in_channels: 4
  height: 8
  width: 8
  compression: 8
  num_classes: 1
  learn_sigma: false
  text_channels: 16
  text_tokens: 512
  pooled_channels: 16
  depth: 2
  parallel_depth: 2
  hidden: 32
  heads: 2
  patch: 2
  rotary_axes: [4, 6, 6]
  guidance: 1.0
data: {source: captions, height: 64, width: 64, captions: random, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {kind: flow, times: logit_normal, shift_by_tokens: [0.5, 1.15]}
train: {steps: 4, global_batch: 4, micro_batch: 2, threads: 1, device: cpu, label_dropout: 0.3}
finetune: {lora: {targets: ["*.attn.*", "*.mlp.*", "*.linear1", "*.linear2"], rank: 4, alpha: 4}}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {steps: 3, guidance: 1.0}
)";

class FluxTest : public RunTest {
 protected:
  FluxTest() {
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 8; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i, 64 + 10 * (i % 3), 64 + 7 * i);
      write_text(folder() / (name + ".txt"), "a picture of number " + std::to_string(i));
    }
    write_text(recipe(), kRecipe);
  }

  [[nodiscard]] Arguments online(const Arguments& more = {}) const {
    return joined(
        {"data.path=[" + path("photos") + "]", "autoencoder.path=" + (kPipeline / "vae").string(),
         "text.encoder=" + kPipeline.string(),
         "checkpoint.init_from=" + (kPipeline / "transformer").string()},
        more);
  }
  [[nodiscard]] Outcome run_well(const Arguments& arguments) const {
    Outcome outcome = run_kinora(arguments, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  [[nodiscard]] io::Image drawn(const Arguments& whose, const std::string& name) const {
    (void)run_well(joined({"sample", "--prompt", "a picture of number 3", "--seed", "3", "--device",
                           "cpu", "--threads", "1", "--steps", "3", "--out", path(name)},
                          whose));
    return read_image(folder() / name / "image-00000.png");
  }
  [[nodiscard]] Arguments pipeline(const Arguments& more) const {
    return joined({"--model", kPipeline.string(), "--height", "64", "--width", "64"}, more);
  }
};

TEST_F(FluxTest, LearnsOnLineAsFromACacheAndDrawsByItsAdapter) {
  (void)run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out",
                         path("cache"), "--dtype", "fp32"},
                        online()));
  train_well(run_dir("online"), online());
  train_well(run_dir("cached"), online({"data.source=latents", "data.path=[" + path("cache") + "]",
                                        "data.text=file"}));
  const std::vector<LogLine> one = read_log(run_dir("online"));
  const std::vector<LogLine> two = read_log(run_dir("cached"));
  ASSERT_EQ(one.size(), 4U);
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double loss = one[i].at("loss");
    EXPECT_NEAR(two[i].at("loss"), loss, 1e-5 * loss) << i;
  }
  train_well(run_dir("parts"), online({"train.steps=2"}));
  train_well(run_dir("parts"), online({"--resume", "auto"}));
  expect_same_state(run_dir("online") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");

  const io::Image by_run = drawn({"--run", run_dir("online").string()}, "by-run");
  for (const std::string names : {"own", "diffusers", "kohya"}) {
    const std::string adapter = path(names) + (names == "kohya" ? ".safetensors" : "");
    (void)run_well({"convert", run_dir("online").string(), "--adapter", names, "--to", adapter});
    const io::Image by_adapter =
        drawn(pipeline({"--lora", adapter, "--guidance", "1"}), "by-" + names);
    EXPECT_EQ(by_adapter.pixels, by_run.pixels) << names;
  }
  // As sd-scripts and ComfyUI name them.
  EXPECT_THAT(checkpoint::WeightsFile::open(path("kohya") + ".safetensors").names(),
              AllOf(Contains("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"),
                    Contains("lora_unet_single_blocks_1_linear2.lora_up.weight")));
}

TEST_F(FluxTest, TheGuidanceScaleIsToldToTheModel) {
  const auto said = [this](const Arguments& more, const std::string& name) {
    return run_well(joined({"sample", "--prompt", "a", "--device", "cpu", "--steps", "2", "--out",
                            path(name)},
                           pipeline(more)))
        .err;
  };
  EXPECT_THAT(said({}, "default"), HasSubstr("guidance 3.5"));
  EXPECT_THAT(said({"--guidance", "2"}, "two"), HasSubstr("guidance 2"));
  EXPECT_NE(read_image(folder() / "default/image-00000.png").pixels,
            read_image(folder() / "two/image-00000.png").pixels);
}

/// Fill and Kontext, which begin as Flux.
class ShownFluxTest : public FluxTest {
 protected:
  ShownFluxTest() {
    for (int i = 0; i < 8; ++i) {
      write_picture(folder() / ("photos/" + std::to_string(i) + ".png"), i, 64, 64);
      write_picture(folder() / ("photos/" + std::to_string(i) + ".before.png"), i + 20, 64, 64);
    }
    io::Image hole;
    io::set_size(hole, 64, 64);
    for (size_t i = 0; i < hole.pixels.size(); ++i) {
      hole.pixels[i] = i < hole.pixels.size() / 2 ? 255 : 0;
    }
    io::write_png(folder() / "hole.png", hole);
  }
  [[nodiscard]] Arguments filling(const Arguments& more = {}) const {
    return online(
        joined({"model.input=fill", "data.mask=drawn", "finetune.train=[\"x_embedder.*\"]"}, more));
  }
  [[nodiscard]] Arguments changing(const Arguments& more = {}) const {
    return online(joined({"model.input=reference", "data.before=true"}, more));
  }
  /// A folder of diffusers of that class around what a run learned, or around Flux' transformer.
  [[nodiscard]] std::string pipeline_of(const std::string& class_name,
                                        const std::string& run) const {
    const fs::path made = folder() / (class_name + run);
    fs::copy(kPipeline, made, fs::copy_options::recursive);
    if (!run.empty()) {
      (void)run_well({"convert", run_dir(run).string(), "--to", path("converted-" + run)});
      fs::remove_all(made / "transformer");
      fs::copy(folder() / ("converted-" + run) / "transformer", made / "transformer",
               fs::copy_options::recursive);
    }
    auto index = nlohmann::json::parse(read_text(made / "model_index.json"));
    index["_class_name"] = class_name;
    write_text(made / "model_index.json", index.dump());
    return made.string();
  }
};

TEST_F(ShownFluxTest, LearnsToFillInAndToChangePictures) {
  struct Case {
    std::string name;
    std::string pipeline;
    Arguments own;
    Arguments given;
  };
  const Arguments image = {"--image", path("photos/3.before.png")};
  const std::vector<Case> cases = {
      {"fill", "FluxFillPipeline", filling(), joined(image, {"--mask", path("hole.png")})},
      {"reference", "FluxKontextPipeline", changing(), joined(image, {"--keep-image-size"})}};
  train_well(run_dir("plain"), online({"train.steps=1"}));
  for (const auto& [name, pipeline_class, own, given] : cases) {
    SCOPED_TRACE(name);
    const Arguments whole = joined(
        own, {"train.steps=6", "train.global_batch=2", "checkpoint.every=3", "data.validation=2",
              "validation.every=3", "validation.bands=2", "sample.every=6"});
    train_well(run_dir(name), whole);
    EXPECT_TRUE(fs::exists(run_dir(name) / "samples/step-6.png"));
    const std::vector<LogLine> log = read_log(run_dir(name));
    EXPECT_LT(log[5].at("validation_raw"), log[2].at("validation_raw"));
    train_well(run_dir(name + "-parts"), joined(whole, {"train.steps=3"}));
    train_well(run_dir(name + "-parts"), joined(whole, {"--resume", "auto"}));
    expect_same_state(run_dir(name) / "checkpoints/step-6",
                      run_dir(name + "-parts") / "checkpoints/step-6");
    expect_same_log(run_dir(name), run_dir(name + "-parts"), 6);
    const io::Image by_run =
        drawn(joined({"--run", run_dir(name).string()}, given), name + "-by-run");
    const io::Image by_pipeline =
        drawn(joined({"--model", pipeline_of(pipeline_class, name), "--height", "64", "--width",
                      "64", "--guidance", "1"},
                     given),
              name + "-by-pipeline");
    EXPECT_EQ(by_run.pixels, by_pipeline.pixels);
  }
  // The new channels of Fill add nothing to begin with.
  const Outcome start = train(run_dir("first"), filling({"train.steps=1"}));
  ASSERT_EQ(start.exit_code, 0) << start.err;
  EXPECT_THAT(start.err, HasSubstr("x_embedder.proj.weight has weights of zero for 68 channels"));
  EXPECT_NEAR(read_log(run_dir("first"))[0].at("loss"), read_log(run_dir("plain"))[0].at("loss"),
              1e-6);
}

TEST_F(ShownFluxTest, WhatIsMissingOrDoesNotFitIsNamed) {
  const auto training = [&](const Arguments& arguments) {
    return train(run_dir("bad"), arguments).err;
  };
  EXPECT_THAT(training(filling({"data.mask=false"})),
              HasSubstr("data.mask is false, but the model learns to fill in"));
  EXPECT_THAT(training(changing({"data.before=false"})),
              HasSubstr("data.before is false, but the input of the model is reference"));
  EXPECT_THAT(training(filling({"finetune.train=[]"})),
              HasSubstr("Hint: name x_embedder.proj.* in finetune.train"));

  const auto drawing = [&](const std::string& folder, const Arguments& more) {
    return run_kinora(joined({"sample", "--model", folder, "--height", "64", "--width", "64",
                              "--prompt", "a", "--device", "cpu", "--out", path("none")},
                             more),
                      this->folder())
        .err;
  };
  const std::string kontext = pipeline_of("FluxKontextPipeline", "");
  const Arguments image = {"--image", path("photos/3.png")};
  EXPECT_THAT(drawing(kontext, {}), HasSubstr("changes a given picture. Hint: --image FILE"));
  for (const Arguments& more : {Arguments{"--mask", path("hole.png")}, {"--strength", "0.5"}}) {
    EXPECT_THAT(drawing(kontext, joined(image, more)),
                HasSubstr("--mask, --strength and --latents are for others"));
  }
  EXPECT_THAT(drawing(kPipeline.string(), joined(image, {"--keep-image-size"})),
              HasSubstr("--keep-image-size is for models that are shown a picture as tokens"));
  const std::string fill = pipeline_of("FluxFillPipeline", "");
  fs::remove_all(fs::path(fill) / "transformer");
  fs::copy(source_path("tests/inference/data/flux_pictures/fill"), fs::path(fill) / "transformer",
           fs::copy_options::recursive);
  EXPECT_THAT(drawing(fill, {}), HasSubstr("Hint: --image FILE --mask FILE"));
  EXPECT_THAT(drawing(fill, image), HasSubstr("fills in a part of a picture. Hint: --mask FILE"));
  write_picture(folder() / "small.png", 1, 32, 64);
  EXPECT_THAT(
      drawing(fill, joined(image, {"--mask", path("small.png")})),
      AllOf(HasSubstr("small.png must have the size of"), HasSubstr("64 x 64, got 64 x 32")));
}

/// Flux that is shown pictures of what is to be seen, up to two of them.
class ReferredFluxTest : public FluxTest {
 protected:
  ReferredFluxTest() {
    for (int i = 0; i < 8; ++i) {
      const std::string name = "photos/" + std::to_string(i) + ".reference";
      write_picture(folder() / (name + ".png"), i + 20, 40, 64 + 5 * i);
      if (i % 2 == 0) {
        write_picture(folder() / (name + "2.png"), i + 30, 64, 64);
      }
    }
  }
  [[nodiscard]] Arguments referring(const Arguments& more = {}) const {
    return online(joined({"model.references=2", "data.references=2"}, more));
  }
};

TEST_F(ReferredFluxTest, LearnsAndDrawsWithReferences) {
  const Arguments whole = referring(
      {"data.validation=2", "validation.every=2", "validation.bands=2", "sample.every=4"});
  train_well(run_dir("whole"), whole);
  EXPECT_TRUE(fs::exists(run_dir("whole") / "samples/step-4.png"));
  train_well(run_dir("parts"), joined(whole, {"train.steps=2"}));
  train_well(run_dir("parts"), joined(whole, {"--resume", "auto"}));
  expect_same_state(run_dir("whole") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");
  expect_same_log(run_dir("whole"), run_dir("parts"), 4);

  const auto with = [&](const std::string& name, const Arguments& more) {
    return drawn(joined({"--run", run_dir("whole").string()}, more), name).pixels;
  };
  const Arguments one = {"--reference", path("photos/2.reference.png")};
  const Arguments two = joined(one, {"--reference", path("photos/2.reference2.png")});
  const auto by_none = with("none", {});
  const auto by_one = with("one", one);
  const auto by_two = with("two", two);
  EXPECT_NE(by_one, by_none);
  EXPECT_NE(by_two, by_one);
  EXPECT_NE(with("guided", joined(two, {"--image-guidance", "2"})), by_two);
  EXPECT_NE(with("begun", joined(two, {"--init", path("photos/1.png"), "--strength", "0.7"})),
            by_two);
  EXPECT_EQ(run_kinora({"sample", "--like", path("two/image-00000.png"), "--out", path("again")},
                       folder())
                .exit_code,
            0);
  EXPECT_EQ(read_image(folder() / "again/image-00000.png").pixels, by_two);
}

TEST_F(ReferredFluxTest, WhatDoesNotFitIsNamed) {
  const auto training = [&](const Arguments& arguments) {
    return train(run_dir("bad"), arguments).err;
  };
  EXPECT_THAT(training(referring({"data.references=1"})),
              HasSubstr("data.references is 1, but model.references is 2"));
  EXPECT_THAT(training(referring({"model.input=reference"})),
              HasSubstr("model.references are shown where nothing else is"));
  EXPECT_THAT(training(referring({"data.source=folder"})),
              HasSubstr("data.references must be 0 but for data.source captions, manifest, "
                        "moving_shapes and latents"));
  write_text(folder() / "photos/3.reference.png", "no picture");
  EXPECT_THAT(training(referring({"data.max_bad=0"})), HasSubstr("3.reference.png"));

  const auto drawing = [&](const Arguments& more) {
    return run_kinora(
               joined({"sample", "--prompt", "a", "--device", "cpu", "--out", path("none")}, more),
               folder())
        .err;
  };
  train_well(run_dir("one"), referring({"train.steps=1"}));
  const Arguments run = {"--run", run_dir("one").string()};
  const std::string good = path("photos/2.reference.png");
  EXPECT_THAT(drawing(joined(run, {"--reference", good, "--reference", good, "--reference", good})),
              HasSubstr("is shown up to 2 references (model.references), got 3"));
  EXPECT_THAT(drawing(joined(run, {"--reference", path("photos/3.reference.png")})),
              HasSubstr("3.reference.png"));
  EXPECT_THAT(drawing(pipeline({"--reference", good})), HasSubstr("up to 0 references"));
}

// Whole weights, through the folder of diffusers' transformer and back.
TEST_F(FluxTest, ConvertsToDiffusersAndBack) {
  (void)run_well(
      {"convert", (kPipeline / "transformer").string(), "--to", path("own.safetensors")});
  (void)run_well({"convert", path("own.safetensors"), "--to", path("back")});
  const auto theirs = checkpoint::WeightsFile::open(kPipeline / "transformer");
  const auto back = checkpoint::WeightsFile::open(folder() / "back/transformer");
  EXPECT_EQ(back.names().size(), theirs.names().size() + 2);  // and what null captions are read as
  for (const std::string& name : theirs.names()) {
    EXPECT_TRUE(back.read(name).equal(theirs.read(name))) << name;
  }
}

}  // namespace flux_test
}  // namespace kinora::apps
