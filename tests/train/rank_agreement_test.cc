#include "kinora/train/rank_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kinora/core/config.h"
#include "kinora/parallel/bucket_groups.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace rank_agreement_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const at::Device kGpu(at::kCUDA, 0);
const comm::Link kLink{.latency = 50e-6, .bytes_per_s = 200e9};

RunConfig run_in(const fs::path& folder) {
  RunConfig config;
  config.run_dir = folder.string();
  config.train.device = DeviceChoice::kCpu;
  return config;
}

/// A run whose checkpoint of step 3 was trained with 17 MiB.
class BucketChoiceTest : public testing::Test {
 protected:
  BucketChoiceTest() {
    fs::create_directories(checkpoint());
    RunConfig before = run_in(folder_.path());
    before.parallel.bucket_mib = 17;
    std::ofstream(checkpoint() / "config.yaml") << dump_config(before);
  }

  [[nodiscard]] fs::path checkpoint() const { return folder_.path() / "checkpoints" / "step-3"; }

  data::TemporaryFolder folder_;
};

TEST_F(BucketChoiceTest, IsAsMeasuredWhereARunBegins) {
  const RunConfig config = run_in(folder_.path());
  const int64_t measured =
      parallel::choose_bucket_mib(kLink, comm::Operation::kReduceScatter, /*ranks=*/8);
  EXPECT_GT(measured, 0);
  EXPECT_EQ(bucket_mib_of(config, {}, kLink, 8, kGpu), measured);
  const Resume nothing_there{.mode = Resume::Mode::kAuto, .checkpoint = {}};
  EXPECT_EQ(bucket_mib_of(run_in(folder_.path() / "new"), nothing_there, kLink, 8, kGpu), measured);
}

TEST_F(BucketChoiceTest, IsThatOfTheCheckpointWhereARunGoesOn) {
  const RunConfig config = run_in(folder_.path());
  EXPECT_EQ(bucket_mib_of(config, {.mode = Resume::Mode::kAuto, .checkpoint = {}}, kLink, 8, kGpu),
            17);
  EXPECT_EQ(
      bucket_mib_of(run_in(folder_.path() / "new"),
                    {.mode = Resume::Mode::kPath, .checkpoint = checkpoint()}, kLink, 8, kGpu),
      17);
}

TEST_F(BucketChoiceTest, StaysWhereTheRunSaysItOrJoinsNoBuckets) {
  RunConfig config = run_in(folder_.path());
  EXPECT_EQ(bucket_mib_of(config, {}, kLink, 8, at::kCPU), 0);
  EXPECT_EQ(bucket_mib_of(config, {}, kLink, 1, kGpu), 0);
  config.plugin = "zero3";
  EXPECT_EQ(bucket_mib_of(config, {}, kLink, 8, kGpu), 0);
  config.plugin = "zero2";
  config.deterministic = true;
  EXPECT_EQ(bucket_mib_of(config, {}, kLink, 8, kGpu), 0);
  config.deterministic = false;
  config.parallel.bucket_mib = 5;
  EXPECT_EQ(bucket_mib_of(config, {}, kLink, 8, kGpu), 5);
}

TEST(RankAgreementTest, RanksWithOneConfigurationKeepIt) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const RunConfig config = run_in("run");
    testing::internal::CaptureStderr();
    const RunConfig agreed = agree_on_run(config, {}, world);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(dump_config(agreed), dump_config(config));
    if (world.rank() == 0) {
      EXPECT_THAT(said, HasSubstr("[train] self-check: 2 ranks on 1 host, with one program and "
                                  "configuration; all-reduce at "));
    }
  });
}

TEST(RankAgreementTest, AnotherConfigurationIsRefused) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = run_in("run");
    config.train.seed = world.rank();
    const ErrorKind kind = world.rank() == 1 ? ErrorKind::kConfig : ErrorKind::kComm;
    EXPECT_THAT(error_of(kind, [&] { return agree_on_run(config, {}, world); }),
                AllOf(HasSubstr("rank 1 on "), HasSubstr("seed: 1"), HasSubstr("seed: 0")));
  });
}

TEST(RankAgreementTest, OneRankAloneHasNothingToAgreeOn) {
  const RunConfig config = run_in("run");
  EXPECT_EQ(dump_config(agree_on_run(config, {}, {})), dump_config(config));
}

}  // namespace rank_agreement_test
}  // namespace kinora::train
