// A U-Net of Stable Diffusion trained on words, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): its U-Net, CLIP, tokenizer and autoencoder.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/data/text_file.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "tests/apps/clips.h"
#include "tests/apps/stable_diffusion_run.h"
#include "tests/places.h"

namespace kinora::apps {
namespace stable_diffusion_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kTokens = 77;
constexpr int64_t kWidth = 16;

const Arguments kLora = {
    "finetune.lora.targets=[\"*.to_q\", \"*.to_k\", \"*.to_v\", \"*.to_out.0\"]",
    "finetune.lora.rank=2", "lr.value=2.0e-2"};

/// Of all linears and convolutions.
const Arguments kLokr = {"finetune.lora.targets=[\"*\"]", "finetune.lora.kind=lokr",
                         "finetune.lora.rank=2", "finetune.lora.conv_rank=1", "lr.value=2.0e-2"};

TEST_F(StableDiffusionTest, LearnsOnLineAsFromACache) {
  run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out", path("cache"),
                   "--dtype", "fp32"},
                  online()));
  const data::TextFile texts(path("cache/texts.safetensors"));
  EXPECT_EQ(texts.shape().length, kTokens);
  data::Text text;
  for (int64_t i = 0; i < texts.num_texts(); ++i) {
    texts.read(i, text);
    EXPECT_EQ(text.length, kTokens) << i;
  }
  const Arguments held_out = {"data.validation=4", "validation.every=3"};
  train_well(run_dir("cached"), cached(held_out));
  train_well(run_dir("online"), online(held_out));
  const std::vector<LogLine> from_cache = read_log(run_dir("cached"));
  const std::vector<LogLine> in_step = read_log(run_dir("online"));
  ASSERT_EQ(from_cache.size(), 6U);
  ASSERT_EQ(in_step.size(), 6U);
  for (size_t i = 0; i < in_step.size(); ++i) {
    const double loss = in_step[i].at("loss");
    EXPECT_NEAR(from_cache[i].at("loss"), loss, 1e-5 * loss) << i;
  }
  const double validation = in_step[5].at("validation_raw");
  EXPECT_NEAR(from_cache[5].at("validation_raw"), validation, 1e-5 * validation);
  EXPECT_TRUE(at::equal(null_text(run_dir("cached") / "checkpoints/step-6"),
                        null_text(run_dir("online") / "checkpoints/step-6")));
}

// The states are what diffusers' pipeline makes of its prompts and, last, of "".
TEST_F(StableDiffusionTest, CaptionsAndTheNullOneAreThoseOfDiffusers) {
  const auto drawn = checkpoint::WeightsFile::open(kPipeline / "drawn.safetensors");
  const auto prompts =
      nlohmann::json::parse(drawn.metadata("prompts")).get<std::vector<std::string>>();
  ASSERT_EQ(drawn.metadata("negative"), "");
  const at::Tensor states =
      drawn.read("states").view({std::ssize(prompts) + 1, kTokens, kWidth}).contiguous();
  const auto expect_states = [&](const at::Tensor& got, int64_t number) {
    const at::Tensor want = states[number];
    EXPECT_LT(((got.view_as(want) - want).norm() / want.norm()).item<double>(), 5e-6) << number;
  };
  std::string lines;
  for (const std::string& prompt : prompts) {
    lines += prompt + "\n";
  }
  write_text(folder() / "prompts.txt", lines);
  run_well(joined({"data", "encode-texts", recipe().string(), "run.dir=unused", "--text-encoder",
                   kPipeline.string(), "--captions-file", path("prompts.txt"), "--out",
                   path("texts.safetensors"), "--precision", "fp32", "--dtype", "fp32"},
                  online()));
  const data::TextFile file(path("texts.safetensors"));
  ASSERT_EQ(file.num_texts(), std::ssize(prompts));
  for (int64_t i = 0; i < file.num_texts(); ++i) {
    data::Text text;
    file.read(i, text);
    ASSERT_EQ(text.length, kTokens);
    expect_states(at::tensor(text.tokens), i);
  }
  const inference::Prompts of_run = inference::prompts_of_encoder(
      prompts, load_config<inference::ModelRecipe>(recipe().string(), online()), at::kCPU);
  for (int64_t i = 0; i < std::ssize(prompts); ++i) {
    const data::Text& text = of_run.all[static_cast<size_t>(i)].text;
    ASSERT_EQ(text.length, kTokens);
    expect_states(at::tensor(text.tokens), i);
  }
  train_well(run_dir("run"), online({"train.steps=1"}));
  expect_states(null_text(run_dir("run") / "checkpoints/step-1"), std::ssize(prompts));
}

