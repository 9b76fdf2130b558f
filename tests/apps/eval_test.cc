// kinora eval: figures of folders and statistics files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kinora/eval/extract.h"
#include "kinora/io/image.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/eval/clip_folder.h"
#include "tests/eval/network_files.h"
#include "tests/places.h"

namespace kinora::apps {
namespace eval_test {

using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

constexpr int kNumImages = 20;

class EvalTest : public testing::Test {
 protected:
  EvalTest() {
    eval::write_weights(folder() / "resnet.safetensors", eval::resnet_shapes());
    for (int i = 0; i < kNumImages; ++i) {
      write_noise("a/" + std::to_string(i) + ".png", 0);
      write_noise("b/" + std::to_string(i) + ".png", 40);
    }
  }

  [[nodiscard]] fs::path folder() const { return folder_.path(); }

  /// 32 x 32 pixels that the name stands for, none below `floor`.
  void write_noise(const std::string& name, int floor) const {
    const at::Tensor pixels = eval::formula_pixels(name, {32, 32, 3}).clamp_min(floor);
    io::Image image;
    io::set_size(image, 32, 32);
    std::memcpy(image.pixels.data(), pixels.const_data_ptr(), image.pixels.size());
    fs::create_directories((folder() / name).parent_path());
    io::write_png(folder() / name, image);
  }

