#include <cmath>

#include "kinora/kernels/cuda/low_rank.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_low_rank_test {

using GpuLowRankTest = GpuTest;

struct Shape {
  int64_t rows;
  int64_t in;
  int64_t out;
  int64_t rank;
};

// Fewer rows than a tile, part of a strip, several ranges.
constexpr Shape kShapes[] = {{1, 8, 8, 8},      {67, 40, 264, 8},   {300, 1152, 384, 16},
                             {65, 72, 520, 32}, {129, 264, 96, 64}, {5000, 384, 1152, 8}};
constexpr int64_t kRoom = 64;
constexpr float kScale = 0.5F;

/// Matrices with `kRoom` columns behind each row, but for B.
struct Inputs {
  Inputs(const Shape& shape, DType type)
      : x(encode(random_values(shape.rows * (shape.in + kRoom), 1), type)),
        dy(encode(random_values(shape.rows * (shape.out + kRoom), 2), type)),
        a(encode(random_values(shape.rank * (shape.in + kRoom), 3), type)),
        b(encode(random_values(shape.rank * shape.out, 4), type)),
        joined(encode(random_values((shape.out + shape.rank) * (shape.in + kRoom), 5), type)),
        a_grad(random_values(shape.rank * (shape.in + kRoom), 6)),
        b_grad(random_values(shape.rank * shape.out, 7)) {}

  std::vector<uint8_t> x, dy, a, b, joined;
  std::vector<float> a_grad, b_grad;
};

LowRankForward forward_call(const Shape& shape, DType type, uint8_t* x, const uint8_t* a,
                            const uint8_t* b, uint8_t* joined) {
  return {.rows = shape.rows,
          .in = shape.in,
          .out = shape.out,
          .rank = shape.rank,
          .type = type,
          .scale = kScale,
          .x = x,
          .x_stride = shape.in + kRoom,
          .a = a,
          .a_stride = shape.in + kRoom,
          .b = b,
          .low = x + static_cast<size_t>(shape.in) * size_of(type),
          .low_stride = shape.in + kRoom,
          .behind = joined + static_cast<size_t>(shape.in) * size_of(type),
          .below = joined + static_cast<size_t>(shape.out * (shape.in + kRoom)) * size_of(type),
          .weight_stride = shape.in + kRoom};
}

LowRankBackward backward_call(const Shape& shape, DType type, const uint8_t* x, uint8_t* dy,
                              const uint8_t* b, float* a_grad, float* b_grad) {
  return {.rows = shape.rows,
          .in = shape.in,
          .out = shape.out,
          .rank = shape.rank,
          .type = type,
          .scale = kScale,
          .dy = dy,
          .dy_stride = shape.out + kRoom,
          .x = x,
          .x_stride = shape.in + kRoom,
          .low = x + static_cast<size_t>(shape.in) * size_of(type),
          .low_stride = shape.in + kRoom,
          .b = b,
          .dlow = dy + static_cast<size_t>(shape.out) * size_of(type),
          .dlow_stride = shape.out + kRoom,
          .a_grad = a_grad,
          .a_grad_stride = shape.in + kRoom,
          .b_grad = b_grad};
}

/// What both directions write.
struct Results {
  std::vector<uint8_t> x, dy, joined;
  std::vector<float> a_grad, b_grad;
};

Results on_gpu(const Shape& shape, DType type, const Inputs& inputs) {
  const DeviceArray<uint8_t> x(inputs.x), dy(inputs.dy), a(inputs.a), b(inputs.b),
      joined(inputs.joined);
  const DeviceArray<float> a_grad(inputs.a_grad), b_grad(inputs.b_grad);
  const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(
      cuda::low_rank_backward_workspace_bytes(shape.rows, shape.in, shape.out, shape.rank)));
  EXPECT_EQ(cuda::low_rank_forward(
                forward_call(shape, type, x.data(), a.data(), b.data(), joined.data()), nullptr),
            cudaSuccess);
  const LowRankBackward backward =
      backward_call(shape, type, x.data(), dy.data(), b.data(), a_grad.data(), b_grad.data());
  EXPECT_EQ(cuda::low_rank_backward(backward, workspace.data(), nullptr), cudaSuccess);
  EXPECT_EQ(cuda::low_rank_add_gradients({{{backward, workspace.data()}}}, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return {x.host(), dy.host(), joined.host(), a_grad.host(), b_grad.host()};
}

TEST_F(GpuLowRankTest, EqualsTheCpuAndItself) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << to_string(type) << " " << shape.rows << " rows, " << shape.in << " -> "
                   << shape.out << ", rank " << shape.rank);
      const Inputs inputs(shape, type);
      Inputs want = inputs;
      low_rank_forward(forward_call(shape, type, want.x.data(), want.a.data(), want.b.data(),
                                    want.joined.data()));
      low_rank_backward(backward_call(shape, type, want.x.data(), want.dy.data(), want.b.data(),
                                      want.a_grad.data(), want.b_grad.data()));
      const Results got = on_gpu(shape, type, inputs);
      const auto root = [](int64_t n) { return std::sqrt(static_cast<double>(n)); };
      expect_close(decode(got.x, type), decode(want.x, type), type, root(shape.in), "low");
      expect_close(decode(got.dy, type), decode(want.dy, type), type, root(shape.out), "dlow");
      EXPECT_EQ(got.joined, want.joined);
      // low and dlow may be rounded otherwise, by one unit of their type.
      const double low = root(shape.in) * root(shape.rows);
      const double dlow = root(shape.out) * root(shape.rows);
      expect_close(got.b_grad, want.b_grad, type, low, "b_grad");
      expect_close(got.a_grad, want.a_grad, type, dlow, "a_grad");
      // The factors alone.
      const DeviceArray<uint8_t> a(inputs.a), b(inputs.b), joined(inputs.joined);
      LowRankForward factors =
          forward_call(shape, type, nullptr, a.data(), b.data(), joined.data());
      factors.low = nullptr;
      ASSERT_EQ(cuda::low_rank_forward(factors, nullptr), cudaSuccess);
      EXPECT_EQ(joined.host(), want.joined);
      const Results again = on_gpu(shape, type, inputs);
      EXPECT_EQ(got.a_grad, again.a_grad) << "the order must be fixed";
      EXPECT_EQ(got.b_grad, again.b_grad) << "the order must be fixed";
      EXPECT_EQ(got.dy, again.dy) << "the order must be fixed";
    }
  }
}

TEST_F(GpuLowRankTest, OtherSizesAreRefused) {
  EXPECT_TRUE(cuda::low_rank_supported(DType::kBF16, 1152, 4608, 16));
  EXPECT_FALSE(cuda::low_rank_supported(DType::kBF16, 1152, 4608, 4));
  EXPECT_FALSE(cuda::low_rank_supported(DType::kBF16, 1150, 4608, 8));
  EXPECT_FALSE(cuda::low_rank_supported(DType::kF32, 1152, 4608, 8));
  EXPECT_EQ(cuda::low_rank_forward({.rows = 1, .in = 12, .out = 8, .rank = 8}, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace gpu_low_rank_test
}  // namespace kinora::kernels
