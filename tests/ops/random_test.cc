#include "kinora/ops/random.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace random_test {

using kernels::Distribution;

at::Tensor index_of(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions(at::kLong));
}

at::Tensor normal(at::IntArrayRef shape, const at::Tensor& index) {
  return random_normal(shape, index, 5, 11, RandomPurpose::kNoise, at::kCPU);
}

TEST(RandomOpTest, RowsAreTheStreamsOfTheirSamples) {
  const at::Tensor got = normal({3, 2, 5}, index_of({9, 0, int64_t{1} << 40}));
  const int64_t samples[3] = {9, 0, int64_t{1} << 40};
  for (int64_t row = 0; row < 3; ++row) {
    float expected[10];
    const RandomStream stream{5, static_cast<uint64_t>(samples[row]), 11, RandomPurpose::kNoise};
    kernels::random_fill(expected, 10, stream, 0, Distribution::kNormal, 1.0F);
    const at::Tensor values = got[row].contiguous();
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(values.const_data_ptr<float>()[i], expected[i]);
    }
  }
}

TEST(RandomOpTest, RowsMayHaveSeedsOfTheirOwn) {
  const at::Tensor index = index_of({4, 4, 7});
  const at::Tensor got = random_normal({3, 10}, index, RandomSeed(index_of({3, -1, 5})), 11,
                                       RandomPurpose::kNoise, at::kCPU);
  const uint64_t seeds[] = {3, ~uint64_t{0}, 5};
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_TRUE(
        at::equal(got.narrow(0, row, 1), random_normal({1, 10}, index.narrow(0, row, 1), seeds[row],
                                                       11, RandomPurpose::kNoise, at::kCPU)));
  }
}

TEST(RandomOpTest, ARowDoesNotDependOnItsBatch) {
  const at::Tensor batch = normal({4, 3, 7}, index_of({3, 1, 4, 8}));
  const at::Tensor single = normal({1, 3, 7}, index_of({4}));
  EXPECT_TRUE(at::equal(batch[2], single[0]));
}

TEST(RandomOpTest, TheNumberOfThreadsChangesNothing) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = normal({2, 100'003}, index_of({0, 1}));
  at::set_num_threads(4);
  const at::Tensor four = normal({2, 100'003}, index_of({0, 1}));
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, four));
}

TEST(RandomOpTest, UniformsAreNotNormals) {
  const at::Tensor got =
      random_uniform({2, 1000}, index_of({0, 1}), 5, 11, RandomPurpose::kNoise, at::kCPU);
  EXPECT_GT(got.min().item<float>(), 0.0F);
  EXPECT_LT(got.max().item<float>(), 1.0F);
  EXPECT_NEAR(got.mean().item<float>(), 0.5F, 0.03F);
}

TEST(RandomOpTest, EmptyBatchesAreEmpty) {
  EXPECT_EQ(normal({0, 3}, index_of({})).numel(), 0);
  EXPECT_EQ(normal({2, 0}, index_of({1, 2})).numel(), 0);
}

TEST(RandomOpTest, FillOfASliceEqualsThatSliceOfTheWhole) {
  const RandomStream stream{1, random_name("blocks.0.attn.qkv.weight"), 0, RandomPurpose::kInit};
  const at::Tensor whole = at::empty({5, 40'001}, at::TensorOptions(at::kFloat));
  random_fill(whole, stream, Distribution::kSymmetricUniform, 0.02);
  const at::Tensor part = at::empty({1000}, at::TensorOptions(at::kFloat));
  random_fill(part, stream, Distribution::kSymmetricUniform, 0.02, 12'345);
  EXPECT_TRUE(at::equal(part, whole.view({-1}).narrow(0, 12'345, 1000)));
}

TEST(RandomOpTest, WrongShapesAreNamed) {
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kShape);
      return error.what();
    }
    return "no error";
  };
  using testing::HasSubstr;
  EXPECT_THAT(message([] {
                (void)normal({3, 2}, index_of({1, 2}));
              }),
              HasSubstr("sample_index must be int64 [3]"));
  EXPECT_THAT(message([] {
                (void)normal({2}, index_of({1, 2}).to(at::kInt));
              }),
              HasSubstr("got Int"));
  EXPECT_THAT(message([] {
                (void)random_normal({2, 2}, index_of({1, 2}), RandomSeed(index_of({3})), 11,
                                    RandomPurpose::kNoise, at::kCPU);
              }),
              HasSubstr("seed must be int64 [2]"));
  EXPECT_THAT(message([] { (void)normal({}, index_of({})); }), HasSubstr("[B, ...]"));
  const at::Tensor halves = at::empty({4}, at::TensorOptions(at::kHalf));
  EXPECT_THAT(message([&] { random_fill(halves, {}, Distribution::kNormal, 1.0); }),
              HasSubstr("contiguous fp32"));
  const at::Tensor transposed = at::empty({4, 3}, at::TensorOptions(at::kFloat)).t();
  EXPECT_THAT(message([&] { random_fill(transposed, {}, Distribution::kNormal, 1.0); }),
              HasSubstr("contiguous fp32"));
  const at::Tensor few = at::empty({4}, at::TensorOptions(at::kFloat));
  EXPECT_THAT(
      message([&] { random_fill(few, {}, Distribution::kNormal, 1.0, (int64_t{1} << 34) - 3); }),
      HasSubstr("2^34"));
}

}  // namespace random_test
}  // namespace kinora::ops