TEST_F(StableDiffusionTest, WithoutAnEncoderNullCaptionsAreZerosAndTheLogSaysSo) {
  run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out", path("cache"),
                   "--dtype", "fp32"},
                  online()));
  const Outcome outcome = train(run_dir("run"), cached({R"(text.encoder="")", "train.steps=1"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("read zeros, since there is no text.encoder"));
  EXPECT_FALSE(null_text(run_dir("run") / "checkpoints/step-1").any().item<bool>());
  const Outcome with = train(run_dir("with"), cached({"train.steps=1"}));
  EXPECT_THAT(with.err, AllOf(HasSubstr("77 states of an empty caption"), Not(HasSubstr("zeros"))));
}

TEST_F(StableDiffusionTest, SixStepsEqualThreeAndThree) {
  for (const auto& [name, own] :
       {std::pair{"all", Arguments{"ema.decays=[0.9]"}}, std::pair{"lora", kLora},
        std::pair{"nf4", joined(kLora, {"finetune.frozen_weights=nf4"})},
        std::pair{"lokr",
                  joined(kLokr, {"objective.noise_offset=0.1", "objective.pyramid_noise=0.3"})},
        std::pair{"prior", prior()}}) {
    SCOPED_TRACE(name);
    const auto with = [&, &overrides = own](const Arguments& more) {
      return tuned(joined(overrides, more));
    };
    const fs::path whole = run_dir(std::string(name) + "-whole");
    const fs::path parts = run_dir(std::string(name) + "-parts");
    train_well(whole, with({}));
    train_well(parts, with({"train.steps=3"}));
    train_well(parts, with({"--resume", "auto"}));
    expect_same_state(whole / "checkpoints/step-6", parts / "checkpoints/step-6");
    expect_same_log(whole, parts, 6);
  }
}

TEST_F(StableDiffusionTest, TwoRanksLearnAsOne) {
  const Arguments own =
      joined(joined(prior(), kLokr), {"objective.noise_offset=0.1", "objective.pyramid_noise=0.3"});
  train_well(run_dir("one"), tuned(own));
  run_well(joined(train_command(run_dir("two"), tuned(joined(own, {"parallel.plugin=zero3"}))),
                  {"--ranks", "2"}));
  const std::vector<LogLine> one = read_log(run_dir("one"));
  const std::vector<LogLine> two = read_log(run_dir("two"));
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double loss = one[i].at("loss");
    EXPECT_NEAR(two[i].at("loss"), loss, 1e-5 * loss) << i;
  }
  EXPECT_TRUE(at::equal(null_text(run_dir("one") / "checkpoints/step-6"),
                        null_text(run_dir("two") / "checkpoints/step-6")));
}

TEST_F(StableDiffusionTest, PicturesOfAClassComeFromAFolderOfSamples) {
  const Outcome outcome = train(run_dir("run"), tuned(joined(prior(), {"train.steps=1"})));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("a step also takes 4 of 5 prior_data"));  // not the grid
  Arguments nowhere = prior();
  nowhere.emplace_back("prior_data.path=[" + path("nothing") + "]");
  const Outcome refused = train(run_dir("refused"), tuned(nowhere));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("nothing does not exist"),
                                 HasSubstr("--prompt \"a picture\" --count 200 --out")));
}