  [[nodiscard]] Outcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), {"--device", "cpu"});
    return run_kinora(arguments, folder());
  }
  /// Of `sides` in the ResNet's features.
  [[nodiscard]] Outcome judge(std::vector<std::string> sides,
                              const std::vector<std::string>& more = {}) const {
    for (std::string& side : sides) {
      side = (folder() / side).string();
    }
    sides.insert(sides.end(), {"--features", (folder() / "resnet.safetensors").string()});
    sides.insert(sides.end(), more.begin(), more.end());
    return run(sides);
  }
  [[nodiscard]] static nlohmann::json report(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.exit_code == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  }
  static void expect_refusal(const Outcome& outcome, int code, const std::string& text) {
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(EvalTest, ComparesFolders) {
  const std::vector<std::string> metrics = {"--metrics", "frechet,is,prdc,kernel", "--json",
                                            "--batch", "3"};
  const Outcome outcome = judge({"a", "b"}, metrics);
  const nlohmann::json json = report(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("20 samples for 64 features"));
  EXPECT_EQ(json.at("num_samples"), kNumImages);
  EXPECT_THAT(json.at("network").get<std::string>(), testing::StartsWith("resnet20-cifar "));
  EXPECT_GT(json.at("frechet_distance").get<double>(), 0.0);
  EXPECT_GE(json.at("inception_style_score").get<double>(), 1.0);
  for (const char* key : {"precision", "recall", "density", "coverage", "kernel_distance"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_FALSE(json.contains("fid"));
  EXPECT_FALSE(json.contains("kid"));
  // Ranks share the work.
  std::vector<std::string> by_ranks = metrics;
  by_ranks.insert(by_ranks.end(), {"--ranks", "2"});
  const nlohmann::json shared = report(judge({"a", "b"}, by_ranks));
  EXPECT_EQ(shared.size(), json.size());
  for (const auto& [key, value] : json.items()) {
    if (value.is_number_float()) {  // ranks have fewer threads each, which round otherwise
      EXPECT_NEAR(shared.at(key).get<double>(), value.get<double>(),
                  1e-5 * std::abs(value.get<double>()))
          << key;
    } else {
      EXPECT_EQ(shared.at(key), value) << key;
    }
  }
  const nlohmann::json same = report(judge({"a", "a"}, metrics));
  EXPECT_NEAR(same.at("frechet_distance").get<double>(), 0.0,
              1e-6 * json.at("frechet_distance").get<double>());
  EXPECT_EQ(same.at("precision"), 1.0);
}

TEST_F(EvalTest, StatisticsServeAsEitherSide) {
  const double direct = report(judge({"a", "b"}, {"--json"})).at("frechet_distance");
  const double shared =
      report(judge({"a", "b"}, {"--json", "--ranks", "2", "--batch", "6"})).at("frechet_distance");
  EXPECT_NEAR(shared, direct, 1e-5 * direct);
  const fs::path stats = folder() / "b.npz";
  const Outcome written = judge({"b"}, {"--out", stats.string()});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("statistics: " + stats.string()));
  const nlohmann::json by_file = report(judge({"a", "b.npz"}, {"--json"}));
  EXPECT_EQ(by_file.at("frechet_distance"), direct);
  EXPECT_EQ(by_file.at("num_reference"), kNumImages);
  ASSERT_EQ(judge({"a"}, {"--out", (folder() / "a.npz").string()}).exit_code, 0);
  const Outcome both =
      run({(folder() / "a.npz").string(), (folder() / "b.npz").string(), "--json"});
  EXPECT_EQ(report(both).at("frechet_distance"), direct);  // without any network

  expect_refusal(judge({"a", "b.npz"}, {"--metrics", "prdc"}), kUsage, "holds only statistics");
  damage(stats);
  expect_refusal(judge({"a", "b.npz"}), kIo, "b.npz");
}

TEST_F(EvalTest, WhereNothingCanBeWrittenIsSaidBeforeAnythingIsRead) {
  write_text(folder() / "file", "not a folder");
  expect_refusal(
      run({"nowhere", "--features", "none", "--out", (folder() / "file/x.npz").string()}), kIo,
      "cannot make the folder");
}

TEST_F(EvalTest, StatisticsOfAnotherNetworkAreRefused) {
  ASSERT_EQ(judge({"b"}, {"--out", (folder() / "b.npz").string()}).exit_code, 0);
  const Outcome outcome = run({(folder() / "a").string(), (folder() / "b.npz").string(),
                               "--torchscript", source_path("tests/eval/data/script.pt")});
  expect_refusal(outcome, kUsage, "both sides must be of one network");
}

TEST_F(EvalTest, CountsTheClassesThatAreSeen) {
  const auto network = eval::open_network({.weights = folder() / "resnet.safetensors"}, at::kCPU);
  const eval::SampleSet set = eval::SampleSet::open(folder() / "a", {});
  const eval::FeatureTable table = eval::extract(set, *network, comm::Group(), {});
  const at::Tensor seen = table.logits.argmax(1);
  nlohmann::json labels;
  for (int64_t i = 0; i < set.size(); ++i) {
    const int64_t wrong = i < 5 ? 1 : 0;
    labels[fs::path(set.name(i)).filename()] = (seen[i].item<int64_t>() + wrong) % 10;
  }
  write_text(folder() / "labels.json", labels.dump());
  const nlohmann::json json = report(judge(
      {"a"}, {"--metrics", "classes", "--json", "--labels", (folder() / "labels.json").string()}));
  EXPECT_EQ(json.at("class_agreement"), 0.75);
  expect_refusal(judge({"a"}, {"--metrics", "classes"}), kUsage, "every sample must have a class");
}

TEST_F(EvalTest, ScoresPairs) {
  const Outcome outcome =
      run({(folder() / "a").string(), (folder() / "b").string(), "--pairs", "--json"});
  const nlohmann::json json = report(outcome);
  EXPECT_EQ(json.at("pairs"), kNumImages);
  EXPECT_GT(json.at("psnr").get<double>(), 3.0);
  EXPECT_LT(json.at("ssim").get<double>(), 1.0);
  const std::string same = (folder() / "a").string();
  EXPECT_EQ(report(run({same, same, "--pairs", "--json"})).at("psnr"), "infinite");
  EXPECT_NE(run({same, same, "--pairs"}).out.find("psnr: infinite\n"), std::string::npos);
  fs::remove(folder() / "b/3.png");
  expect_refusal(run({(folder() / "a").string(), (folder() / "b").string(), "--pairs"}), kUsage,
                 "a/3.png must have a partner");
}

TEST_F(EvalTest, ComparesClipsByTorchScript) {
  for (const char* side : {"c", "d"}) {
    for (int clip = 0; clip < 12; ++clip) {
      for (int frame = 0; frame < 3; ++frame) {
        write_noise(std::string(side) + "/clip-" + std::to_string(clip) + "/frame_000" +
                        std::to_string(frame) + ".png",
                    side[0] == 'c' ? 0 : 30);
      }
    }
  }
  const std::vector<std::string> arguments = {(folder() / "c").string(),
                                              (folder() / "d").string(),
                                              "--clips",
                                              "2",
                                              "--torchscript",
                                              source_path("tests/eval/data/script.pt"),
                                              "--json"};
  const nlohmann::json json = report(run(arguments));
  EXPECT_GT(json.at("frechet_video_distance").get<double>(), 0.0);
  EXPECT_EQ(json.at("num_samples"), 12);
}

TEST_F(EvalTest, JudgesHowClipsHoldTogetherAndMove) {
  for (int clip = 0; clip < 4; ++clip) {
    for (int frame = 0; frame < 3; ++frame) {
      write_noise("e/clip-" + std::to_string(clip) + "/frame_000" + std::to_string(frame) + ".png",
                  30);
    }
  }
  const auto data = [](const char* name) {
    return source_path(std::string("tests/eval/data/") + name);
  };
  std::vector<std::string> arguments = {(folder() / "e").string(),
                                        "--clips",
                                        "3",
                                        "--batch",
                                        "2",
                                        "--metrics",
                                        "consistency",
                                        "--torchscript",
                                        data("script.pt"),
                                        "--interpolator",
                                        data("middle.pt"),
                                        "--flow",
                                        data("flow.pt"),
                                        "--json"};
  const nlohmann::json json = report(run(arguments));
  EXPECT_EQ(json.at("num_samples"), 4);
  EXPECT_GT(json.at("frame_consistency").get<double>(), 0.9);  // noise of the same means
  EXPECT_LT(json.at("motion_smoothness").get<double>(), 0.99);
  EXPECT_EQ(json.at("dynamic_degree"), 1.0);
  arguments.insert(arguments.end(), {"--ranks", "2"});
  EXPECT_EQ(report(run(arguments)), json);
  const std::string clip = eval::write_clip_folder(folder() / "clip").string();
  const nlohmann::json by_clip = report(run({(folder() / "e").string(), "--clips", "3", "--metrics",
                                             "consistency", "--clip", clip, "--json"}));
  EXPECT_LE(by_clip.at("frame_consistency").get<double>(), 1.0);
  EXPECT_EQ(by_clip.contains("clip_score"), false);
  expect_refusal(run({(folder() / "e").string(), "--flow", data("flow.pt")}), kUsage,
                 "clips of 3 frames or more. Hint: --clips 16");
  expect_refusal(run({(folder() / "e").string(), "--clips", "2", "--flow", data("flow.pt")}),
                 kUsage, "clips of 3 frames or more");
}

TEST_F(EvalTest, ScoresPicturesByClip) {
  const std::string clip = eval::write_clip_folder(folder() / "clip").string();
  std::string lines;
  for (int i = 0; i < kNumImages; ++i) {
    lines += i % 2 == 0 ? "a red circle\n" : "two blue squares above a star\n";
  }
  write_text(folder() / "prompts.txt", lines);
  const std::vector<std::string> arguments = {
      (folder() / "a").string(),           "--clip",  clip, "--prompts",
      (folder() / "prompts.txt").string(), "--batch", "6",  "--json"};
  const nlohmann::json json = report(run(arguments));
  EXPECT_EQ(json.at("num_samples"), kNumImages);
  EXPECT_EQ(json.at("num_prompts"), 2);
  EXPECT_THAT(json.at("network").get<std::string>(), testing::StartsWith("clip "));
  for (const char* key : {"clip_score", "clip_score_of_other_prompts"}) {
    EXPECT_GE(json.at(key).get<double>(), 0.0) << key;
    EXPECT_LE(json.at(key).get<double>(), 100.0) << key;
  }
  EXPECT_LE(json.at("own_prompt_is_nearest").get<double>(), 1.0);
  std::vector<std::string> by_ranks = arguments;
  by_ranks.insert(by_ranks.end(), {"--ranks", "2"});
  EXPECT_NEAR(report(run(by_ranks)).at("clip_score").get<double>(),
              json.at("clip_score").get<double>(), 1e-4);

  const std::string a = (folder() / "a").string();
  expect_refusal(run({a, "--clip", clip}), kUsage, "there is no prompt of");
  expect_refusal(run({a, "--clip", clip, "--metrics", "is"}), kUsage, "a judge of its own");
  expect_refusal(run({a, "--clip", a, "--prompts", (folder() / "prompts.txt").string()}), kIo,
                 "preprocessor_config.json");
}

/// What a run draws for --clip is judged as what kinora sample makes of the same request.
class EvalRunTest : public RunTest {
 protected:
  EvalRunTest() : clip_(eval::write_clip_folder(folder() / "clip").string()) {
    write_text(folder() / "prompts.txt",
               "a red circle moving to the left\na blue cross moving up\na green square\n");
  }
  [[nodiscard]] Outcome eval(const std::string& samples, const Arguments& more) const {
    return run_kinora(
        joined({"eval", path(samples), "--clip", clip_, "--device", "cpu", "--json"}, more),
        folder());
  }
  /// The report without the name of what was judged.
  [[nodiscard]] nlohmann::json report(const std::string& samples, const Arguments& more) const {
    const Outcome outcome = eval(samples, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    if (outcome.exit_code != 0) {
      return {};
    }
    auto json = nlohmann::json::parse(outcome.out);
    json.erase("samples");
    return json;
  }
  void expect_same_report(const nlohmann::json& left, const nlohmann::json& right) const {
    EXPECT_EQ(left.size(), right.size());
    for (const auto& [key, value] : left.items()) {
      if (value.is_number_float()) {  // libraries round other numbers of rows otherwise
        EXPECT_NEAR(right.at(key).get<double>(), value.get<double>(), 1e-3) << key;
      } else {
        EXPECT_EQ(right.at(key), value) << key;
      }
    }
  }
  /// Of the run, in one batch and in several, and of what it draws into a folder.
  void expect_judged_as_drawn(const Arguments& of_folder) const {
    const Arguments request = {"--guidance", "2", "--seed", "7"};
    const Outcome drawn =
        run_kinora(joined(joined({"sample", "--run", path("run"), "--out", path("out"), "--device",
                                  "cpu", "--captions-file", path("prompts.txt"), "--count", "6"},
                                 {"--format", "png"}),
                          request),
                   folder());
    ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
    fs::remove(folder() / "out/grid.png");
    const Arguments prompts = {"--prompts", path("prompts.txt"), "--limit", "6"};
    const nlohmann::json of_run = report("run", joined(prompts, request));
    EXPECT_EQ(of_run.at("num_samples"), 6);
    EXPECT_EQ(of_run.at("num_prompts"), 3);
    expect_same_report(of_run, report("run", joined(joined(prompts, request), {"--batch", "2"})));
    expect_same_report(of_run, report("out", joined(prompts, of_folder)));
    EXPECT_NE(report("run", joined(prompts, {"--guidance", "2", "--seed", "8"})), of_run);
  }

 private:
  std::string clip_;
};

TEST_F(EvalRunTest, PicturesOfARunAreJudgedAsDrawn) {
  train_well(run_dir("run"),
             joined(kReads, {"model.architecture=pixart", "data.source=scenes", "data.height=32",
                             "data.width=32", "model.learn_sigma=false", "objective.kind=flow",
                             "lr.value=1e-2", "ema.decays=[0.1]"}));
  expect_judged_as_drawn({});
  const Outcome none = eval("run", {});
  EXPECT_EQ(none.exit_code, kUsage);
  EXPECT_THAT(none.err, HasSubstr("what the run is to draw must be said"));
  EXPECT_EQ(report("run", {"--limit", "3"}).at("num_samples"), 3);  // captions of its data
  const Outcome ranks = eval("run", {"--limit", "3", "--ranks", "2"});
  EXPECT_EQ(ranks.exit_code, kUsage);
  EXPECT_THAT(ranks.err, HasSubstr("draws on one rank"));
}

TEST_F(EvalRunTest, ClipsOfARunAreJudgedAsDrawn) {
  train_well(run_dir("run"), joined(kClips, {"model.architecture=stdit", "train.steps=8",
                                             "lr.value=1e-2", "ema.decays=[0.1]"}));
  expect_judged_as_drawn({"--clips", "4"});
}

TEST_F(EvalTest, RunsThatReadNoCaptionsAreRefused) {
  const std::string dit = source_path("tests/inference/data/dit");
  expect_refusal(run({dit, "--scenes", "3"}), kUsage, "draw from captions in pixels");
  const std::string scenes = source_path("weights/scenes.safetensors");
  expect_refusal(run({scenes, "--scenes", "3", "--first-frame"}), kUsage, "models of clips");
}

TEST_F(EvalTest, SaysWhatIsMissing) {
  const std::string a = (folder() / "a").string();
  expect_refusal(run({a}), kUsage, "nothing is asked for");
  expect_refusal(run({a, (folder() / "b").string()}), kUsage, "--features FILE");
  expect_refusal(judge({"a"}, {"--metrics", "prdc"}), kUsage, "compare with a reference");
  expect_refusal(judge({"a", "b"}, {"--metrics", "fid"}), kUsage, "Hint: --metrics frechet");
  expect_refusal(judge({"a", "nowhere"}), kUsage, "nowhere");
  write_noise("odd/0.png", 0);
  write_text(folder() / "odd/1.png", "no picture");
  expect_refusal(judge({"odd", "a"}), kIo, "odd/1.png");
  write_picture(folder() / "odd/1.png", 1);
  expect_refusal(judge({"odd", "a"}), 3, "got a sample of shape [3, 16, 16]");
}

}  // namespace eval_test
}  // namespace kinora::apps
