#include "kinora/device/gpu_profile.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/device/device.h"
#include "kinora/device/gpu_trace.h"

namespace kinora::device {
namespace gpu_profile_test {

using Kind = GpuEvent::Kind;

TEST(GpuProfileTest, AddsUpByNameAndClass) {
  GpuRecords records;
  records.names = {"nvjet_a", "nvjet_b", "at::native::vectorized_elementwise_kernel<4>"};
  records.events = {
      {.kind = Kind::kKernel, .name = 0, .start_ns = 100, .end_ns = 200},
      {.kind = Kind::kKernel, .name = 1, .start_ns = 200, .end_ns = 500},
      {.kind = Kind::kKernel, .name = 0, .start_ns = 500, .end_ns = 650},
      {.kind = Kind::kKernel, .name = 2, .start_ns = 700, .end_ns = 710},
      {.kind = Kind::kDeviceToHost, .start_ns = 720, .end_ns = 740, .bytes = 4},
      {.kind = Kind::kDeviceToHost, .start_ns = 740, .end_ns = 760, .bytes = 4, .pageable = true},
      {.kind = Kind::kMemset, .start_ns = 760, .end_ns = 761, .bytes = 64}};
  records.waits = {"cudaStreamSynchronize", "cudaMemcpy", "cudaStreamSynchronize"};
  records.dropped = 3;
  const GpuProfile profile = profile_of(records);

  ASSERT_EQ(profile.kernels.size(), 5U);
  EXPECT_EQ(profile.kernels[0].name, "nvjet_b");
  EXPECT_EQ(profile.kernels[1].name, "nvjet_a");
  EXPECT_EQ(profile.kernels[1].launches, 2);
  EXPECT_NEAR(profile.kernels[1].seconds, 250e-9, 1e-15);
  EXPECT_EQ(profile.kernels[2].name, "[copy device to host]");
  EXPECT_EQ(profile.kernels[2].bytes, 8);
  EXPECT_EQ(profile.kernels[4].name, "[memset]");

  ASSERT_EQ(profile.classes.size(), 3U);
  EXPECT_EQ(profile.classes[0].kind, KernelClass::kGemm);
  EXPECT_EQ(profile.classes[0].launches, 3);
  EXPECT_NEAR(profile.classes[0].seconds, 550e-9, 1e-15);
  EXPECT_EQ(profile.classes[1].kind, KernelClass::kCopy);
  EXPECT_EQ(profile.classes[2].kind, KernelClass::kElementwise);

  EXPECT_NEAR(profile.span_seconds, 661e-9, 1e-15);
  EXPECT_NEAR(profile.busy_seconds, 601e-9, 1e-15);
  EXPECT_NEAR(profile.longest_gap_seconds, 50e-9, 1e-15);
  EXPECT_EQ(profile.synchronise_calls, 3);
  EXPECT_EQ(profile.waits.at("cudaStreamSynchronize"), 2);
  EXPECT_EQ(profile.device_to_host_copies, 2);
  EXPECT_EQ(profile.pageable_copies, 1);
  EXPECT_EQ(profile.dropped, 3);
}

TEST(GpuProfileTest, StreamsThatOverlapAreBusyOnce) {
  GpuRecords records;
  records.names = {"a"};
  records.events = {{.start_ns = 50, .end_ns = 60},  // out of order
                    {.start_ns = 0, .end_ns = 30},
                    {.start_ns = 10, .end_ns = 20},
                    {.start_ns = 25, .end_ns = 40}};
  const GpuProfile profile = profile_of(records);
  EXPECT_NEAR(profile.span_seconds, 60e-9, 1e-15);
  EXPECT_NEAR(profile.busy_seconds, 50e-9, 1e-15);
  EXPECT_NEAR(profile.kernels[0].seconds, 65e-9, 1e-15);
}

TEST(GpuProfileTest, CommunicationIsExposedWhereNothingElseRuns) {
  GpuRecords records;
  records.names = {"nvjet_a", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"};
  records.events = {{.name = 0, .stream = 7, .start_ns = 0, .end_ns = 30},
                    {.name = 1, .stream = 20, .start_ns = 10, .end_ns = 50},
                    {.name = 0, .stream = 7, .start_ns = 40, .end_ns = 60},
                    {.name = 1, .stream = 20, .start_ns = 70, .end_ns = 75}};
  const GpuProfile profile = profile_of(records);
  EXPECT_NEAR(profile.busy_seconds, 65e-9, 1e-15);
  EXPECT_NEAR(profile.exposed_communication_seconds, 15e-9, 1e-15);
}

TEST(GpuProfileTest, ChromeTraceHasEveryEvent) {
  GpuRecords records;
  records.names = {"void f<\"a\">(int)"};
  records.events = {
      {.name = 0, .stream = 7, .start_ns = 5000, .end_ns = 7500},
      {.kind = GpuEvent::Kind::kMemset, .stream = 8, .start_ns = 3000, .end_ns = 4000}};
  const auto json = nlohmann::json::parse(chrome_trace(records, 3));
  ASSERT_EQ(json["traceEvents"].size(), 2U);
  const auto& kernel = json["traceEvents"][0];
  EXPECT_EQ(kernel["ph"], "X");
  EXPECT_EQ(kernel["pid"], 3);
  EXPECT_EQ(kernel["tid"], 7);
  EXPECT_EQ(kernel["ts"], 2.0);
  EXPECT_EQ(kernel["dur"], 2.5);
  EXPECT_EQ(json["traceEvents"][1]["name"], "[memset]");
  EXPECT_TRUE(nlohmann::json::parse(chrome_trace({}, 0))["traceEvents"].empty());
}

TEST(GpuProfileTest, NothingIsNothing) {
  const GpuProfile profile = profile_of({});
  EXPECT_TRUE(profile.kernels.empty());
  EXPECT_EQ(profile.span_seconds, 0.0);
}

TEST(GpuTraceTest, SaysWhyThereIsNone) {
  if (best_device().is_cuda()) {
    GTEST_SKIP() << "there is a GPU";
  }
  GpuTrace trace;
  try {
    trace.start();
    FAIL() << "a trace without a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCuda) << error.what();
  }
  EXPECT_THROW((void)trace.stop(), Error);
}

}  // namespace gpu_profile_test
}  // namespace kinora::device
