#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

// The folder is diffusers', and drawn.safetensors what it draws with it:
// tools/reference/make_pipeline_fixtures.py.

namespace kinora::inference {
namespace dit_pipeline_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::HasSubstr;

const LoadOptions kOnCpu = {.device = DeviceChoice::kCpu, .says = false};

fs::path folder() {
  return source_path("tests/inference/data/dit");
}

class DitPipelineTest : public testing::Test {
 protected:
  DitPipelineTest() { fs::copy(folder(), path_, fs::copy_options::recursive); }
  ~DitPipelineTest() override { fs::remove_all(path_); }

  static void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }
  static json read(const fs::path& file) {
    std::ifstream in(file);
    return json::parse(in);
  }

  /// What is drawn of the fixture's labels from the folder as it is.
  [[nodiscard]] at::Tensor drawn() const {
    TrainedModel trained = load_trained(path_, kOnCpu);
    const Request request{.classes = json::parse(expected_.metadata("labels")),
                          .seed = std::stoull(expected_.metadata("seed"))};
    return Drawing(trained, {request}, {.steps = std::stoll(expected_.metadata("steps"))}).draw();
  }

  fs::path path_ = fs::path(testing::TempDir()) / ("dit-pipeline-" + std::to_string(::getpid()));
  WeightsFile expected_ = WeightsFile::open(folder() / "drawn.safetensors");
};

double relative(const at::Tensor& ours, const at::Tensor& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
}

TEST_F(DitPipelineTest, PicturesAreThoseOfDiffusers) {
  const ModelRecipe recipe = read_recipe(path_, kOnCpu);
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 4.0);
  EXPECT_EQ(recipe.model.compression, 2);
  EXPECT_EQ(recipe.model.class_names[0], "tench, Tinca tinca");
  const at::Tensor latents = drawn();
  EXPECT_LT(relative(latents, expected_.read("latents")), 1e-4);
  const auto decoder = open_decoder(recipe, {}, at::kCPU);
  expect_pictures(*decoder, latents, expected_.read("pictures"));
}

TEST_F(DitPipelineTest, EverySchedulerDrawsAsInDiffusers) {
  int64_t count = 0;
  double largest = 0.0;
  for (const std::string& name : expected_.names()) {
    if (!name.starts_with("latents.")) {
      continue;
    }
    SCOPED_TRACE(name);
    write(path_ / "scheduler/scheduler_config.json", expected_.metadata(name));
    const double difference = relative(drawn(), expected_.read(name));
    largest = std::max(largest, difference);
    EXPECT_LT(difference, 1e-4);
    ++count;
  }
  EXPECT_EQ(count, 23);
  RecordProperty("largest_difference", std::to_string(largest));
}

TEST_F(DitPipelineTest, ThePrecisionOfItsWeightsIsKnownAndTheCpuTakesFp32) {
  EXPECT_EQ(stored_precision(WeightsFile::open(path_ / "transformer")), Precision::kBf16);
  EXPECT_EQ(stored_precision(expected_), Precision::kFp16);  // the pictures
  EXPECT_EQ(read_recipe(path_, kOnCpu).precision, Precision::kFp32);
}

TEST_F(DitPipelineTest, WhatIsMissingOrOfAnotherKindIsNamedWithItsPath) {
  const fs::path index = path_ / "model_index.json";
  json values = read(index);
  values["id2label"]["1000"] = "one too many";
  write(index, values.dump());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path_, kOnCpu); }),
              AllOf(HasSubstr(index.string()), HasSubstr("0 to 999"), HasSubstr("\"1000\"")));
  values["id2label"] = json::array();
  write(index, values.dump());
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return read_recipe(path_, kOnCpu); }),
              HasSubstr("id2label is of another kind"));
  fs::copy(folder() / "model_index.json", index, fs::copy_options::overwrite_existing);

  const fs::path scheduler = path_ / "scheduler/scheduler_config.json";
  write(scheduler, R"({"_class_name": "EDMEulerScheduler"})");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path_, kOnCpu); }),
              AllOf(HasSubstr(scheduler.string()), HasSubstr("EDMEulerScheduler")));
  fs::remove(scheduler);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return read_recipe(path_, kOnCpu); }),
              HasSubstr(scheduler.string()));
}

}  // namespace dit_pipeline_test
}  // namespace kinora::inference
