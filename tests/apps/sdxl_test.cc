// A U-Net of SDXL trained on words, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): two CLIPs, vectors of captions, sizes of pictures.

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/safetensors.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace sdxl_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kPipeline = source_path("tests/inference/data/sdxl");

constexpr const char* kRecipe = R"(model:
  architecture: unet
  in_channels: 4
  learn_sigma: false
  text_channels: 28
  text_tokens: 77
  pooled_channels: 10
  unet: {channels: [8, 16], resnets: 1, depths: [0, 2], middle_depth: 2, heads: [2, 4], norm_groups: 4, linear_projection: true, size_channels: 4}
data: {source: captions, height: 64, width: 64, captions: random, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {betas: scaled_linear, beta_start: 0.00085, beta_end: 0.012}
train: {steps: 4, global_batch: 8, micro_batch: 4, threads: 1, device: cpu, label_dropout: 0.3}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {method: euler, steps: 4, spacing: leading, steps_offset: 1, guidance: 5.0}
)";

class SdxlTest : public RunTest {
 protected:
  SdxlTest() {
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 12; ++i) {  // of several sizes, which are cut
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
         "checkpoint.init_from=" + (kPipeline / "unet").string()},
        more);
  }
  [[nodiscard]] Arguments cached() const {
    return {"data.source=latents", "data.path=[" + path("cache") + "]", "data.text=file",
            "text.encoder=" + kPipeline.string(),
            "checkpoint.init_from=" + (kPipeline / "unet").string()};
  }
  void encode() const {
    run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out", path("cache"),
                     "--dtype", "fp32"},
                    online()));
  }
  [[nodiscard]] io::Image drawn(const Arguments& whose, const std::string& name) const {
    run_well(joined({"sample", "--prompt", "a red circle", "--seed", "3", "--device", "cpu",
                     "--threads", "1", "--steps", "4", "--out", path(name)},
                    whose));
    return read_image(folder() / name / "image-00000.png");
  }
};

void expect_same_losses(const fs::path& left, const fs::path& right) {
  const std::vector<LogLine> one = read_log(left);
  const std::vector<LogLine> two = read_log(right);
  ASSERT_EQ(one.size(), 4U);
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double loss = one[i].at("loss");
    EXPECT_NEAR(two[i].at("loss"), loss, 1e-5 * loss) << i;
  }
}

TEST_F(SdxlTest, LearnsOnLineAsFromACacheAndInParts) {
  encode();
  train_well(run_dir("online"), online());
  train_well(run_dir("cached"), cached());
  expect_same_losses(run_dir("online"), run_dir("cached"));
  train_well(run_dir("parts"), online({"train.steps=2"}));
  train_well(run_dir("parts"), online({"--resume", "auto"}));
  expect_same_state(run_dir("online") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");
}

// A cache that does not say how large its pictures were is refused; files of latents may say it.
TEST_F(SdxlTest, SizesOfPicturesMustBeKnown) {
  encode();
  fs::path samples;
  for (const auto& entry : fs::recursive_directory_iterator(folder() / "cache")) {
    samples = entry.path().filename() == "samples.safetensors" ? entry.path() : samples;
  }
  const auto file = io::SafetensorsFile::open(samples);
  std::vector<io::SafetensorsTensor> tensors = file.tensors();
  EXPECT_EQ(std::erase_if(tensors,
                          [](const io::SafetensorsTensor& tensor) {
                            return tensor.name == "heights" || tensor.name == "widths";
                          }),
            2U);
  io::write_safetensors(path("without"), tensors, file.metadata());
  fs::rename(path("without"), samples);
  const Outcome outcome = train(run_dir("run"), cached());
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("how large pictures were before they were cut"));
}

TEST_F(SdxlTest, ARunAndItsAdapterDrawAsThePipeline) {
  train_well(run_dir("run"),
             online({"finetune.lora.targets=[\"*.to_q\", \"*.to_k\", \"*.to_v\", \"*.to_out.0\"]",
                     "finetune.lora.rank=2", "checkpoint.export=true", "sample.every=4",
                     "sample.count=2"}));
  const io::Image by_run = drawn({"--run", run_dir("run").string()}, "by-run");
  const Arguments pipeline = {"--model", kPipeline.string(), "--set", "autoencoder.precision=fp32"};
  const io::Image by_adapter =
      drawn(joined(pipeline, {"--lora", (run_dir("run") / "adapter").string()}), "by-adapter");
  EXPECT_LE(difference_of(by_run, by_adapter).most, 1);
  EXPECT_GT(difference_of(by_run, drawn(pipeline, "by-base")).most, 1);
}

// It reads vectors and sizes as the U-Net does, by an embedding of its own that starts as its copy.
TEST_F(SdxlTest, AControlNetLearnsAndIsDrawnWithElsewhere) {
  for (int i = 0; i < 12; ++i) {
    write_picture(folder() / ("photos/" + std::to_string(i) + ".control.png"), i + 20,
                  64 + 10 * (i % 3), 64 + 7 * i);
  }
  write_picture(folder() / "edges.png", 30, 64, 64);
  const auto controlled = [&](const Arguments& more) {
    return online(joined(
        {"data.control=true", "model.unet.controls=1", "model.unet.control_channels=[4,4,8,8]",
         "finetune.train=[\"controlnets.*\"]", "finetune.fresh=[\"controlnets.*.controlnet_*\"]"},
        more));
  };
  train_well(run_dir("plain"), online({"train.steps=1"}));
  train_well(run_dir("whole"), controlled({"sample.every=4", "sample.count=2"}));
  EXPECT_NEAR(read_log(run_dir("whole"))[0].at("loss"), read_log(run_dir("plain"))[0].at("loss"),
              1e-6);
  train_well(run_dir("parts"), controlled({"train.steps=2"}));
  train_well(run_dir("parts"), controlled({"--resume", "auto"}));
  expect_same_state(run_dir("whole") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");
  run_well(joined(train_command(run_dir("two"), controlled({"parallel.plugin=zero3"})),
                  {"--ranks", "2"}));
  expect_same_losses(run_dir("whole"), run_dir("two"));
  run_well({"convert", run_dir("whole").string(), "--to", path("converted")});
  const auto unet = checkpoint::WeightsFile::open(kPipeline / "unet");
  const auto net = checkpoint::WeightsFile::open(folder() / "converted/controlnet");
  const std::string added = "add_embedding.linear_1.weight";
  EXPECT_GT((net.read(added) - unet.read(added).to(at::kFloat)).abs().max().item<double>(), 1e-3);
  const Arguments control = {"--control", path("edges.png")};
  const io::Image by_run = drawn(joined({"--run", run_dir("whole").string()}, control), "by-run");
  const Arguments pipeline = {"--model", kPipeline.string(), "--set", "autoencoder.precision=fp32"};
  const io::Image beside = drawn(
      joined(joined(pipeline, control), {"--controlnet", path("converted/controlnet")}), "beside");
  EXPECT_LE(difference_of(by_run, beside).most, 1);
  EXPECT_GT(difference_of(by_run, drawn(pipeline, "without")).most, 1);
}

}  // namespace sdxl_test
}  // namespace kinora::apps
