// kinora sample of clips from captions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/data/moving_shapes.h"
#include "kinora/io/animation.h"
#include "kinora/io/image_grid.h"
#include "kinora/io/video.h"
#include "tests/apps/clips.h"
#include "tests/apps/program.h"
#include "tests/places.h"

namespace kinora::apps {
namespace sample_clips_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kFrames = 4;

/// The frames of a clip that `kinora sample` wrote.
std::vector<io::Image> frames_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<io::Image> frames;
  frames.reserve(files.size());
  for (const fs::path& file : files) {
    frames.push_back(read_image(file));
  }
  return frames;
}

/// A clip of the generated set.
std::vector<io::Image> generated_clip() {
  const data::MovingScene scene = data::moving_scene(7, 3);
  std::vector<io::Image> frames(kFrames);
  for (int64_t i = 0; i < kFrames; ++i) {
    data::render(data::scene_at(scene, static_cast<float>(i) / (kFrames - 1)), 16, 16,
                 frames[static_cast<size_t>(i)]);
  }
  return frames;
}

class SampleClipsTest : public RunTest {
 protected:
  /// A run of a tiny model of clips, once for each architecture that a test asks for.
  void train_clips(const std::string& architecture, const Arguments& more = {}) const {
    train_well(run_dir("run"),
               joined(joined(kClips, {"model.architecture=" + architecture, "train.steps=3",
                                      "train.global_batch=4", "train.self_test=false"}),
                      more));
  }

  Outcome sample(const std::string& out, const Arguments& more) const {
    return run_kinora(
        joined({"sample", "--run", run_dir("run").string(), "--out", (folder() / out).string(),
                "--threads", "1", "--device", "cpu", "--steps", "2"},
               more),
        folder());
  }