// At first it is the frozen one: the losses of the first step are the same.
TEST_F(StableDiffusionTest, ClipLearnsAlongAtARateOfItsOwn) {
  const Arguments along = {"text.train=true", "lr.factors=[\"text_encoder.*=0.5\"]"};
  train_well(run_dir("frozen"), tuned());
  train_well(run_dir("whole"), tuned(along));
  const std::vector<LogLine> frozen = read_log(run_dir("frozen"));
  const std::vector<LogLine> whole = read_log(run_dir("whole"));
  const double first = frozen[0].at("loss");
  EXPECT_NEAR(whole[0].at("loss"), first, 1e-5 * first);
  const double last = frozen[5].at("loss");
  EXPECT_GT(std::abs(whole[5].at("loss").get<double>() - last), 1e-5 * first);
  train_well(run_dir("parts"), tuned(joined(along, {"train.steps=3"})));
  train_well(run_dir("parts"), tuned(joined(along, {"--resume", "auto"})));
  expect_same_state(run_dir("whole") / "checkpoints/step-6",
                    run_dir("parts") / "checkpoints/step-6");
  // In a pipeline of diffusers both are what the run draws with.
  run_well({"convert", run_dir("whole").string(), "--to", path("converted")});
  fs::copy(kPipeline, folder() / "pipeline", fs::copy_options::recursive);
  for (const std::string part : {"unet", "text_encoder"}) {
    fs::remove_all(folder() / "pipeline" / part);
    fs::copy(folder() / "converted" / part, folder() / "pipeline" / part,
             fs::copy_options::recursive);
  }
  expect_close(drawn({"--run", run_dir("whole").string()}, "by-run"),
               drawn(joined({"--model", path("pipeline")}, kSampler), "by-pipeline"));
}

// Of the U-Net and of CLIP: a pipeline draws with them what the run does, in every form of
// adapters.
TEST_F(StableDiffusionTest, ClipLearnsByUpdates) {
  const Arguments own = {
      "text.train=true",
      "finetune.lora.targets=[\"*.to_q\", \"text_encoder.*.q_proj\", \"text_encoder.*.fc1\"]",
      "finetune.lora.rank=2", "lr.value=2.0e-2"};
  train_well(run_dir("whole"), tuned(joined(own, {"checkpoint.export=true"})));
  train_well(run_dir("parts"), tuned(joined(own, {"train.steps=3"})));
  train_well(run_dir("parts"), tuned(joined(own, {"--resume", "auto"})));
  expect_same_state(run_dir("whole") / "checkpoints/step-6",
                    run_dir("parts") / "checkpoints/step-6");
  const std::string run = run_dir("whole").string();
  run_well({"convert", run, "--adapter", "diffusers", "--to", path("theirs")});
  run_well({"convert", run, "--adapter", "kohya", "--to", path("kohya.safetensors")});
  const auto by_run = drawn({"--run", run}, "by-run");
  const Arguments pipeline = joined({"--model", kPipeline.string()}, kSampler);
  int number = 0;
  for (const std::string& adapter : {run + "/adapter", path("theirs"), path("kohya.safetensors")}) {
    expect_close(by_run, drawn(joined(pipeline, {"--lora", adapter}),
                               "by-adapter-" + std::to_string(number++)));
  }
  // The U-Net's alone draw something else.
  const auto file = io::SafetensorsFile::open(folder() / "kohya.safetensors");
  std::vector<io::SafetensorsTensor> of_unet = file.tensors();
  const size_t all = of_unet.size();
  std::erase_if(
      of_unet, [](const io::SafetensorsTensor& each) { return each.name.starts_with("lora_te_"); });
  EXPECT_EQ(all - of_unet.size(), 2 * 2 * 3U) << "two linears of two blocks";
  io::write_safetensors(folder() / "unet.safetensors", of_unet, {});
  const auto without = drawn(joined(pipeline, {"--lora", path("unet.safetensors")}), "by-unet");
  EXPECT_GT(difference_of(by_run[0], without[0]).most, 1);
}

