// kinora sample.

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "kinora/data/scenes.h"
#include "kinora/eval/shape_judge.h"
#include "kinora/io/image.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace sample_test {

namespace fs = std::filesystem;

/// The images of a folder in order, without the grid.
std::vector<io::Image> images_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("image-")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<io::Image> images;
  images.reserve(files.size());
  for (const fs::path& file : files) {
    images.push_back(read_image(file));
  }
  return images;
}

/// The largest difference of any byte; 256 if the sizes differ.
int distance(const std::vector<io::Image>& left, const std::vector<io::Image>& right) {
  if (left.size() != right.size() || left.empty()) {
    return 256;
  }
  int largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].pixels.size() != right[i].pixels.size()) {
      return 256;
    }
    for (size_t k = 0; k < left[i].pixels.size(); ++k) {
      largest = std::max(largest, std::abs(left[i].pixels[k] - right[i].pixels[k]));
    }
  }
  return largest;
}

class SampleTest : public RunTest {
 protected:
  // The weights are far from their average: it is almost the initial model.
  void SetUp() override { train_well(run_dir("run"), {"lr.value=1e-2", "checkpoint.export=true"}); }

  Outcome sample(const std::string& out, const Arguments& more) const {
    Arguments arguments = {"sample",   "--out", (folder() / out).string(), "--threads", "1",
                           "--device", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }

  std::vector<io::Image> images(const std::string& out, const Arguments& more) const {
    const Outcome outcome = sample(out, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.exit_code == 0 ? images_in(folder() / out) : std::vector<io::Image>();
  }

  std::vector<io::Image> of_run(const std::string& out, Arguments more) const {
    more.insert(more.begin(), {"--run", run_dir("run").string()});
    return images(out, more);
  }
};

TEST_F(SampleTest, WritesNamedFilesAndAGrid) {
  const auto drawn = of_run("out", {"--classes", "0,1,2", "--count", "5", "--steps", "4",
                                    "--guidance", "2.5", "--seed", "7"});
  ASSERT_EQ(drawn.size(), 5U);
  for (const char* name :
       {"image-00000_class-0.png", "image-00001_class-1.png", "image-00002_class-2.png",
        "image-00003_class-0.png", "image-00004_class-1.png"}) {
    EXPECT_TRUE(fs::exists(folder() / "out" / name)) << name;
  }
  for (const io::Image& image : drawn) {
    EXPECT_EQ(image.height, 16);
    EXPECT_EQ(image.width, 16);
  }
  const io::Image grid = read_image(folder() / "out/grid.png");
  EXPECT_GE(grid.height * grid.width, 5 * 16 * 16);
  EXPECT_GT(distance({drawn[0]}, {drawn[3]}), 0) << "images of one class must differ in noise";
}

TEST_F(SampleTest, ClassesByNameAreThoseByNumber) {
  const auto numbers = of_run("numbers", {"--classes", "1,0", "--sampler", "ddim"});
  const auto names =
      of_run("names", {"--classes", "green circle,0", "--set", "sample.method=ddim"});
  EXPECT_EQ(distance(numbers, names), 0);
  EXPECT_TRUE(fs::exists(folder() / "names/image-00000_class-1.png"));
}

TEST_F(SampleTest, ModelsOfPixelsBeginWithPictures) {
  const auto first = of_run("first", {"--classes", "0", "--steps", "4", "--seed", "5"});
  ASSERT_EQ(first.size(), 1U);
  const auto begun = [&](const std::string& strength) {
    return of_run("by-" + strength,
                  {"--classes", "1", "--steps", "4", "--init",
                   (folder() / "first/image-00000_class-0.png").string(), "--strength", strength});
  };
  const double little = difference_of(begun("0.25").at(0), first[0]).mean;
  EXPECT_GT(little, 0.0);
  EXPECT_LT(little, 10.0);
  EXPECT_GT(difference_of(begun("0.75").at(0), first[0]).mean, 2.0 * little);
  // All of it drawn anew is as without the picture, but for the 0.6 % of it in the first step.
  const auto own = of_run("own", {"--classes", "1", "--steps", "4"});
  EXPECT_LT(difference_of(begun("1").at(0), own.at(0)).mean, 2.0);
}

TEST_F(SampleTest, NamesOfClassesOutliveTheirData) {
  for (int i = 0; i < 8; ++i) {
    const fs::path path = folder() / "animals" / (i % 2 == 0 ? "cat" : "dog");
    fs::create_directories(path);
    write_picture(path / (std::to_string(i) + ".png"), i);
  }
  train_well(run_dir("pets"),
             {"data.source=folder", "data.path=[" + (folder() / "animals").string() + "]",
              "train.steps=1"});
  fs::remove_all(folder() / "animals");
  const Outcome drawn = sample("dogs", {"--run", run_dir("pets").string(), "--classes", "dog"});
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_TRUE(fs::exists(folder() / "dogs/image-00000_class-1.png"));
  const Outcome wrong = sample("cats", {"--run", run_dir("pets").string(), "--classes", "cta"});
  EXPECT_EQ(wrong.exit_code, kUsage);
  EXPECT_NE(wrong.err.find("did you mean cat?"), std::string::npos) << wrong.err;
}

TEST_F(SampleTest, SameSeedSameImagesWhateverTheBatchAndCount) {
  const Arguments request = {"--classes", "0,1,2", "--count", "9", "--seed", "3"};
  const auto with = [&request](const char* batch) {
    Arguments arguments = request;
    arguments.insert(arguments.end(), {"--batch", batch});
    return arguments;
  };
  const auto all = of_run("64", with("64"));
  EXPECT_EQ(distance(all, of_run("again", with("64"))), 0);
  EXPECT_LE(distance(all, of_run("1", with("1"))), 1);
  EXPECT_LE(distance(all, of_run("3", with("3"))), 1);
  const auto fewer = of_run("fewer", {"--classes", "0,1,2", "--count", "4", "--seed", "3"});
  ASSERT_EQ(fewer.size(), 4U);
  EXPECT_LE(distance({all.begin(), all.begin() + 4}, fewer), 1);
  const auto other = of_run("other", {"--classes", "0,1,2", "--count", "9", "--seed", "4"});
  EXPECT_GT(distance(all, other), 20);
}

TEST_F(SampleTest, RunCheckpointAndExportedFileGiveTheSameImages) {
  const Arguments request = {"--classes", "0,5", "--count", "4"};
  const auto expected = of_run("run-images", request);
  for (const fs::path& source :
       {run_dir("run") / "checkpoints/step-20", run_dir("run") / "model.safetensors"}) {
    Arguments arguments = request;
    arguments.insert(arguments.end(), {"--checkpoint", source.string()});
    EXPECT_EQ(distance(expected, images(source.filename().string(), arguments)), 0) << source;
  }
  Arguments older = request;
  older.insert(older.end(), {"--checkpoint", (run_dir("run") / "checkpoints/step-10").string(),
                             "--weights", "raw"});
  EXPECT_GT(distance(expected, images("older", older)), 0);
}

TEST_F(SampleTest, RawWeightsGuidanceStepsAndClassesMatter) {
  const Arguments request = {"--classes", "1", "--count", "3", "--guidance", "1.5"};
  const auto with = [&](const std::string& out, const Arguments& more) {
    Arguments arguments = request;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return of_run(out, arguments);
  };
  const auto raw = with("raw", {"--weights", "raw"});
  EXPECT_GT(distance(raw, with("ema", {"--weights", "ema"})), 0);
  EXPECT_EQ(distance(with("default", {}), images_in(folder() / "ema")), 0) << "ema is the default";
  EXPECT_GT(distance(raw, with("steps", {"--weights", "raw", "--steps", "6"})), 0);
  Arguments guided = {"--classes", "1", "--count", "3", "--guidance", "40", "--weights", "raw"};
  EXPECT_GT(distance(raw, of_run("guided", guided)), 0);
  Arguments other = {"--classes", "2", "--count", "3", "--guidance", "1.5", "--weights", "raw"};
  EXPECT_GT(distance(raw, of_run("class", other)), 0);
}

TEST_F(SampleTest, BadRequestsAreRefused) {
  const std::string run = run_dir("run").string();
  struct Bad {
    Arguments arguments;
    int exit_code;
    std::string message;
  };
  write_text(folder() / "text.safetensors", "not tensors");
  const std::vector<Bad> requests = {
      {{"--run", run, "--classes", "16"}, kUsage, "classes must lie in 0 to 15, got 16"},
      {{"--run", run, "--classes=-1"}, kUsage, "got -1"},
      {{"--run", run, "--classes", "cat"}, kUsage, "got \"cat\". Hint: they are "},
      {{"--run", run, "--classes", "red circel"}, kUsage, "did you mean red circle?"},
      {{"--run", run, "--sampler", "eulr"}, kUsage, "euler"},
      {{"--run", run, "--checkpoint", run}, kUsage, "one of --run DIR and --checkpoint"},
      {{}, kUsage, "one of --run DIR and --checkpoint"},
      {{"--run", (folder() / "nowhere").string()}, kIo, "does not exist"},
      {{"--run", folder().string()}, kIo, "neither a checkpoint nor a run"},
      {{"--run", run, "--weights", "best"}, kUsage, "best"},
      {{"--run", run, "--batch", "0"}, kUsage, "--batch"},
      {{"--run", run, "--seed=-1"}, kUsage, "--seed"},
      {{"--run", run, "--steps", "5000"}, kUsage, "5000"},
      {{"--run", run, "--set", "sample.guidance=1e308"}, kUsage, "sample.guidance"},
      {{"--run", run, "--set", "sample.method=euler", "sample.threshold=0.9"},
       kUsage,
       "must be off for this method"},
      {{"--checkpoint", (folder() / "text.safetensors").string()}, kIo, "text.safetensors"},
  };
  for (const Bad& request : requests) {
    const Outcome outcome = sample("bad", request.arguments);
    EXPECT_EQ(outcome.exit_code, request.exit_code) << outcome.err;
    EXPECT_NE((outcome.err + outcome.out).find(request.message), std::string::npos)
        << request.message << " not in " << outcome.err;
  }
}

// The weights that come with the repository, so that there is something to draw at once.
TEST_F(SampleTest, ShippedWeightsDrawWhatTheyAreAskedFor) {
  const auto weights = source_path("weights/shapes.safetensors");
  EXPECT_LT(fs::file_size(weights), 8U << 20);
  const auto drawn = images("out", {"--checkpoint", weights.string(), "--count", "32"});
  ASSERT_EQ(drawn.size(), 32U);
  int64_t num_right = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const at::Tensor planes =
        at::tensor(drawn[i].pixels, at::kByte).view({32, 32, 3}).permute({2, 0, 1}).contiguous();
    const auto verdict = eval::judge_shape(planes);
    num_right += verdict && verdict->label() == static_cast<int64_t>(i) % 16 ? 1 : 0;
  }
  EXPECT_GE(num_right, 29);  // 90 %
}

TEST_F(SampleTest, ShippedWeightsDrawWhatHeldOutCaptionsSay) {
  const fs::path weights = source_path("weights/scenes.safetensors");
  EXPECT_LT(fs::file_size(weights), 8U << 20);
  Arguments arguments = {"--checkpoint", weights.string(), "--judge", "--count", "24", "--prompt"};
  for (int64_t i = 0; i < 24; ++i) {
    arguments.push_back(data::held_out_caption(i));
  }
  const Outcome outcome = sample("out", arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t judged = outcome.out.find("judged ");
  ASSERT_NE(judged, std::string::npos) << outcome.out;
  EXPECT_GE(std::stoi(outcome.out.substr(judged + 7)), 20) << outcome.out;
}

TEST_F(SampleTest, DamagedCheckpointIsRefused) {
  damage(run_dir("run") / "checkpoints/step-20/ema.0.safetensors");
  const Outcome outcome = sample("out", {"--run", run_dir("run").string()});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_NE(outcome.err.find("checksum"), std::string::npos) << outcome.err;
}

}  // namespace sample_test
}  // namespace kinora::apps
