#include "tests/kernels/device_array.h"

namespace kinora::kernels {
namespace gpu_random_test {

using GpuRandomTest = GpuTest;

constexpr Distribution kDistributions[] = {Distribution::kNormal, Distribution::kUniform,
                                           Distribution::kSymmetricUniform};

TEST_F(GpuRandomTest, BitsEqualTheCpuAtOddSizesAndOffsets) {
  const std::vector<int64_t> samples = {5, 0, int64_t{1} << 33};
  const DeviceArray<int64_t> device_samples(samples);
  for (const Distribution distribution : kDistributions) {
    for (const int64_t row_size : {1, 2, 3, 4, 5, 31, 64, 3 * 32 * 32, 99'999}) {
      for (const uint64_t first : {uint64_t{0}, uint64_t{3}, uint64_t{8}, uint64_t{1} << 33}) {
        for (const size_t misalignment : {0, 1}) {
          const RandomStream stream{17, 0, 3, RandomPurpose::kNoise};
          std::vector<float> expected(samples.size() * static_cast<size_t>(row_size));
          for (size_t row = 0; row < samples.size(); ++row) {
            RandomStream row_stream = stream;
            row_stream.sample = static_cast<uint64_t>(samples[row]);
            random_fill(expected.data() + row * static_cast<size_t>(row_size), row_size, row_stream,
                        first, distribution, 0.7F);
          }
          const DeviceArray<float> out(std::vector<float>(expected.size()), misalignment);
          ASSERT_EQ(cuda::random_fill(out.data(), 3, row_size, device_samples.data(), nullptr,
                                      stream, nullptr, first, distribution, 0.7F, nullptr),
                    cudaSuccess);
          ASSERT_EQ(out.host(), expected) << "row_size " << row_size << ", first " << first;
        }
      }
    }
  }
}

TEST_F(GpuRandomTest, BitsEqualTheCpuOverMillions) {
  const RandomStream stream{1, 99, 0, RandomPurpose::kInit};
  for (const Distribution distribution : kDistributions) {
    std::vector<float> expected(1 << 24);
    const auto count = static_cast<int64_t>(expected.size());
    random_fill(expected.data(), count, stream, 0, distribution, 1.0F);
    const DeviceArray<float> out(std::vector<float>(expected.size()));
    ASSERT_EQ(cuda::random_fill(out.data(), 1, count, nullptr, nullptr, stream, nullptr, 0,
                                distribution, 1.0F, nullptr),
              cudaSuccess);
    EXPECT_TRUE(out.host() == expected);
  }
}

TEST_F(GpuRandomTest, NothingIsDrawnForNoRows) {
  EXPECT_EQ(cuda::random_fill(nullptr, 0, 4, nullptr, nullptr, {}, nullptr, 0,
                              Distribution::kNormal, 1.0F, nullptr),
            cudaSuccess);
  EXPECT_EQ(cuda::random_fill(nullptr, 4, 0, nullptr, nullptr, {}, nullptr, 0,
                              Distribution::kNormal, 1.0F, nullptr),
            cudaSuccess);
}

TEST_F(GpuRandomTest, StepInDeviceMemoryStandsInForTheStreams) {
  RandomStream stream{.seed = 5, .sample = 2, .step = 11, .purpose = RandomPurpose::kTest};
  std::vector<float> expected(1000);
  random_fill(expected.data(), 1000, stream, 0, Distribution::kNormal, 1.0F);
  stream.step = 0;
  const DeviceArray<int64_t> step({11});
  const DeviceArray<float> out(std::vector<float>(expected.size()));
  ASSERT_EQ(cuda::random_fill(out.data(), 1, 1000, nullptr, nullptr, stream, step.data(), 0,
                              Distribution::kNormal, 1.0F, nullptr),
            cudaSuccess);
  EXPECT_EQ(out.host(), expected);
}

TEST_F(GpuRandomTest, RowsHaveSeedsOfTheirOwn) {
  const DeviceArray<int64_t> samples({4, 4, 7});
  const DeviceArray<int64_t> seeds({3, -1, 3});  // -1: the largest unsigned one
  const uint64_t wanted_seeds[] = {3, ~uint64_t{0}, 3};
  const uint64_t wanted_samples[] = {4, 4, 7};
  std::vector<float> expected(3 * 10);
  for (size_t row = 0; row < 3; ++row) {
    random_fill(expected.data() + row * 10, 10,
                {wanted_seeds[row], wanted_samples[row], 2, RandomPurpose::kTest}, 0,
                Distribution::kNormal, 1.0F);
  }
  const DeviceArray<float> out(std::vector<float>(expected.size()));
  ASSERT_EQ(cuda::random_fill(out.data(), 3, 10, samples.data(), seeds.data(),
                              {9, 9, 2, RandomPurpose::kTest}, nullptr, 0, Distribution::kNormal,
                              1.0F, nullptr),
            cudaSuccess);
  EXPECT_EQ(out.host(), expected);
}

}  // namespace gpu_random_test
}  // namespace kinora::kernels