// What is learned is a row behind CLIP's table, and a file of it is all that a pipeline needs.
TEST_F(StableDiffusionTest, ANewWordIsLearnedAlone) {
  const Arguments own = {"text.train=true",
                         "text.new_tokens=[\"<thing>=red circle\"]",
                         "finetune.train=[\"text_encoder.new_tokens\"]",
                         "data.path=[" + path("class") + "]",
                         "data.caption=a <thing>",
                         "lr.value=1.0e-1",
                         "checkpoint.export=true"};
  (void)prior();
  train_well(run_dir("whole"), tuned(own));
  train_well(run_dir("parts"), tuned(joined(own, {"train.steps=3"})));
  train_well(run_dir("parts"), tuned(joined(own, {"--resume", "auto"})));
  expect_same_state(run_dir("whole") / "checkpoints/step-6",
                    run_dir("parts") / "checkpoints/step-6");
  const auto trained = checkpoint::WeightsFile::open(run_dir("whole") / "model.safetensors");
  const auto base =
      checkpoint::WeightsFile::open(kPipeline / "unet/diffusion_pytorch_model.safetensors");
  const std::string to_q = "mid_block.attentions.0.transformer_blocks.0.attn2.to_q.weight";
  EXPECT_TRUE(at::equal(trained.read(to_q), base.read(to_q).to(at::kFloat)));
  const auto learned =
      checkpoint::WeightsFile::open(run_dir("whole") / "learned_embeds.safetensors");
  ASSERT_EQ(learned.names(), (std::vector<std::string>{"<thing>"}));
  const at::Tensor row = learned.read("<thing>");
  EXPECT_TRUE(at::equal(row, trained.read("text_encoder.new_tokens")[0]));
  const Arguments prompts = {"sample",    "--prompt", "a <thing>", "a red <thing>",
                             "--seed",    "3",        "--device",  "cpu",
                             "--threads", "1",        "--steps",   "4"};
  const auto draw = [&](const Arguments& whose, const std::string& name) {
    run_well(joined(joined(prompts, {"--out", path(name)}), whose));
    return std::vector{read_image(folder() / name / "image-00000.png"),
                       read_image(folder() / name / "image-00001.png")};
  };
  const auto by_run = draw({"--run", run_dir("whole").string()}, "by-run");
  const Arguments pipeline = joined({"--model", kPipeline.string()}, kSampler);
  const Arguments with =
      joined(pipeline, {"--embedding", (run_dir("whole") / "learned_embeds.safetensors").string()});
  expect_close(by_run, draw(with, "by-pipeline"));
  EXPECT_GT(difference_of(by_run[0], draw(pipeline, "without")[0]).most, 1);
}

// A run draws what its U-Net draws in the place of the pipeline's, whose negative caption is empty.
TEST_F(StableDiffusionTest, ARunDrawsAsThePipelineWithItsUnet) {
  train_well(run_dir("run"), tuned({"sample.every=6", "sample.count=2"}));
  EXPECT_TRUE(fs::exists(run_dir("run") / "samples/step-6.png"));
  const auto by_run = drawn({"--run", run_dir("run").string()}, "by-run");
  run_well({"convert", run_dir("run").string(), "--to", path("converted")});
  EXPECT_TRUE(fs::exists(folder() / "converted/unet/kinora.safetensors"));
  fs::copy(kPipeline, folder() / "pipeline", fs::copy_options::recursive);
  fs::remove_all(folder() / "pipeline/unet");
  fs::copy(folder() / "converted/unet", folder() / "pipeline/unet", fs::copy_options::recursive);
  const auto by_pipeline = drawn(joined({"--model", path("pipeline")}, kSampler), "by-pipeline");
  expect_close(by_run, by_pipeline);
  const auto by_base = drawn(joined({"--model", kPipeline.string()}, kSampler), "by-base");
  EXPECT_GT(difference_of(by_run[0], by_base[0]).most, 1);
}

TEST_F(StableDiffusionTest, AnAdapterIsTheSameEverywhere) {
  train_well(run_dir("lora"), tuned(joined(kLora, {"checkpoint.export=true"})));
  const std::string run = run_dir("lora").string();
  const auto by_run = drawn({"--run", run}, "by-run");
  const auto with = [&](const std::string& adapter, const std::string& name) {
    return drawn(joined({"--model", kPipeline.string(), "--lora", adapter}, kSampler), name);
  };
  run_well({"convert", run, "--adapter", "diffusers", "--to", path("theirs")});
  const auto by_adapter = with((run_dir("lora") / "adapter").string(), "by-adapter");
  expect_close(by_run, by_adapter);
  expect_close(by_adapter, with(path("theirs"), "by-theirs"));
  // As StableDiffusionPipeline.save_lora_weights() names them.
  const auto own = io::SafetensorsFile::open(folder() / "theirs/adapter_model.safetensors");
  std::vector<io::SafetensorsTensor> tensors = own.tensors();
  for (io::SafetensorsTensor& tensor : tensors) {
    tensor.name = "unet." + tensor.name.substr(std::string("base_model.model.").size());
  }
  fs::create_directories(folder() / "saved");
  io::write_safetensors(folder() / "saved/pytorch_lora_weights.safetensors", tensors,
                        {{"lora_adapter_metadata",
                          R"({"unet.r": 2, "unet.lora_alpha": 8.0, "unet.use_rslora": false})"}});
  expect_close(by_adapter, with(path("saved"), "by-saved"));
  const auto by_base = drawn(joined({"--model", kPipeline.string()}, kSampler), "by-base");
  EXPECT_GT(difference_of(by_adapter[0], by_base[0]).most, 1);
  run_well({"convert", (kPipeline / "unet").string(), "--lora", path("theirs"), "--to",
            path("merged.safetensors")});
  const auto merged = checkpoint::WeightsFile::open(folder() / "merged.safetensors");
  const auto exported = checkpoint::WeightsFile::open(run_dir("lora") / "model.safetensors");
  const std::string to_q = "mid_block.attentions.0.transformer_blocks.0.attn2.to_q.weight";
  EXPECT_TRUE(at::equal(merged.read(to_q), exported.read(to_q)));
}

