// examples/train_anything and examples/divide_anything, as a user starts them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/launcher.h"
#include "tests/places.h"

namespace kinora::train {
namespace example_test {

namespace fs = std::filesystem;

/// The losses that rank 0 of the program says, in an empty folder.
std::vector<double> losses_of(const std::string& program, const std::string& arguments,
                              int64_t num_ranks, const fs::path& folder) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string command = "cd '" + folder.string() + "' && exec '" +
                              build_path(program).string() + "' " + arguments + " > said-$RANK";
  LaunchOptions options;
  options.command = {"sh", "-c", command};
  options.num_ranks = num_ranks;
  options.environment = {"OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES="};
  const LaunchResult result = launch_ranks(options);
  EXPECT_EQ(exit_status(result), 0) << describe_failure(result);
  std::ifstream said(folder / "said-0");
  std::vector<double> losses;
  std::string word;
  for (double value = 0.0; said >> word;) {
    if (word == "loss" && said >> value) {
      losses.push_back(value);
    }
  }
  return losses;
}

class ExampleTest : public testing::TestWithParam<int64_t> {};

TEST_P(ExampleTest, LearnsOnRanks) {
  const fs::path folder = testing::TempDir() + "kinora-example-" + std::to_string(GetParam());
  const std::vector<double> losses = losses_of("train_anything", "", GetParam(), folder);
  ASSERT_EQ(losses.size(), 6U);
  EXPECT_LT(losses.back(), 0.2 * losses.front());
  EXPECT_TRUE(fs::exists(folder / "train_anything.safetensors"));
  fs::remove_all(folder);
}

TEST(DivideAnythingTest, LearnsOnRanks) {
  const fs::path folder = testing::TempDir() + "kinora-divide-anything";
  for (const auto& [model, num_ranks] :
       {std::pair("gpt layers", 1), std::pair("gpt layers", 4), std::pair("resnet layers", 2),
        std::pair("gpt stages", 4), std::pair("resnet stages", 2)}) {
    const std::vector<double> losses = losses_of("divide_anything", model, num_ranks, folder);
    ASSERT_EQ(losses.size(), 4U) << model;
    EXPECT_LT(losses.back(), 0.2 * losses.front()) << model << " on " << num_ranks;
  }
  fs::remove_all(folder);
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ExampleTextTest, IsThatOfTheDocumentation) {
  const std::string program = text_of(source_path("examples/train_anything/main.cc"));
  const size_t begin = program.find("int main()");
  ASSERT_NE(begin, std::string::npos);
  const std::string page = text_of(source_path("docs/booster.md"));
  EXPECT_NE(page.find(program.substr(begin)), std::string::npos);
  const std::string divides = text_of(source_path("examples/divide_anything/main.cc"));
  const size_t rules = divides.find("  inline static const std::vector<LayerRule> kRules");
  ASSERT_NE(rules, std::string::npos);
  const std::string table = divides.substr(rules, divides.find("};\n", rules) - rules);
  EXPECT_NE(page.find(table), std::string::npos);
  const size_t step = divides.find("    boosted.execute_pipeline(");
  ASSERT_NE(step, std::string::npos);
  const std::string call = divides.substr(step, divides.find("boosted.step();", step) - step);
  EXPECT_NE(page.find(call), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ExampleTest, testing::Values(1, 2),
                         testing::PrintToStringParamName());

}  // namespace example_test
}  // namespace kinora::train
