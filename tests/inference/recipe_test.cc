#include "kinora/inference/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "tests/error_of.h"

namespace kinora::inference {
namespace recipe_test {

using testing::HasSubstr;

// As a run writes it, and with sections that nobody has written yet.
const char* const kRun = R"(run:
  dir: runs/first
model:
  name: DiT-S/2
train:
  steps: 200
  precision: bf16
  recompute: block:3
parallel: {sequence: 2, tensor: 1}
lr.value: 1e-4
checkpoint: {every: 10, init_from: ""}
sample: {every: 5, steps: 7, format: webp}
ema: {decays: [0.5]}
)";

ModelRecipe recipe(const std::vector<std::string>& overrides = {}) {
  return parse_config<ModelRecipe>({.text = kRun, .origin = "run"}, overrides);
}

std::string refusal(const std::vector<std::string>& overrides) {
  return error_of(ErrorKind::kConfig, [&] { (void)recipe(overrides); });
}

TEST(ModelRecipeTest, ReadsARunAndSkipsWhatIsOfTraining) {
  const ModelRecipe read = recipe({"sample.guidance=3", "train.steps=5", "parallel.sequence=4"});
  EXPECT_EQ(read.model.name, "DiT-S/2");
  EXPECT_EQ(read.precision, Precision::kBf16);
  EXPECT_EQ(read.sample.sampling.steps, 7);
  EXPECT_EQ(read.sample.sampling.guidance, 3.0);
  EXPECT_EQ(read.ema_decays, std::vector<double>{0.5});
}

TEST(ModelRecipeTest, MistypedOverridesAreRefused) {
  EXPECT_THAT(refusal({"sample.stepz=3"}), HasSubstr("did you mean sample.steps?"));
  EXPECT_THAT(refusal({"modle.depth=3"}), HasSubstr("did you mean model.depth?"));
  EXPECT_THAT(refusal({"train.stpes=3"}), HasSubstr("unknown key train.stpes"));
  EXPECT_THAT(refusal({"train.precison=fp32"}), HasSubstr("did you mean train.precision?"));
  EXPECT_THAT(refusal({"sample.steps=0"}), HasSubstr("sample.steps must be"));
}

TEST(ModelRecipeTest, MistypedKeysOfTheModelAreRefused) {
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [] {
                 (void)parse_config<ModelRecipe>({.text = "model: {depht: 3}", .origin = "recipe"});
               }),
      HasSubstr("did you mean model.depth?"));
}

TEST(ModelRecipeTest, DumpParsesBackToTheSame) {
  const std::string dumped = dump_config(recipe());
  EXPECT_EQ(dump_config(parse_config<ModelRecipe>({.text = dumped, .origin = "dump"})), dumped);
}

}  // namespace recipe_test
}  // namespace kinora::inference
