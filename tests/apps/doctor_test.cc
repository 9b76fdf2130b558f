// kinora doctor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "kinora/core/build_info.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace doctor_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

class DoctorTest : public RunTest {
 protected:
  /// Findings by "section: name".
  std::map<std::string, nlohmann::json> find(const Arguments& more = {}) const {
    fs::create_directories(measured());
    Arguments arguments = {"doctor", "--json", "--folder", measured().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_kinora(arguments, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::map<std::string, nlohmann::json> findings;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      findings[json.at("section").get<std::string>() + ": " + json.at("name").get<std::string>()] =
          json;
    }
    return findings;
  }
  [[nodiscard]] fs::path measured() const { return folder() / "disk"; }
};

TEST_F(DoctorTest, MeasuresTheMachineAndLeavesNothingBehind) {
  const auto findings = find();
  for (const char* name :
       {"program: kinora", "program: libtorch", "host: processors", "host: memory", "host: locale",
        "limits: open files", "disk: read", "disk: write, to the device"}) {
    EXPECT_EQ(findings.count(name), 1U) << name;
  }
  // Between a slow old core and all the processors of a large machine.
  const double flops = findings.at("speed: fp32 matrix product, 1024 cubed").at("number");
  EXPECT_GT(flops, 1e8);
  EXPECT_LT(flops, 1e14);
  const double copy = findings.at("speed: copy within memory, read and written").at("number");
  EXPECT_GT(copy, 1e7);
  EXPECT_LT(copy, 1e13);
  EXPECT_THAT(findings.at("kernels: DiT-XL/2 at 256 px, fp32").at("value").get<std::string>(),
              HasSubstr("plain path"));
  EXPECT_TRUE(fs::is_empty(measured()));
  EXPECT_EQ(findings.count("program: TIFF"), 1U);
  const auto gpus = findings.find("gpu: GPUs");  // where there is none
  if (gpus != findings.end() && !fs::exists("/proc/driver/nvidia/version") &&
      build_info().has_cuda) {
    EXPECT_EQ(gpus->second.at("value"), "none: no NVIDIA driver found");
  }
}

TEST_F(DoctorTest, RanksMeasureTheirCollectives) {
  const auto findings = find({"--ranks", "2"});
  const nlohmann::json& found = findings.at("collectives: all_reduce of 2 ranks, sent by each");
  if (found.contains("number")) {
    EXPECT_GT(found.at("number").get<double>(), 1e5);
  } else {  // on a busy machine
    EXPECT_THAT(found.at("value").get<std::string>(), HasSubstr("larger messages took no longer"));
  }
}

TEST_F(DoctorTest, AFolderThatIsNotThereIsAnError) {
  const Outcome outcome =
      run_kinora({"doctor", "--folder", (folder() / "none").string()}, folder());
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("none"));
}

}  // namespace doctor_test
}  // namespace kinora::apps
