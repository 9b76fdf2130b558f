#include <cmath>

#include "kinora/kernels/cuda/channel_norm.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_channel_norm_test {

using GpuChannelNormTest = GpuTest;

struct Shape {
  int64_t batch;
  int64_t places;
  int64_t channels;
};

// Fewer and more places than a block takes, vectors that do not divide its threads, more vectors
// than it has threads, also where its parts of them are not equal.
constexpr Shape kShapes[] = {{1, 1, 8},      {2, 63, 128},  {3, 4097, 40}, {1, 70'001, 128},
                             {2, 300, 1000}, {1, 17, 2560}, {2, 65, 2056}};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

std::vector<double> moments_on_gpu(const Shape& shape, DType type, const std::vector<uint8_t>& in) {
  const DeviceArray<uint8_t> device_in(in);
  const DeviceArray<double> out(
      std::vector<double>(static_cast<size_t>(2 * shape.batch * shape.channels)));
  const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(
      cuda::channel_moments_workspace_bytes(shape.batch, shape.places, shape.channels, type)));
  EXPECT_EQ(cuda::channel_moments({.batch = shape.batch,
                                   .places = shape.places,
                                   .channels = shape.channels,
                                   .type = type,
                                   .in = device_in.data(),
                                   .out = out.data()},
                                  workspace.data(), nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.host();
}

TEST_F(GpuChannelNormTest, MomentsEqualTheCpus) {
  for (const DType type : kTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << to_string(type) << " " << shape.batch << " x "
                                      << shape.places << " x " << shape.channels);
      const std::vector<uint8_t> in =
          encode(random_values(shape.batch * shape.places * shape.channels, 1), type);
      std::vector<double> want(static_cast<size_t>(2 * shape.batch * shape.channels));
      channel_moments({.batch = shape.batch,
                       .places = shape.places,
                       .channels = shape.channels,
                       .type = type,
                       .in = in.data(),
                       .out = want.data()});
      const std::vector<double> got = moments_on_gpu(shape, type, in);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        // fp32 sums of normal numbers, of which places' square root remains
        ASSERT_NEAR(got[i], want[i], 2e-6 * static_cast<double>(shape.places) + 1e-5) << i;
      }
      EXPECT_EQ(got, moments_on_gpu(shape, type, in)) << "the order must be fixed";
    }
  }
}

