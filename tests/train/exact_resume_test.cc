#include "kinora/train/exact_resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kinora/core/build_info.h"
#include "kinora/core/error.h"

namespace kinora::train {
namespace exact_resume_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RunConfig deterministic(bool is_deterministic = true) {
  RunConfig config;
  config.deterministic = is_deterministic;
  return config;
}

std::string log_of(const std::function<void()>& call) {
  testing::internal::CaptureStderr();
  call();
  return testing::internal::GetCapturedStderr();
}

constexpr const char* kLine =
    "NVIDIA H200|130100|m=16 n=16 k=16 a=BF16 b=BF16 d=BF16 ld=16,16,16|id=66 tile=23 split_k=1 "
    "reduction=0 swizzle=0 custom=0 stages=36 inner_shape=0 cluster_shape=0|ns=0|";

TEST(ExactResumeTest, OnlyDeterministicRunsPin) {
  checkpoint::TrainingState state;
  keep_for_resume(deterministic(), at::kCPU, nullptr, state);
  ASSERT_TRUE(state.pinned.has_value());
  EXPECT_EQ(state.pinned->versions.at("libtorch"), build_info().libtorch);
  EXPECT_THAT(state.pinned->versions.at("Kinora"), HasSubstr(std::string(build_info().commit)));
  EXPECT_THAT(state.pinned->products, IsEmpty());
  state.fp8.emplace();  // of the run before, which was in fp8
  keep_for_resume(deterministic(false), at::kCPU, nullptr, state);
  EXPECT_FALSE(state.pinned.has_value());
  EXPECT_FALSE(state.fp8.has_value());
}

TEST(ExactResumeTest, NothingIsSaidWhereAllIsAsItWas) {
  const ops::BlockKernels kernels({}, at::kCPU, at::kFloat, true);
  for (const bool is_deterministic : {false, true}) {
    const RunConfig config = deterministic(is_deterministic);
    checkpoint::TrainingState state;
    keep_for_resume(config, at::kCPU, &kernels, state);
    ops::BlockKernels next({}, at::kCPU, at::kFloat, true);
    EXPECT_EQ(log_of([&] { resume_exactly(config, at::kCPU, state, &next); }), "");
  }
}

TEST(ExactResumeTest, WhatDiffersIsNamed) {
  checkpoint::TrainingState state;
  state.pinned = {.versions = {{"libtorch", std::string(build_info().libtorch)},
                               {"cuDNN", "91300"},
                               {"Kinora", "0.0.1 of commit 0123456789ab"}},
                  .products = {kLine, kLine}};
  ops::BlockKernels kernels({}, at::kCPU, at::kFloat, true);
  const std::string log =
      log_of([&] { resume_exactly(deterministic(), at::kCPU, state, &kernels); });
  EXPECT_THAT(log, HasSubstr("cuDNN was 91300 and is now none"));
  EXPECT_THAT(log, HasSubstr("Kinora was 0.0.1 of commit 0123456789ab and is now "));
  EXPECT_THAT(log, HasSubstr("2 of the 2 algorithms"));
  EXPECT_EQ(log.find("libtorch was"), std::string::npos);
  EXPECT_EQ(log_of([&] { resume_exactly(deterministic(false), at::kCPU, state, &kernels); }), "")
      << "a run that is not deterministic needs none of it";
}

TEST(ExactResumeTest, OlderCheckpointsPinNothing) {
  EXPECT_THAT(log_of([] { resume_exactly(deterministic(), at::kCPU, {}, nullptr); }),
              HasSubstr("the checkpoint pins no algorithms"));
  EXPECT_EQ(log_of([] { resume_exactly(deterministic(false), at::kCPU, {}, nullptr); }), "");
}

TEST(ExactResumeTest, LinesThatCannotBeReadAreRefused) {
  checkpoint::TrainingState state;
  state.pinned = {.versions = {}, .products = {kLine, "NVIDIA H200|130100|m=16|id=66"}};
  try {
    resume_exactly(deterministic(), at::kCPU, state, nullptr);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), HasSubstr("cannot be read, got \"NVIDIA H200|130100|m=16|id=66\""));
    EXPECT_THAT(error.what(), HasSubstr("Hint"));
  }
  resume_exactly(deterministic(false), at::kCPU, state, nullptr);
}

TEST(ExactResumeTest, VersionChangesAreInOrderOfNames) {
  EXPECT_THAT(
      version_changes({{"a", "1"}, {"c", "3"}, {"d", "4"}}, {{"b", "2"}, {"c", "5"}, {"d", "4"}}),
      ElementsAre("a was 1 and is now none", "b was none and is now 2", "c was 3 and is now 5"));
}

}  // namespace exact_resume_test
}  // namespace kinora::train