  Outcome sample_well(const std::string& out, const Arguments& more) const {
    Outcome outcome = sample(out, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }

  std::vector<io::Image> clip(const std::string& out, const std::string& name) const {
    return frames_in(folder() / out / name);
  }
};

void expect_same(const io::Image& left, const io::Image& right) {
  EXPECT_EQ(left.height, right.height);
  EXPECT_EQ(left.width, right.width);
  EXPECT_TRUE(left.pixels == right.pixels) << "pixels differ";
}

void expect_other(const io::Image& left, const io::Image& right) {
  EXPECT_TRUE(left.pixels != right.pixels) << "pixels are the same";
}

TEST_F(SampleClipsTest, CaptionsGivenFramesLoopAndJudge) {
  train_clips("stdit", {"train.steps=8", "lr.value=1e-2", "ema.decays=[0.1]", "sample.every=8",
                        "sample.count=4", "sample.steps=2"});
  EXPECT_TRUE(fs::exists(run_dir("run") / "samples/step-8.png"));
  EXPECT_THAT(read_text(run_dir("run") / "samples/step-8.webp"), HasSubstr("ANIM"));

  // Two captions in turn: three clips, each as frames and
  // animation.
  write_text(folder() / "captions.txt",
             "a red circle moving to the left\n\na blue cross moving up\n");
  const Outcome by_file =
      sample_well("file", {"--captions-file", path("captions.txt"), "--count", "3"});
  EXPECT_THAT(by_file.out, HasSubstr("3 clips in"));
  sample_well("words", {"--captions", "A RED circle moving to the left", "a blue cross moving up",
                        "--count", "3"});
  for (const char* name : {"clip-00000", "clip-00001", "clip-00002"}) {
    const std::vector<io::Image> frames = clip("file", name);
    ASSERT_EQ(frames.size(), static_cast<size_t>(kFrames));
    EXPECT_EQ(frames[0].height, 16);
    EXPECT_EQ(frames[0].width, 16);
    const std::string webp = read_text(folder() / "file" / (std::string(name) + ".webp"));
    EXPECT_THAT(webp, HasSubstr("ANIM"));
    EXPECT_TRUE(read_picture_bytes(folder() / "file" / (std::string(name) + ".webp")) ==
                read_picture_bytes(folder() / "words" / (std::string(name) + ".webp")))
        << "case must not count";
  }
  const io::Image grid = read_image(folder() / "file/grid.png");
  EXPECT_EQ(grid.height, 3 * (16 + 2) + 2);
  EXPECT_EQ(grid.width, kFrames * 16 + 4);
  sample_well("other", {"--captions", "a green square moving down", "--guidance", "9"});
  expect_other(clip("file", "clip-00000")[0], clip("other", "clip-00000")[0]);

  // A strip whose frames stay as they are, in the places asked for.
  const std::vector<io::Image> reference = generated_clip();
  io::write_png(folder() / "strip.png",
                io::make_grid(std::span(reference).first(2), {.rows = 1, .padding = 0}));
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  sample_well("given", joined(caption, {"--given", path("strip.png"), "--frame-layout", "strip",
                                        "--given-frames", "3,0", "--count", "2"}));
  for (const char* name : {"clip-00000", "clip-00001"}) {
    const std::vector<io::Image> frames = clip("given", name);
    expect_same(frames[3], reference[0]);
    expect_same(frames[0], reference[1]);
    expect_other(frames[1], reference[0]);
  }
  // A folder of frames at the head; then a single image at the tail.
  io::write_frames(folder() / "frames", std::span(reference).first(2));
  sample_well("head", joined(caption, {"--given", path("frames")}));
  const std::vector<io::Image> head = clip("head", "clip-00000");
  expect_same(head[0], reference[0]);
  expect_same(head[1], reference[1]);
  io::write_png(folder() / "one.png", reference[2]);
  sample_well("tail", joined(caption, {"--given", path("one.png"), "--given-frames", "tail"}));
  expect_same(clip("tail", "clip-00000")[3], reference[2]);

  // Changed from half the noise on, or not at all.
  const Arguments edited = {"--given", path("one.png"), "--given-frames", "tail", "--given-edit"};
  sample_well("changed", joined(joined(caption, edited), {"0.5"}));
  expect_other(clip("changed", "clip-00000")[3], reference[2]);
  sample_well("unchanged", joined(joined(caption, edited), {"0"}));
  expect_same(clip("unchanged", "clip-00000")[3], reference[2]);

  // A longer clip begins as the short one.
  sample_well("loop", joined(caption, {"--loop", "3", "--overlap", "2"}));
  sample_well("short", caption);
  const std::vector<io::Image> loop = clip("loop", "clip-00000");
  const std::vector<io::Image> piece = clip("short", "clip-00000");
  ASSERT_EQ(loop.size(), static_cast<size_t>(3 * (kFrames - 2) + 2));
  for (size_t i = 0; i < piece.size(); ++i) {
    expect_same(loop[i], piece[i]);
  }

  const Outcome judged = sample_well("judge", joined(caption, {"--judge", "--json"}));
  const auto json = nlohmann::json::parse(judged.out);
  EXPECT_EQ(json.at("samples"), 1);
  EXPECT_EQ(json.at("judge").at("right"), 0) << "eight steps teach nothing";
  EXPECT_EQ(json.at("judge").at("share"), 0.0);
  // Without captions: those of the run's first clips.
  const Outcome own = sample_well("own", {"--count", "5", "--judge"});
  EXPECT_THAT(own.out, HasSubstr("5 clips in"));
  EXPECT_THAT(own.out, HasSubstr("judged 0/5 right"));
}

TEST_F(SampleClipsTest, FilesOfOtherFormats) {
  train_clips("stdit");
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  sample_well("gif", joined(caption, {"--format", "gif"}));
  EXPECT_EQ(read_text(folder() / "gif/clip-00000.gif").substr(0, 6), "GIF89a");
  EXPECT_TRUE(fs::exists(folder() / "gif/grid.png"));
  EXPECT_FALSE(fs::exists(folder() / "gif/clip-00000"));
  EXPECT_FALSE(fs::exists(folder() / "gif/clip-00000.webp"));
  const Outcome gif_again = sample("gif-again", {"--like", path("gif/clip-00000.gif")});
  ASSERT_EQ(gif_again.exit_code, 0) << gif_again.err;
  EXPECT_EQ(read_text(folder() / "gif-again/clip-00000.gif"),
            read_text(folder() / "gif/clip-00000.gif"));
  sample_well("png", joined(caption, {"--format", "png"}));
  EXPECT_EQ(clip("png", "clip-00000").size(), static_cast<size_t>(kFrames));
  EXPECT_FALSE(fs::exists(folder() / "png/clip-00000.webp"));
  EXPECT_EQ(sample("bmp", joined(caption, {"--format", "bmp"})).exit_code, kUsage);

  if (io::why_no_video()) {
    const Outcome refused = sample("mp4", joined(caption, {"--format", "mp4"}));
    EXPECT_EQ(refused.exit_code, kUsage);
    EXPECT_THAT(refused.err, HasSubstr("scripts/setup.sh --video"));
    GTEST_SKIP() << "no video here";
  }
  sample_well("mp4", joined(caption, {"--format", "mp4"}));
  EXPECT_EQ(io::VideoFile::open(folder() / "mp4/clip-00000.mp4").num_frames(), kFrames);
  const Outcome again = sample("again", {"--like", (folder() / "mp4/clip-00000.mp4").string()});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto frames = [&](const char* out) {
    io::Image strip;
    io::VideoFile::open(folder() / out / "clip-00000.mp4").read_frames(0, kFrames, 1, strip);
    return strip.pixels;
  };
  EXPECT_EQ(frames("again"), frames("mp4"));

  // A video as the reference: half of a clip, or as many frames as are numbered.
  io::write_gif(folder() / "given.gif", generated_clip(), 8.0);
  io::VideoFile given = io::VideoFile::open(folder() / "given.gif");
  std::vector<io::Image> reference(kFrames);
  for (int64_t i = 0; i < kFrames; ++i) {
    given.read_frames(i, 1, 1, reference[static_cast<size_t>(i)]);
  }
  sample_well("head", joined(caption, {"--given", path("given.gif")}));
  const std::vector<io::Image> head = clip("head", "clip-00000");
  expect_same(head[0], reference[0]);
  expect_same(head[1], reference[1]);
  expect_other(head[2], reference[2]);
  sample_well("places", joined(caption, {"--given", path("given.gif"), "--given-frames", "3,0,1"}));
  const std::vector<io::Image> places = clip("places", "clip-00000");
  expect_same(places[3], reference[0]);
  expect_same(places[0], reference[1]);
  expect_same(places[1], reference[2]);
}

// With the weights that come with the repository.
TEST_F(SampleClipsTest, JudgeCountsWhatIsRight) {
  const auto judged = [&](const Arguments& more) {
    const Outcome outcome = run_kinora(
        joined({"sample", "--checkpoint", source_path("weights/shapes.safetensors").string(),
                "--out", path("judged"), "--overwrite", "--device", "cpu", "--judge", "--json"},
               more),
        folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("judge");
  };
  const auto right = judged({"--count", "16"});
  EXPECT_GE(right.at("right"), 14);
  EXPECT_EQ(right.at("each").size(), 16U);
  EXPECT_DOUBLE_EQ(right.at("share"), right.at("right").get<double>() / 16.0);
  EXPECT_LE(judged({"--count", "16", "--steps", "1", "--guidance", "0"}).at("right"), 4);
}

TEST_F(SampleClipsTest, ClipsBeginWithOthers) {
  train_clips("stdit", {"train.steps=8", "lr.value=1e-2", "ema.decays=[0.1]"});
  const std::vector<io::Image> reference = generated_clip();
  io::write_frames(folder() / "frames", reference);
  const Arguments request = {"--captions", "a red circle moving to the left"};
  const auto begun = [&](const std::string& out, const std::string& strength) {
    sample_well(out, joined(request, {"--init", path("frames"), "--strength", strength}));
    return clip(out, "clip-00000");
  };
  const auto distance = [&](const std::vector<io::Image>& frames) {
    double sum = 0.0;
    for (size_t i = 0; i < frames.size(); ++i) {
      sum += difference_of(frames[i], reference[i]).mean;
    }
    return sum;
  };
  const std::vector<io::Image> half = begun("half", "0.5");  // one of two steps
  const std::vector<io::Image> whole = begun("whole", "1");
  ASSERT_EQ(half.size(), reference.size());
  EXPECT_GT(distance(half), 0.0);
  EXPECT_LT(distance(half), distance(whole));
  // All of it drawn anew is a clip of its own.
  sample_well("own", request);
  for (size_t i = 0; i < reference.size(); ++i) {
    expect_same(whole[i], clip("own", "clip-00000")[i]);
  }
  const Outcome again = sample("again", {"--like", path("half/clip-00000.webp")});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(clip("again", "clip-00000")[3].pixels == half[3].pixels);

  io::write_frames(folder() / "three", std::span(reference).first(3));
  const Outcome too_short = sample("bad", joined(request, {"--init", path("three")}));
  EXPECT_EQ(too_short.exit_code, kUsage);
  EXPECT_THAT(too_short.err, HasSubstr("must have 4 frames, as what is drawn, got 3"));
}

TEST_F(SampleClipsTest, ModelsOfAnySizeDrawOtherSizes) {
  train_clips("stdit3");
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  sample_well("sized",
              joined(caption, {"--frames", "6", "--height", "24", "--width", "32", "--fps", "4"}));
  const std::vector<io::Image> frames = clip("sized", "clip-00000");
  ASSERT_EQ(frames.size(), 6U);
  EXPECT_EQ(frames[0].height, 24);
  EXPECT_EQ(frames[0].width, 32);
  sample_well("slow", joined(caption, {"--fps", "1"}));
  sample_well("fast", joined(caption, {"--fps", "60"}));
  EXPECT_NE(read_text(folder() / "slow/clip-00000.webp"),
            read_text(folder() / "fast/clip-00000.webp"));
  const Outcome odd = sample("odd", joined(caption, {"--height", "18"}));
  EXPECT_EQ(odd.exit_code, kUsage);
  EXPECT_THAT(odd.err, HasSubstr("height must be a multiple of 4, got 18"));
  sample_well("image", joined(caption, {"--frames", "1"}));
  EXPECT_TRUE(fs::exists(folder() / "image/image-00000.png"));
}

TEST_F(SampleClipsTest, ModelsOfAnySizeLearnAndDrawImages) {
  for (const char* architecture : {"stdit2", "stdit3"}) {
    fs::remove_all(run_dir("run"));
    train_clips(architecture,
                {"model.hidden=48", "data.source=shapes", "data.frames=1", "data.validation=8",
                 "validation.every=3", "sample.every=3", "sample.count=2"});
    EXPECT_TRUE(fs::exists(run_dir("run") / "samples/step-3.png"));
    sample_well(architecture, {"--captions", "a red circle"});
    EXPECT_TRUE(fs::exists(folder() / architecture / "image-00000.png"));
  }
}

TEST_F(SampleClipsTest, RunsMayBeMovedAwayFromTheirTokenizer) {
  const fs::path words = folder() / "words/own.model";
  fs::create_directories(words.parent_path());
  fs::copy_file(source_path("configs/captions/spiece.model"), words);
  train_clips("latte", {"text.tokenizer=" + words.string(), "frame_masks.image_head=0"});
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  sample_well("before", caption);
  fs::remove_all(words.parent_path());
  fs::create_directories(folder() / "elsewhere");
  fs::rename(run_dir("run"), folder() / "elsewhere/run");
  const auto drawn = [&](const std::string& out, const Arguments& more) {
    return run_kinora(joined(joined({"sample", "--out", path(out), "--threads", "1", "--device",
                                     "cpu", "--steps", "2"},
                                    caption),
                             more),
                      folder());
  };
  for (const char* model : {"elsewhere/run", "elsewhere/run/checkpoints/step-3"}) {
    fs::remove_all(folder() / "after");
    const Outcome outcome = drawn("after", {"--checkpoint", path(model)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    expect_same(clip("after", "clip-00000")[0], clip("before", "clip-00000")[0]);
  }
  const Outcome other = drawn("other", {"--run", path("elsewhere/run"), "--set",
                                        "text.tokenizer=" + path("nowhere.model")});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("nowhere.model"));
  fs::remove_all(folder() / "elsewhere/run/tokenizer");
  const Outcome none = drawn("none", {"--run", path("elsewhere/run")});
  EXPECT_NE(none.exit_code, 0);
  EXPECT_THAT(none.err, HasSubstr("own.model"));
}

TEST_F(SampleClipsTest, FilesOfWeightsBringTheirTokenizer) {
  const fs::path words = folder() / "words/own.model";
  fs::create_directories(words.parent_path());
  fs::copy_file(source_path("configs/captions/spiece.model"), words);
  train_clips("stdit", {"text.tokenizer=" + words.string(), "checkpoint.export=true"});
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  sample_well("before", caption);
  const fs::path away = folder() / "elsewhere";
  fs::create_directories(away);
  const auto convert = [&](const std::string& from, const std::string& to) {
    const Outcome outcome = run_kinora({"convert", path(from), "--to", path(to)}, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  };
  (void)convert("run", "elsewhere/converted.safetensors");
  // As older versions wrote it: with the path alone.
  const auto exported = checkpoint::WeightsFile::open(run_dir("run") / "model.safetensors");
  checkpoint::write_weights(
      away / "older.safetensors", exported.tensors(),
      {.metadata = checkpoint::weights_metadata(exported.metadata(checkpoint::kConfigMetadata))});
  (void)convert("elsewhere/older.safetensors", "elsewhere/renewed.safetensors");
  fs::rename(run_dir("run") / "model.safetensors", away / "exported.safetensors");
  fs::remove_all(run_dir("run"));
  fs::remove_all(words.parent_path());
  (void)convert("elsewhere/exported.safetensors", "elsewhere/again.safetensors");

  const auto drawn = [&](const std::string& name, const Arguments& more) {
    return run_kinora(
        joined(joined({"sample", "--checkpoint", (away / (name + ".safetensors")).string(), "--out",
                       path(name), "--threads", "1", "--device", "cpu", "--steps", "2"},
                      caption),
               more),
        folder());
  };
  for (const char* name : {"converted", "renewed", "exported", "again"}) {
    const Outcome outcome = drawn(name, {});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    expect_same(clip(name, "clip-00000")[0], clip("before", "clip-00000")[0]);
  }
  const Outcome older = drawn("older", {});
  EXPECT_EQ(older.exit_code, kIo);
  EXPECT_THAT(older.err, testing::AllOf(HasSubstr("own.model is not there"),
                                        HasSubstr("kinora sample takes it by --set")));
  const Outcome helped =
      drawn("older",
            {"--set", "text.tokenizer=" + source_path("configs/captions/spiece.model").string()});
  EXPECT_EQ(helped.exit_code, 0) << helped.err;
  EXPECT_THAT(convert("elsewhere/older.safetensors", "elsewhere/still.safetensors").err,
              HasSubstr("own.model is not there, so the file of weights names it by its path"));
}

TEST_F(SampleClipsTest, EvalAsksForClipsThatTrainingNeverShowed) {
  train_clips("stdit");
  const Outcome outcome = run_kinora(
      {"eval", run_dir("run").string(), "--scenes", "4", "--device", "cpu", "--json"}, folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report.at("of"), 4);
  EXPECT_EQ(report.at("right"), 0) << "three steps teach nothing";
  for (const char* key : {"colour_right", "shape_right", "motion_right", "chance", "share"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
}

TEST_F(SampleClipsTest, EvalGivesFirstFramesAndTakesSettings) {
  train_clips("open_sora2", {"model.given_embedders=true"});
  const auto report = [this](const std::vector<std::string>& options) {
    const Outcome outcome = run_kinora(
        joined({"eval", run_dir("run").string(), "--scenes", "4", "--device", "cpu", "--json"},
               options),
        folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  EXPECT_FALSE(report({}).contains("first_frame_kept"));
  const nlohmann::json given = report({"--first-frame"});
  EXPECT_EQ(given.at("first_frame_kept"), 4);
  EXPECT_FALSE(given.contains("step_cache"));
  const nlohmann::json cached =
      report({"--first-frame", "--set", "sample.cache=tea", "sample.cache_threshold=1000"});
  EXPECT_THAT(cached.at("step_cache"), testing::StartsWith("left out "));
  const Outcome unknown = run_kinora(
      {"eval", run_dir("run").string(), "--scenes", "4", "--set", "sample.speed=2"}, folder());
  EXPECT_EQ(unknown.exit_code, kUsage);
  EXPECT_THAT(unknown.err, HasSubstr("sample.speed"));
}

TEST_F(SampleClipsTest, EvalShowsReferencesThatTrainingNeverShowed) {
  train_clips("open_sora2",
              {"model.given_embedders=true", "model.references=2", "data.references=2"});
  const Outcome outcome = run_kinora(
      {"eval", run_dir("run").string(), "--scenes", "4", "--device", "cpu", "--json"}, folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report.at("of"), 4);
  for (const char* key : {"identity_right", "identity_right_in_each_frame", "motion_right"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  EXPECT_THAT(
      run_kinora({"eval", run_dir("run").string(), "--scenes", "4", "--first-frame"}, folder()).err,
      HasSubstr("--first-frame is for models of clips without references"));
  EXPECT_THAT(sample("judged", {"--captions", "it is moving up", "--judge"}).err,
              HasSubstr("Hint: kinora eval RUN --scenes N"));
}

TEST_F(SampleClipsTest, BadRequestsAreRefused) {
  train_clips("stdit");
  io::write_frames(folder() / "frames", generated_clip());
  struct Bad {
    Arguments arguments;
    int exit_code;
    std::string message;
  };
  const Arguments caption = {"--captions", "a red circle moving up"};
  const std::vector<Bad> requests = {
      {{"--classes", "0"}, kUsage, "conditioned on texts"},
      {{"--captions", "a", "--text-embeddings", "b"}, kUsage, "only one of --captions"},
      {{"--captions-file", path("nowhere.txt")}, kIo, "nowhere.txt"},
      {{"--captions-file", "/dev/zero"}, kIo, "must be a regular file"},
      {{"--text-embeddings", path("nowhere.safetensors")}, kIo, "nowhere.safetensors"},
      {joined(caption, {"--frames", "8"}), kUsage, "frames must be 4"},
      {joined(caption, {"--width", "32"}), kUsage, "width must be 16"},
      {joined(caption, {"--given", path("nowhere.png")}), kIo, "nowhere.png"},
      {joined(caption, {"--given", path("frames")}), kUsage, "1 to 3 can be given, got 4"},
      {joined(caption, {"--given", path("frames/frame_0000.png"), "--given-frames", "4"}), kUsage,
       "0 to 3, got 4"},
      {joined(caption, {"--given", path("frames/frame_0000.png"), "--given-frames", "middle"}),
       kUsage, "middle"},
      {joined(caption, {"--loop", "2"}), kUsage, "1 to 3"},
      {joined(caption, {"--loop", "0"}), kUsage, "--loop"},
      {joined(caption, {"--overlap", "1"}), kUsage, "--loop"},
      {joined(caption, {"--given-frames", "0"}), kUsage, "--given"},
      {joined(caption, {"--given-edit", "0.5"}), kUsage, "--given"},
      {joined(caption, {"--given", path("frames/frame_0000.png"), "--given-edit", "2"}), kUsage,
       "--given-edit"},
      {{"--captions", "a tree", "--judge"}, kUsage, "a tree"},
  };
  for (const Bad& request : requests) {
    const Outcome outcome = sample("bad", request.arguments);
    EXPECT_EQ(outcome.exit_code, request.exit_code) << request.message << "\n" << outcome.err;
    EXPECT_THAT(outcome.err + outcome.out, HasSubstr(request.message));
  }
}

// Open-Sora 2 is shown given frames beside the input, and they come out as they went in.
TEST_F(SampleClipsTest, FirstAndLastFramesAndVideosOfOpenSora2) {
  train_clips("open_sora2",
              {"model.given_embedders=true", "frame_masks.image_head=0",
               "frame_masks.weights.t2v=1", "frame_masks.weights.i2v_head=5",
               "frame_masks.weights.i2v_loop=1", "objective.shift_by_tokens=[1,3]",
               "objective.token_shift=opensora2", "sample.given_guidance=3",
               "model.parallel_depth=1", "train.steps=8", "lr.value=1e-2", "ema.decays=[0.1]"});
  const std::vector<io::Image> reference = generated_clip();
  io::write_png(folder() / "first.png", reference[0]);
  io::write_png(folder() / "last.png", reference[3]);
  io::write_frames(folder() / "frames", std::span(reference).first(3));
  const Arguments caption = {"--captions", "a red circle moving to the left"};
  sample_well("ends", joined(caption, {"--image", path("first.png"), "--last", path("last.png")}));
  const std::vector<io::Image> ends = clip("ends", "clip-00000");
  expect_same(ends[0], reference[0]);
  expect_same(ends[3], reference[3]);
  expect_other(ends[1], reference[1]);
  sample_well("last", joined(caption, {"--last", path("last.png")}));
  expect_same(clip("last", "clip-00000")[3], reference[3]);
  expect_other(clip("last", "clip-00000")[0], ends[0]);
  sample_well("head", joined(caption, {"--video", path("frames"), "--video-frames", "2"}));
  const std::vector<io::Image> head = clip("head", "clip-00000");
  expect_same(head[0], reference[0]);
  expect_same(head[1], reference[1]);
  expect_other(head[2], reference[2]);
  sample_well("tail", joined(caption, {"--last", path("frames"), "--video-frames", "2"}));
  expect_same(clip("tail", "clip-00000")[2], reference[1]);
  expect_same(clip("tail", "clip-00000")[3], reference[2]);
  // What the middle shows hangs on the frames.
  sample_well("free", caption);
  expect_other(clip("free", "clip-00000")[1], ends[1]);

  struct Bad {
    Arguments arguments;
    int exit_code;
    const char* message;
  };
  write_text(folder() / "broken.png", "no picture");
  for (const Bad& bad : std::vector<Bad>{
           {{"--video", path("frames"), "--video-frames", "33"},
            kUsage,
            "frames\" must have 33 frames at the clips' rate, got 3"},
           {{"--last", path("frames"), "--video-frames", "4"}, kUsage, "must have 4 frames"},
           {{"--video", path("first.png")}, kUsage, "must be a video or a folder of frames"},
           {{"--last", path("nowhere.png")}, kIo, "nowhere.png"},
           {{"--last", path("broken.png")}, kIo, "broken.png"},
           {{"--image", path("first.png"), "--video", path("frames"), "--video-frames", "2"},
            kUsage,
            "frames must be given once"},
           {{"--video", path("frames"), "--video-frames", "3", "--last", path("last.png")},
            kUsage,
            "1 to 3 can be given, got 4"}}) {
    const Outcome outcome = sample("bad", joined(caption, bad.arguments));
    EXPECT_EQ(outcome.exit_code, bad.exit_code) << bad.message << "\n" << outcome.err;
    EXPECT_THAT(outcome.err + outcome.out, HasSubstr(bad.message));
  }
}

TEST_F(SampleClipsTest, ModelsOfImagesAndOfOneTimeTakeNoClips) {
  train_well(run_dir("run"));
  for (const Arguments& arguments :
       std::vector<Arguments>{{"--captions", "a"}, {"--loop", "2"}, {"--fps", "8"}}) {
    EXPECT_EQ(sample("bad", arguments).exit_code, kUsage) << arguments.front();
  }
  fs::remove_all(run_dir("run"));
  train_clips("vdit", {"frame_masks.image_head=0"});
  sample_well("free", {"--captions", "a red circle moving up"});
  const Outcome looped =
      sample("bad", {"--captions", "a red circle moving up", "--loop", "2", "--overlap", "1"});
  EXPECT_EQ(looped.exit_code, kUsage);
  EXPECT_THAT(looped.err, HasSubstr("STDiT2, STDiT3, LatteT2V, OpenSora2, HunyuanVideo, "
                                    "Wan and LTXVideo only"));
}

}  // namespace sample_clips_test
}  // namespace kinora::apps