/// As diffusers' pipelines drew it from pictures (tools/reference/make_picture_fixtures.py).
TEST_F(StableDiffusionTest, DrawsFromPicturesAsDiffusers) {
  const fs::path pictures = source_path("tests/inference/data/sd_pictures");
  const auto file = [&](const char* name) { return (pictures / name).string(); };
  const auto drawn = checkpoint::WeightsFile::open(kPipeline / "drawn.safetensors");
  const auto prompts =
      nlohmann::json::parse(drawn.metadata("prompts")).get<std::vector<std::string>>();
  fs::copy(kPipeline, folder() / "edit", fs::copy_options::recursive);
  fs::remove_all(folder() / "edit/unet");
  fs::copy(pictures / "edit", folder() / "edit/unet", fs::copy_options::recursive);
  auto index = nlohmann::json::parse(read_text(folder() / "edit/model_index.json"));
  index["_class_name"] = "StableDiffusionInstructPix2PixPipeline";
  write_text(folder() / "edit/model_index.json", index.dump());
  const std::string sd1 = kPipeline.string();
  const std::vector<std::pair<std::string, Arguments>> cases = {
      {"repaint_part",
       {"--model", sd1, "--image", file("picture.png"), "--mask", file("mask.png"), "--strength",
        "0.6"}},
      {"edit", {"--model", path("edit"), "--image", file("picture.png")}},
      {"controls",
       {"--model", sd1, "--controlnet", file("controlnet"), file("controlnet_1"), "--control",
        file("control.png"), file("control_1.png"), "--control-scale", "1", "0.5"}}};
  const auto theirs = checkpoint::WeightsFile::open(pictures / "drawn.safetensors");
  for (const auto& [name, own] : cases) {
    SCOPED_TRACE(name);
    run_well(joined(joined({"sample", "--prompt", prompts[0], "--seed", "5", "--steps", "4",
                            "--device", "cpu", "--threads", "1", "--out", path(name)},
                           kSampler),
                    own));
    const io::Image image = read_image(folder() / name / "image-00000.png");
    const at::Tensor got = at::tensor(image.pixels, at::kByte).view({64, 64, 3}).permute({2, 0, 1});
    const at::Tensor want = theirs.read("pictures." + name)[0].to(at::kFloat);
    EXPECT_LE((got.to(at::kFloat) / 255.0 - want).abs().max().item<double>(), 1.0 / 255.0);
  }
  // What does not fit is named before anything is read that takes long.
  const Outcome without = run_kinora(
      {"sample", "--prompt", "a", "--model", path("edit"), "--out", path("none")}, folder());
  EXPECT_THAT(without.err, HasSubstr("changes a given picture. Hint: --image FILE"));
  const Outcome other =
      run_kinora({"sample", "--prompt", "a", "--model", sd1, "--image", file("picture.png"),
                  "--mask", path("photos/0.png"), "--out", path("none")},
                 folder());
  EXPECT_THAT(other.err, HasSubstr("photos/0.png must be grey"));
}