TEST_F(GpuChannelNormTest, AffineEqualsTheCpusInPlaceToo) {
  for (const DType type : kTypes) {
    for (const Shape& shape : kShapes) {
      for (const bool silu : {false, true}) {
        SCOPED_TRACE(testing::Message() << to_string(type) << " " << shape.batch << " x "
                                        << shape.places << " x " << shape.channels << silu);
        const int64_t factors = shape.batch * shape.channels;
        const std::vector<uint8_t> in =
            encode(random_values(factors * shape.places, 1, 8.0F), type);
        const std::vector<float> scale = random_values(factors, 2);
        const std::vector<float> shift = random_values(factors, 3);
        std::vector<uint8_t> want(in.size());
        ChannelAffine call = {.batch = shape.batch,
                              .places = shape.places,
                              .channels = shape.channels,
                              .type = type,
                              .in = in.data(),
                              .scale = scale.data(),
                              .shift = shift.data(),
                              .silu = silu,
                              .out = want.data()};
        channel_affine(call);
        const DeviceArray<uint8_t> both(in);
        const DeviceArray<float> device_scale(scale);
        const DeviceArray<float> device_shift(shift);
        call.in = both.data();
        call.out = both.data();
        call.scale = device_scale.data();
        call.shift = device_shift.data();
        EXPECT_EQ(cuda::channel_affine(call, nullptr), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        expect_close(decode(both.host(), type), decode(want, type), type, 1.0, "out");
      }
    }
  }
}

TEST_F(GpuChannelNormTest, EdgesComeAgainAsOnTheCpu) {
  const ChannelEdges edges_of[] = {{{5, 7, 9}, {2, 1, 1}, {0, 1, 1}},
                                   {{1, 64, 33}, {2, 0, 0}, {0, 0, 0}},
                                   {{2, 1, 1}, {0, 1, 2}, {1, 0, 3}}};
  for (const DType type : kTypes) {
    for (const ChannelEdges& edges : edges_of) {
      for (const bool silu : {false, true}) {
        constexpr int64_t kBatch = 2;
        constexpr int64_t kChannels = 40;
        const int64_t places = edges.sizes[0] * edges.sizes[1] * edges.sizes[2];
        const std::vector<uint8_t> in =
            encode(random_values(kBatch * places * kChannels, 1, 8.0F), type);
        const std::vector<float> scale = random_values(kBatch * kChannels, 2);
        const std::vector<float> shift = random_values(kBatch * kChannels, 3);
        std::vector<uint8_t> want(static_cast<size_t>(kBatch * edges.out_places() * kChannels) *
                                  size_of(type));
        ChannelAffine call = {.batch = kBatch,
                              .places = places,
                              .channels = kChannels,
                              .type = type,
                              .in = in.data(),
                              .scale = scale.data(),
                              .shift = shift.data(),
                              .silu = silu,
                              .out = want.data(),
                              .edges = edges};
        channel_affine(call);
        const DeviceArray<uint8_t> device_in(in);
        const DeviceArray<uint8_t> device_out(std::vector<uint8_t>(want.size()));
        const DeviceArray<float> device_scale(scale);
        const DeviceArray<float> device_shift(shift);
        call.in = device_in.data();
        call.out = device_out.data();
        call.scale = device_scale.data();
        call.shift = device_shift.data();
        EXPECT_EQ(cuda::channel_affine(call, nullptr), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        expect_close(decode(device_out.host(), type), decode(want, type), type, 1.0, "out");
      }
    }
  }
}

TEST_F(GpuChannelNormTest, NormsOverChannelsEqualTheCpus) {
  // Lanes that share a place: 1, 4 (three vectors of four), 8, 32; places that do not fill a warp.
  for (const DType type : kTypes) {
    for (const Shape& shape : {Shape{1, 1, 8}, Shape{2, 4097, 96}, Shape{1, 70'001, 96},
                               Shape{2, 63, 192}, Shape{3, 17, 512}, Shape{1, 5, 40}}) {
      for (const bool silu : {false, true}) {
        SCOPED_TRACE(testing::Message() << to_string(type) << " " << shape.batch << " x "
                                        << shape.places << " x " << shape.channels << silu);
        const int64_t out_places = shape.places + 3;
        std::vector<float> values =
            random_values(shape.batch * shape.places * shape.channels, 1, 8.0F);
        std::fill_n(values.begin(), shape.channels, 0.0F);  // a place of no length
        const std::vector<uint8_t> in = encode(values, type);
        const std::vector<float> weight = random_values(shape.channels, 2);
        std::vector<uint8_t> want(
            static_cast<size_t>(shape.batch * out_places * shape.channels) * size_of(type), 1);
        ChannelRms call = {.batch = shape.batch,
                           .places = shape.places,
                           .channels = shape.channels,
                           .type = type,
                           .in = in.data(),
                           .weight = weight.data(),
                           .factor = 3.0F,
                           .least = 1e-12F,
                           .silu = silu,
                           .out = want.data(),
                           .out_places = out_places};
        const DeviceArray<uint8_t> device_in(in);
        const DeviceArray<uint8_t> device_out(want);
        const DeviceArray<float> device_weight(weight);
        channel_rms(call);
        call.in = device_in.data();
        call.out = device_out.data();
        call.weight = device_weight.data();
        EXPECT_EQ(cuda::channel_rms(call, nullptr), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        expect_close(decode(device_out.host(), type), decode(want, type), type, 1.0, "out");
      }
    }
  }
}

TEST_F(GpuChannelNormTest, OtherWidthsAreRefused) {
  EXPECT_TRUE(cuda::channel_rms_takes(1024, DType::kBF16));
  EXPECT_FALSE(cuda::channel_rms_takes(1032, DType::kBF16));
  EXPECT_FALSE(cuda::channel_rms_takes(12, DType::kBF16));
  EXPECT_TRUE(cuda::channel_norm_takes(2056, DType::kBF16));
  EXPECT_FALSE(cuda::channel_norm_takes(12, DType::kBF16));
  EXPECT_TRUE(cuda::channel_norm_takes(12, DType::kF32));
  EXPECT_FALSE(cuda::channel_norm_takes(0, DType::kF32));
  EXPECT_EQ(cuda::channel_affine({.batch = 1, .places = 1, .channels = 12}, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace gpu_channel_norm_test
}  // namespace kinora::kernels
