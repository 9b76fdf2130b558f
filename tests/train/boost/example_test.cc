// examples/train_anything, as a user starts it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kinora/core/launcher.h"
#include "tests/places.h"

namespace kinora::train {
namespace example_test {

namespace fs = std::filesystem;

class ExampleTest : public testing::TestWithParam<int64_t> {};

TEST_P(ExampleTest, LearnsOnRanks) {
  const fs::path folder = testing::TempDir() + "kinora-example-" + std::to_string(GetParam());
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string command = "cd '" + folder.string() + "' && exec '" +
                              build_path("train_anything").string() + "' > said-$RANK";
  LaunchOptions options;
  options.command = {"sh", "-c", command};
  options.num_ranks = GetParam();
  options.environment = {"OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES="};
  const LaunchResult result = launch_ranks(options);
  ASSERT_EQ(exit_status(result), 0) << describe_failure(result);
  std::ifstream said(folder / "said-0");
  std::vector<double> losses;
  std::string word;
  for (double value = 0.0; said >> word;) {
    if (word == "loss" && said >> value) {
      losses.push_back(value);
    }
  }
  ASSERT_EQ(losses.size(), 6U);
  EXPECT_LT(losses.back(), 0.2 * losses.front());
  EXPECT_TRUE(fs::exists(folder / "train_anything.safetensors"));
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
  EXPECT_NE(text_of(source_path("docs/booster.md")).find(program.substr(begin)), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ExampleTest, testing::Values(1, 2),
                         testing::PrintToStringParamName());

}  // namespace example_test
}  // namespace kinora::train
