// What kinora sample begins with, keeps in its files and draws again from, with the tiny pipeline
// of tools/reference/make_pipeline_fixtures.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/io/picture_texts.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/autoencoders/autoencoder_tiny.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

namespace kinora::apps {
namespace sample_again_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const fs::path kAlpha = source_path("tests/inference/data/pixart_alpha");

class SampleAgainTest : public RunTest {
 protected:
  [[nodiscard]] Outcome sample(const std::string& out, const Arguments& more) const {
    return run_kinora(joined({"sample", "--out", path(out).string()}, more), folder());
  }
  /// With the pipeline, on a CPU, in four steps.
  [[nodiscard]] Outcome draw(const std::string& out, const Arguments& more) const {
    return sample(out,
                  joined({"--model", kAlpha.string(), "--steps", "4", "--device", "cpu"}, more));
  }
  void draw_well(const std::string& out, const Arguments& more) const {
    const Outcome outcome = draw(out, more);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  [[nodiscard]] fs::path path(const std::string& name) const { return folder() / name; }
  [[nodiscard]] std::vector<uint8_t> pixels(const std::string& name) const {
    return io::decode_image(bytes(name), name).pixels;
  }
  [[nodiscard]] std::vector<std::byte> bytes(const std::string& name) const {
    return io::read_file(path(name), 1 << 24);
  }
  /// A preview of a drawing of many steps, which is then stopped.
  [[nodiscard]] io::Image preview_of(const Arguments& more) const {
    Program program(
        kinora_program(),
        joined({"sample", "--model", kAlpha.string(), "--prompt", "a", "--steps", "2000",
                "--sampler", "ddim", "--set", "sample.spacing=dit", "objective.timesteps=5000",
                "--device", "cpu", "--out", path("out").string(), "--preview", "1"},
               more),
        folder());
    io::Image preview;
    while (program.is_running() && preview.pixels.empty()) {
      if (fs::exists(path("out/preview.png"))) {
        preview = io::decode_image(bytes("out/preview.png"), "preview");  // whole once it is there
        program.send(SIGINT);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const Outcome outcome = program.wait();
    EXPECT_FALSE(preview.pixels.empty()) << outcome.err;
    EXPECT_FALSE(fs::exists(path("out/preview.png")));
    return preview;
  }
  /// What the file keeps under `key`.
  [[nodiscard]] std::string text(const std::string& name, const std::string& key) const {
    for (const io::PictureText& text : io::read_texts(bytes(name), name)) {
      if (text.key == key) {
        return text.value;
      }
    }
    return "nothing";
  }
};

constexpr int kGrey = 191;  // of 0.5

/// Both files of a TAESD as it is published, of four channels, which shows all latents in one grey.
/// Returns its decoder.
fs::path write_grey_taesd(const fs::path& folder) {
  models::AutoencoderTiny model({.channels = 4});
  for (const auto& [half, first] : {std::pair{"encoder", 0}, std::pair{"decoder", 1}}) {
    models::NamedTensors published;
    for (const auto& [path, value] : models::formula_weights(model)) {
      // decoder.layers.2.conv.0.weight is 3.conv.0.weight there.
      const std::string prefix = std::string(half) + ".layers.";
      if (path.starts_with(prefix)) {
        const size_t dot = path.find('.', prefix.size());
        const int number = std::stoi(path.substr(prefix.size(), dot - prefix.size()));
        published[std::to_string(number + first) + path.substr(dot)] = value;
      }
    }
    if (first == 1) {  // the last convolution, to three channels: 2 x 0.75 - 1 = 0.5
      published.at("19.weight").zero_();
      published.at("19.bias").fill_(0.75);
    }
    models::write_tensors(folder / ("taesd_" + std::string(half) + ".safetensors"), published);
  }
  return folder / "taesd_decoder.safetensors";
}

const Arguments kThree = {
    "--prompt", "a (red:1.4) circle", "two stars", "a \xC3\xA9toile", "--count", "5", "--seed",
    "3",        "--prompt-weights",   "a1111"};

TEST_F(SampleAgainTest, APictureIsDrawnAgainToTheBit) {
  draw_well("first", kThree);
  const std::string file = path("first/image-00003.png").string();
  const Outcome again = sample("again", {"--like", file});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(pixels("again/image-00003.png"), pixels("first/image-00003.png"));
  EXPECT_EQ(bytes("again/image-00003.png"), bytes("first/image-00003.png"));
  EXPECT_FALSE(fs::exists(path("again/image-00002.png")));  // the others were not asked for
  // Options beside it count instead.
  ASSERT_EQ(sample("other", {"--like", file, "--seed", "4"}).exit_code, 0);
  EXPECT_NE(pixels("other/image-00003.png"), pixels("first/image-00003.png"));
  ASSERT_EQ(sample("word", {"--like", file, "--prompt", "a blue square"}).exit_code, 0);
  EXPECT_THAT(text("word/image-00000.png", "parameters"),
              AllOf(HasSubstr("a blue square"), HasSubstr("Seed: 3")));
}

TEST_F(SampleAgainTest, FilesSayWhatTheyWereDrawnFrom) {
  const std::string encoder = (kAlpha / "text_encoder").string();
  draw_well("out", joined(kThree,
                          {"--negative", "blurry", "--format", "webp", "--text-encoder", encoder}));
  const std::string words = text("out/image-00003.webp", "parameters");
  EXPECT_THAT(words,
              AllOf(HasSubstr("a (red:1.4) circle\nNegative prompt: blurry\n"),
                    HasSubstr("Steps: 4, Sampler: dpm++, CFG scale: 4.5, Seed: 3, Sample: 3, "
                              "Size: 64x64"),
                    HasSubstr("Model hash: checksum ")));
  const auto json = nlohmann::json::parse(text("out/image-00002.webp", "kinora"));
  EXPECT_EQ(json.at("prompt"), "a \xC3\xA9toile");
  EXPECT_EQ(json.at("options").at("--only"), nlohmann::json({"2"}));
  EXPECT_FALSE(json.at("options").contains("--out"));
  // As they stood on the command line.
  EXPECT_EQ(json.at("options").at("--format"), nlohmann::json({"webp"}));
  EXPECT_EQ(json.at("options").at("--device"), nlohmann::json({"cpu"}));
  EXPECT_EQ(json.at("options").at("--text-encoder"), nlohmann::json({encoder}));
}

TEST_F(SampleAgainTest, LongListsAreLeftOut) {
  {
    std::ofstream captions(path("captions.txt"));
    for (int i = 0; i < 300; ++i) {
      captions << "a circle " << std::string(1000, 'x') << i << '\n';
    }
  }
  draw_well("out",
            {"--captions-file", path("captions.txt").string(), "--only", "1", "--batch", "1"});
  const auto json = nlohmann::json::parse(text("out/image-00001.png", "kinora"));
  EXPECT_EQ(json.at("options").at("--captions").size(), 1);
  ASSERT_EQ(sample("again", {"--like", path("out/image-00001.png").string()}).exit_code, 0);
  EXPECT_TRUE(fs::exists(path("again/image-00001.png")));
}

TEST_F(SampleAgainTest, WhatAFileSaysIsNotTrusted) {
  draw_well("first", {"--prompt", "a"});
  const auto with = [&](const nlohmann::json& changes) {
    auto json = nlohmann::json::parse(text("first/image-00000.png", "kinora"));
    json.merge_patch(changes);
    const io::PictureText changed{.key = "kinora", .value = json.dump()};
    const auto png = io::encode_png(io::decode_image(bytes("first/image-00000.png"), "png"));
    io::write_file_atomic(path("changed.png"), io::with_png_texts(png, std::span(&changed, 1)));
    return sample("again", {"--like", path("changed.png").string(), "--overwrite"});
  };
  // Only options that decide the picture are taken.
  const Outcome other =
      with({{"options", {{"--ranks", {"64"}}, {"--out", {path("evil").string()}}}}});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_FALSE(fs::exists(path("evil")));
  EXPECT_THAT(with({{"options", {{"--steps", {"many"}}}}}).err, HasSubstr("many"));
  EXPECT_THAT(with({{"options", {{"--steps", 4}}}}).err, HasSubstr("is damaged"));
  EXPECT_THAT(with({{"seed", nullptr}}).err, HasSubstr("is damaged"));
  EXPECT_THAT(with({{"options", {{"--checkpoint", {"nowhere"}}}}}).err,
              AllOf(HasSubstr("was drawn by \"nowhere\""), HasSubstr("--model PATH")));
  EXPECT_THAT(with({{"weights", "checksum 0"}}).err, HasSubstr("are not those that"));
  EXPECT_THAT(sample("again", {"--like", path("first/grid.png").string()}).err,
              HasSubstr("does not say what it was drawn from"));
  EXPECT_THAT(sample("again", {"--like", path("none.png").string()}).err, HasSubstr("none.png"));
}

TEST_F(SampleAgainTest, LatentsAreSavedAndDecoded) {
  draw_well("first", {"--prompt", "a", "b", "--save-latents"});
  const std::string latents = path("first/latents.safetensors").string();
  draw_well("decoded", {"--latents", latents});
  for (const char* name : {"/image-00000.png", "/image-00001.png"}) {
    EXPECT_EQ(pixels(std::string("decoded") + name), pixels(std::string("first") + name));
  }
  // Drawn on: a little is another picture, near the first.
  draw_well("on", {"--latents", latents, "--strength", "0.25", "--prompt", "a", "b"});
  EXPECT_NE(pixels("on/image-00000.png"), pixels("first/image-00000.png"));
}

TEST_F(SampleAgainTest, NoiseOfAFileIsThatOfTheSeed) {
  const auto drawn = checkpoint::WeightsFile::open(kAlpha / "drawn.safetensors");
  const at::Tensor noise = drawn.read("noise").contiguous();
  const io::SafetensorsTensor tensor{.name = "noise",
                                     .dtype = DType::kF32,
                                     .shape = noise.sizes().vec(),
                                     .data = device::bytes_of(noise)};
  io::write_safetensors(path("noise.safetensors"), std::span(&tensor, 1));
  draw_well("of_seed", {"--prompt", "a", "--seed", drawn.metadata("seed")});
  draw_well("of_file", {"--prompt", "a", "--noise", path("noise.safetensors").string()});
  draw_well("other", {"--prompt", "a"});
  const auto of_seed = pixels("of_seed/image-00000.png");
  const auto of_file = pixels("of_file/image-00000.png");
  for (size_t i = 0; i < of_seed.size(); ++i) {
    ASSERT_LE(std::abs(of_seed[i] - of_file[i]), 1);  // numpy's noise, to fp32's rounding
  }
  EXPECT_NE(pixels("other/image-00000.png"), of_file);
}

TEST_F(SampleAgainTest, PicturesBeginWithOthers) {
  draw_well("first", {"--prompt", "a", "--seed", "9"});
  const std::string file = path("first/image-00000.png").string();
  draw_well("little", {"--prompt", "b", "--init", file, "--strength", "0.25"});
  draw_well("much", {"--prompt", "b", "--init", file, "--strength", "1"});
  const auto distance = [&](const std::string& name) {
    const auto from = pixels("first/image-00000.png");
    const auto to = pixels(name + "/image-00000.png");
    double sum = 0.0;
    for (size_t i = 0; i < from.size(); ++i) {
      sum += std::abs(from[i] - to[i]);
    }
    return sum;
  };
  EXPECT_GT(distance("little"), 0.0);
  EXPECT_NE(pixels("little/image-00000.png"), pixels("much/image-00000.png"));
  const Outcome again = sample("again", {"--like", path("little/image-00000.png").string()});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(pixels("again/image-00000.png"), pixels("little/image-00000.png"));
}

TEST_F(SampleAgainTest, PreviewsAreThereWhileItDraws) {
  EXPECT_FALSE(preview_of({}).pixels.empty());
}

TEST_F(SampleAgainTest, ASmallAutoencoderShowsPreviews) {
  const std::string decoder = write_grey_taesd(folder()).string();
  const io::Image preview = preview_of({"--preview-decoder", decoder});
  // One picture with a border. What is drawn does not change.
  std::map<uint8_t, int64_t> counts;
  for (const uint8_t value : preview.pixels) {
    ++counts[value];
  }
  EXPECT_EQ(counts[kGrey], 64 * 64 * 3);
  draw_well("with", {"--prompt", "a", "--preview", "1", "--preview-decoder", decoder});
  draw_well("without", {"--prompt", "a"});
  EXPECT_EQ(pixels("with/image-00000.png"), pixels("without/image-00000.png"));

  write_text(path("taesd_decoder.safetensors"), "none");
  const Outcome damaged =
      draw("damaged", {"--prompt", "a", "--preview", "1", "--preview-decoder", decoder});
  EXPECT_EQ(damaged.exit_code, kIo);
  EXPECT_THAT(damaged.err, HasSubstr("taesd_decoder.safetensors"));
}

TEST_F(SampleAgainTest, WhatDoesNotFitIsRefused) {
  draw_well("first", {"--prompt", "a", "--save-latents"});
  const std::string picture = path("first/image-00000.png").string();
  const std::string latents = path("first/latents.safetensors").string();
  const auto refusal = [&](const Arguments& more) {
    const Outcome outcome = draw("out", joined({"--prompt", "a"}, more));
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--init", picture, "--latents", latents}), HasSubstr("only one of"));
  EXPECT_THAT(refusal({"--strength", "0.5"}), HasSubstr("there is none"));
  EXPECT_THAT(refusal({"--init", picture, "--strength", "0.1"}), HasSubstr("at least one of 4"));
  EXPECT_THAT(refusal({"--init", picture, "--strength", "2"}), HasSubstr("--strength"));
  EXPECT_THAT(refusal({"--init", "nowhere.png"}), HasSubstr("does not exist"));
  EXPECT_THAT(refusal({"--noise", latents}), HasSubstr("has no tensor noise"));
  EXPECT_THAT(refusal({"--latents", (kAlpha / "drawn.safetensors").string(), "--set",
                       "autoencoder.path=\"\""}),
              HasSubstr("wants an autoencoder"));
  EXPECT_THAT(refusal({"--only", "1"}), HasSubstr("0 to 0, got 1"));
  EXPECT_THAT(refusal({"--only", "0", "--save-latents"}), HasSubstr("not with"));
  EXPECT_THAT(refusal({"--preview-decoder", "x"}), HasSubstr("--preview"));
  EXPECT_THAT(refusal({"--preview", "1", "--set", "autoencoder.path=\"\""}),
              HasSubstr("--preview-decoder FOLDER"));
  EXPECT_THAT(refusal({"--init", picture, "--set", "autoencoder.path=\"\""}),
              HasSubstr("--init wants an autoencoder"));
  EXPECT_THAT(refusal({"--prompt-weights", "others"}), HasSubstr("a1111"));
}

TEST_F(SampleAgainTest, VerboseSaysWhatIsEncoded) {
  const Outcome outcome = draw("out", joined(kThree, {"--verbose"}));
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("\"a red circle\", 5 of 120 tokens, 0 cut off"), HasSubstr("x1.4[")));
  EXPECT_THAT(draw("quiet", kThree).err, Not(HasSubstr("x1.4[")));
}

}  // namespace sample_again_test
}  // namespace kinora::apps
