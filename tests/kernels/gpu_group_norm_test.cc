#include <cmath>

#include "kinora/kernels/cuda/group_norm.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/group_norm_case.h"

namespace kinora::kernels {
namespace gpu_group_norm_test {

using GpuGroupNormTest = GpuTest;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Shape {
  int64_t batch, places, channels, groups;
};

// One launch: a group that is a vector, fewer places than a cluster has blocks or a block has rows,
// groups that share a vector, those of U-Nets, clusters of 1, 2, 4 and 8 blocks, the widest group,
// one group.
// Three launches: groups that no slab holds, more vectors than a block has threads, also in unequal
// parts, images too large for a cluster.
constexpr Shape kShapes[] = {
    {1, 3, 64, 8},      {3, 5, 320, 32},    {2, 64, 1280, 32},  {2, 63, 2560, 32},
    {1, 513, 640, 32},  {2, 1025, 320, 32}, {1, 4096, 320, 32}, {1, 1000, 1920, 32},
    {2, 130, 2560, 10}, {1, 77, 40, 1},     {2, 100, 264, 8},   {1, 130, 4104, 24},
    {2, 65, 2040, 8},   {1, 4400, 960, 32},
};

/// Which gradients backward is asked for.
struct Wanted {
  bool dx = true;
  bool parameters = true;
  bool doffset = true;
};

/// The kernels' results; what is not wanted stays zero.
GroupNormResults gpu_results(const GroupNormCase& of, bool keeps_statistics, const Wanted& wanted) {
  GroupNormResults results(of);
  const DeviceArray<uint8_t> x(of.x);
  const DeviceArray<uint8_t> dy(of.dy);
  const DeviceArray<uint8_t> weight(of.weight);
  const DeviceArray<uint8_t> bias(of.bias);
  const DeviceArray<uint8_t> channel_bias(of.channel_bias);
  const DeviceArray<uint8_t> offset(of.offset);
  const DeviceArray<uint8_t> y(results.y);
  const DeviceArray<float> factors(results.factors);
  const DeviceArray<float> rstd(results.rstd);
  const DeviceArray<uint8_t> dx(results.dx);
  const DeviceArray<uint8_t> dweight(results.dweight);
  const DeviceArray<uint8_t> dbias(results.dbias);
  const DeviceArray<uint8_t> dchannel_bias(results.dchannel_bias);
  const DeviceArray<uint8_t> doffset(results.doffset);
  GroupNormForward forward;
  forward.shape = of.shape;
  forward.epsilon = of.epsilon;
  forward.silu = of.silu;
  forward.x = x.data();
  forward.weight = {weight.data(), of.vector_type};
  forward.bias = {bias.data(), of.vector_type};
  if (of.terms) {
    forward.channel_bias = {channel_bias.data(), of.vector_type};
    forward.offset = {offset.data(), of.shape.type};
  }
  forward.y = y.data();
  if (keeps_statistics) {
    forward.statistics = {factors.data(), rstd.data()};
  }
  {
    const DeviceArray<uint8_t> workspace(
        std::vector<uint8_t>(cuda::group_norm_forward_workspace_bytes(forward)));
    EXPECT_EQ(cuda::group_norm_forward(forward, workspace.data(), nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  results.y = y.host();
  if (!keeps_statistics) {
    return results;
  }
  GroupNormBackward backward;
  backward.shape = of.shape;
  backward.silu = of.silu;
  backward.dy = dy.data();
  backward.x = x.data();
  backward.statistics = forward.statistics;
  backward.dx = wanted.dx ? dx.data() : nullptr;
  if (wanted.parameters) {
    backward.dweight = {dweight.data(), of.vector_type};
    backward.dbias = {dbias.data(), of.vector_type};
    backward.dchannel_bias = {dchannel_bias.data(), of.vector_type};
  }
  if (wanted.doffset) {
    backward.doffset = {doffset.data(), of.shape.type};
  }
  const DeviceArray<uint8_t> workspace(
      std::vector<uint8_t>(cuda::group_norm_backward_workspace_bytes(backward)));
  EXPECT_EQ(cuda::group_norm_backward(backward, workspace.data(), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  results.factors = factors.host();
  results.rstd = rstd.host();
  results.dx = dx.host();
  results.dweight = dweight.host();
  results.dbias = dbias.host();
  results.dchannel_bias = dchannel_bias.host();
  results.doffset = doffset.host();
  return results;
}

void expect_equal(const GroupNormResults& got, const GroupNormResults& want) {
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.factors, want.factors);
  EXPECT_EQ(got.rstd, want.rstd);
  EXPECT_EQ(got.dx, want.dx);
  EXPECT_EQ(got.dweight, want.dweight);
  EXPECT_EQ(got.dbias, want.dbias);
  EXPECT_EQ(got.dchannel_bias, want.dchannel_bias);
  EXPECT_EQ(got.doffset, want.doffset);
}

void expect_close_to_reference(const GroupNormCase& of, const GroupNormResults& got) {
  const GroupNormResults want = reference_results(of);
  const DType type = of.shape.type;
  // Sums of so many numbers of about 1 have errors of about their square root's.
  const double of_image = std::sqrt(static_cast<double>(of.shape.places));
  const double of_batch = of_image * std::sqrt(static_cast<double>(of.shape.batch));
  expect_close(decode(got.y, type), decode(want.y, type), type, 4.0, "y");
  expect_close(got.factors, want.factors, DType::kF32, 4.0, "factors");
  expect_close(got.rstd, want.rstd, DType::kF32, 1.0, "rstd");
  expect_close(decode(got.dx, type), decode(want.dx, type), type, 4.0, "dx");
  expect_close(decode(got.dweight, of.vector_type), decode(want.dweight, of.vector_type),
               of.vector_type, 4.0 * of_batch, "dweight");
  expect_close(decode(got.dbias, of.vector_type), decode(want.dbias, of.vector_type),
               of.vector_type, 4.0 * of_batch, "dbias");
  expect_close(decode(got.dchannel_bias, of.vector_type),
               decode(want.dchannel_bias, of.vector_type), of.vector_type, 4.0 * of_batch,
               "dchannel_bias");
  expect_close(decode(got.doffset, type), decode(want.doffset, type), type, 4.0 * of_image,
               "doffset");
}

TEST_F(GpuGroupNormTest, EqualsTheCpuAndItself) {
  for (const DType type : kTypes) {
    for (const Shape& s : kShapes) {
      const GroupNormShape shape = {s.batch, s.places, s.channels, s.groups, type};
      const GroupNormCase given(shape, DType::kF32, /*with_silu=*/true, /*with_terms=*/true);
      SCOPED_TRACE(given.name());
      ASSERT_TRUE(cuda::group_norm_takes(shape));
      const GroupNormResults got = gpu_results(given, true, {});
      expect_close_to_reference(given, got);
      expect_equal(got, gpu_results(given, true, {}));  // the order of sums is fixed
      EXPECT_EQ(got.y, gpu_results(given, false, {}).y) << "without statistics";
    }
  }
}

// Of one launch and of three.
constexpr Shape kBothWays[] = {{2, 37, 320, 32}, {2, 70, 264, 8}};

TEST_F(GpuGroupNormTest, EveryVariantEqualsTheCpu) {
  for (const Shape& s : kBothWays) {
    for (const DType type : kTypes) {
      for (const DType vectors : {DType::kF32, type}) {
        for (const bool silu : {false, true}) {
          for (const bool terms : {false, true}) {
            const GroupNormCase given({s.batch, s.places, s.channels, s.groups, type}, vectors,
                                      silu, terms);
            SCOPED_TRACE(given.name());
            expect_close_to_reference(given, gpu_results(given, true, {}));
          }
        }
      }
    }
  }
}

TEST_F(GpuGroupNormTest, OnlyWhatIsWantedIsWritten) {
  for (const Shape& s : kBothWays) {
    const GroupNormCase given({s.batch, s.places, s.channels, s.groups, DType::kBF16}, DType::kF32,
                              true, true);
    SCOPED_TRACE(given.name());
    const GroupNormResults all = gpu_results(given, true, {});
    const GroupNormResults none(given);
    for (int bits = 0; bits < 8; ++bits) {
      const Wanted wanted = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
      const GroupNormResults got = gpu_results(given, true, wanted);
      EXPECT_EQ(got.dx, (wanted.dx ? all : none).dx);
      EXPECT_EQ(got.dweight, (wanted.parameters ? all : none).dweight);
      EXPECT_EQ(got.dbias, (wanted.parameters ? all : none).dbias);
      EXPECT_EQ(got.dchannel_bias, (wanted.parameters ? all : none).dchannel_bias);
      EXPECT_EQ(got.doffset, (wanted.doffset ? all : none).doffset);
    }
  }
}

// A mean of 32 deviations: the variance is the difference of sums 1000 times as large, so of fp32's
// 24 bits 14 remain.
TEST_F(GpuGroupNormTest, ALargeMeanCostsLittle) {
  for (const Shape& s : kBothWays) {
    GroupNormCase given({s.batch, s.places, s.channels, s.groups, DType::kF32}, DType::kF32, true,
                        false);
    SCOPED_TRACE(given.name());
    std::vector<float> x = decode(given.x, DType::kF32);
    for (float& value : x) {
      value += 64.0F;
    }
    given.x = encode(x, DType::kF32);
    const GroupNormResults want = reference_results(given);
    const GroupNormResults got = gpu_results(given, true, {});
    constexpr double kMagnitude = 64.0;  // of numbers of up to 8: 6.4e-4
    expect_close(decode(got.y, DType::kF32), decode(want.y, DType::kF32), DType::kF32, kMagnitude,
                 "y");
    expect_close(decode(got.dx, DType::kF32), decode(want.dx, DType::kF32), DType::kF32, kMagnitude,
                 "dx");
    expect_close(decode(got.dweight, DType::kF32), decode(want.dweight, DType::kF32), DType::kF32,
                 8.0 * kMagnitude, "dweight");
  }
}

TEST_F(GpuGroupNormTest, OtherShapesAreRefused) {
  const auto takes = [](int64_t batch, int64_t channels, int64_t groups, DType type) {
    return cuda::group_norm_takes({batch, 1, channels, groups, type});
  };
  EXPECT_TRUE(takes(2, 2560, 32, DType::kBF16));
  EXPECT_TRUE(takes(2, 12, 3, DType::kF32));
  EXPECT_FALSE(takes(2, 12, 3, DType::kBF16)) << "half a vector";
  EXPECT_FALSE(takes(2, 64, 3, DType::kBF16)) << "no whole groups";
  EXPECT_FALSE(takes(2, 64, 0, DType::kBF16));
  EXPECT_FALSE(takes(2, 514 * 8, 8, DType::kBF16)) << "groups too wide";
  EXPECT_FALSE(takes(32768, 64, 8, DType::kBF16)) << "the grid's second dim";
  EXPECT_FALSE(takes(2, 64, 8, DType::kF64));
  EXPECT_EQ(cuda::group_norm_forward({.shape = {1, 1, 12, 3, DType::kBF16}}, nullptr, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::group_norm_backward({.shape = {1, 1, 12, 3, DType::kBF16}}, nullptr, nullptr),
            cudaErrorInvalidValue);
}

TEST_F(GpuGroupNormTest, AnEmptyBatchIsNothing) {
  const GroupNormForward call = {.shape = {0, 4, 64, 8, DType::kBF16}};
  EXPECT_EQ(cuda::group_norm_forward_workspace_bytes(call), 0);
  EXPECT_EQ(cuda::group_norm_forward(call, nullptr, nullptr), cudaSuccess);
}

}  // namespace gpu_group_norm_test
}  // namespace kinora::kernels