// Each sample is shown its own picture.
TEST_F(StableDiffusionTest, DrawsWithAnIpAdapterAsDiffusers) {
  const fs::path data = source_path("tests/inference/data");
  const auto file = [&](const char* name) { return (data / name).string(); };
  const auto drawn = checkpoint::WeightsFile::open(kPipeline / "drawn.safetensors");
  const auto prompts =
      nlohmann::json::parse(drawn.metadata("prompts")).get<std::vector<std::string>>();
  const Arguments adapter = {"--ip-adapter", file("ip_adapter/sd1.bin"),
                             "--ip-image",   file("sd_pictures/control.png"),
                             "--ip-image",   file("sd_pictures/control_1.png")};
  const auto draw = [&](const Arguments& own, const std::string& out) {
    run_well(joined({"sample", "--out", path(out), "--device", "cpu", "--threads", "1"}, own));
    const io::Image image = read_image(folder() / out / "image-00001.png");
    return at::tensor(image.pixels, at::kByte).view({64, 64, 3}).permute({2, 0, 1});
  };
  const at::Tensor got = draw(joined({"--model", kPipeline.string(), "--prompt", prompts[0],
                                      "--prompt", prompts[1], "--seed", "5", "--steps", "4",
                                      "--ip-scale", "0.6", "--set", "autoencoder.precision=fp32"},
                                     adapter),
                              "adapted");
  const at::Tensor want = checkpoint::WeightsFile::open(data / "ip_adapter/expected.safetensors")
                              .read("sd1.pictures")[0]
                              .to(at::kFloat);
  EXPECT_LE((got.to(at::kFloat) / 255.0 - want).abs().max().item<double>(), 1.0 / 255.0);
  EXPECT_TRUE(got.equal(draw({"--like", path("adapted/image-00001.png")}, "again")));
  const Outcome without =
      run_kinora({"sample", "--prompt", "a", "--model", kPipeline.string(), "--ip-adapter",
                  file("ip_adapter/sd1.bin"), "--out", path("none")},
                 folder());
  EXPECT_THAT(without.err, HasSubstr("--ip-adapter wants a picture. Hint: --ip-image FILE"));
  const Outcome alone = run_kinora({"sample", "--prompt", "a", "--model", kPipeline.string(),
                                    "--ip-scale", "0.5", "--out", path("none")},
                                   folder());
  EXPECT_THAT(alone.err, HasSubstr("--ip-scale is of --ip-adapter, and there is none"));
}

TEST_F(StableDiffusionTest, SaysWhatItDrawsWith) {
  const Outcome outcome =
      run_kinora({"sample", "--prompt", "a", "--model", kPipeline.string(), "--height", "32",
                  "--width", "64", "--steps", "2", "--guidance", "3", "--out", path("drawn"),
                  "--device", "cpu", "--threads", "1"},
                 folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("pictures of 32 x 64 pixels"), HasSubstr("2 steps, guidance 3.0")));
}

// A white mask changes nothing, a black one leaves no loss, and the others lie between.
TEST_F(StableDiffusionTest, MasksWeighTheLossOfPlaces) {
  const auto losses = [&](const std::string& name, uint8_t left, uint8_t right) {
    for (int i = 0; i < 12; ++i) {
      io::Image mask;
      io::set_size(mask, 64, 64);
      for (size_t p = 0; p < mask.pixels.size(); ++p) {
        mask.pixels[p] = p / 3 % 64 < 32 ? left : right;
      }
      io::write_png(folder() / ("photos/" + std::to_string(i) + ".mask.png"), mask);
    }
    train_well(run_dir(name), tuned({"data.mask=true", "train.steps=1"}));
    return read_log(run_dir(name))[0].at("loss").get<double>();
  };
  train_well(run_dir("without"), tuned({"train.steps=1"}));
  const double whole = read_log(run_dir("without"))[0].at("loss");
  EXPECT_NEAR(losses("white", 255, 255), whole, 1e-6 * whole);
  const double left = losses("left", 255, 0);
  const double right = losses("right", 0, 255);
  EXPECT_NEAR(left + right, whole, 1e-5 * whole);
  EXPECT_GT(left, 0.1 * whole);
  EXPECT_NEAR(losses("grey", 51, 51), 0.2 * whole, 1e-5 * whole);
}

}  // namespace stable_diffusion_test
}  // namespace kinora::apps
