#include <algorithm>
#include <cmath>

#include "kinora/kernels/cuda/rms_norm.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_rms_norm_test {

using GpuRmsNormTest = GpuTest;

struct Shape {
  int64_t rows;
  int64_t width;
  int64_t gap = 0;  // between the rows of all matrices

  [[nodiscard]] int64_t stride() const { return width + gap; }
  [[nodiscard]] int64_t size() const { return rows * stride(); }
};

// A lane, a warp, five vectors a lane, a block a row, and rows that no block holds; columns of a
// wider matrix.
constexpr Shape kShapes[] = {{1, 1},      {257, 72},  {3, 5},       {8200, 256},      {257, 1152},
                             {5, 1279},   {17, 1288}, {257, 3072},  {9, 8192},        {9, 8193},
                             {33, 72, 8}, {5, 72, 3}, {33, 96, 96}, {70, 1536, 3072}, {9, 8193, 2}};

constexpr int64_t kPositions = 7;
constexpr int64_t kAngles = 36;  // of a head

struct Results {
  std::vector<float> y, dx, dweight;
};

struct Inputs {
  Inputs(const Shape& shape, DType type)
      : shape(shape),
        type(type),
        x(encode(random_values(shape.size(), 1, 2.0F), type)),
        dy(encode(random_values(shape.size(), 2), type)),
        weight(random_values(shape.width, 3)) {
    for (const float angle : random_values(kPositions * std::max(shape.width / 2, kAngles), 4)) {
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
  }

  /// By so many angles; 0: none.
  [[nodiscard]] static RowRotation rotation(int64_t num_angles, const float* cosine,
                                            const float* sine) {
    return num_angles == 0 ? RowRotation() : RowRotation{cosine, sine, kPositions, num_angles};
  }

  [[nodiscard]] RmsNormForward forward() const {
    return {.rows = shape.rows,
            .width = shape.width,
            .epsilon = 1e-4F,
            .type = type,
            .x_stride = shape.stride(),
            .y_stride = shape.stride()};
  }
  [[nodiscard]] RmsNormBackward backward() const {
    return {.rows = shape.rows,
            .width = shape.width,
            .epsilon = 1e-4F,
            .type = type,
            .dy_stride = shape.stride(),
            .x_stride = shape.stride(),
            .dx_stride = shape.stride()};
  }

  /// Of a matrix that was `before`: its columns; nothing else may have changed.
  [[nodiscard]] std::vector<float> columns(const std::vector<uint8_t>& matrix,
                                           const std::vector<uint8_t>& before) const {
    const std::vector<float> values = decode(matrix, type);
    const std::vector<float> values_before = decode(before, type);
    std::vector<float> own;
    for (int64_t i = 0; i < shape.size(); ++i) {
      if (i % shape.stride() < shape.width) {
        own.push_back(values[static_cast<size_t>(i)]);
      } else {
        EXPECT_EQ(values[static_cast<size_t>(i)], values_before[static_cast<size_t>(i)]);
      }
    }
    return own;
  }

  [[nodiscard]] Results on_cpu(bool has_weight, int64_t num_angles = 0) const {
    std::vector<uint8_t> y(x.size());
    std::vector<uint8_t> dx(x.size());
    const std::vector<uint8_t> empty(x.size());
    Results results;
    results.dweight.assign(static_cast<size_t>(shape.width), 1.0F);
    RmsNormForward there = forward();
    there.x = x.data();
    there.weight = has_weight ? weight.data() : nullptr;
    there.rotation = rotation(num_angles, cosine.data(), sine.data());
    there.y = y.data();
    rms_norm_forward(there);
    RmsNormBackward back = backward();
    back.dy = dy.data();
    back.x = x.data();
    back.weight = there.weight;
    back.rotation = there.rotation;
    back.dx = dx.data();
    back.dweight = results.dweight.data();
    rms_norm_backward(back);
    results.y = columns(y, empty);
    results.dx = columns(dx, empty);
    return results;
  }

  /// has_weight: and its gradient is wanted; in_place: y is x, dx is dy.
  [[nodiscard]] Results on_gpu(bool has_weight, bool in_place, size_t offset,
                               int64_t num_angles = 0) const {
    const size_t bytes = offset * size_of(type);
    const std::vector<uint8_t> empty(x.size());
    const DeviceArray<uint8_t> device_x(x, bytes);
    const DeviceArray<uint8_t> device_dy(dy, bytes);
    const DeviceArray<uint8_t> y(in_place ? x : empty, bytes);
    const DeviceArray<uint8_t> dx(empty, bytes);
    const DeviceArray<float> device_weight(weight, offset);
    const DeviceArray<float> device_cosine(cosine, offset);
    const DeviceArray<float> device_sine(sine, offset);
    const DeviceArray<float> dweight(std::vector<float>(static_cast<size_t>(shape.width), 1.0F),
                                     offset);
    const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(
        cuda::rms_norm_backward_workspace_bytes(shape.rows, shape.width, has_weight)));
    RmsNormForward there = forward();
    there.x = in_place ? y.data() : device_x.data();
    there.weight = has_weight ? device_weight.data() : nullptr;
    there.rotation = rotation(num_angles, device_cosine.data(), device_sine.data());
    there.y = y.data();
    EXPECT_EQ(cuda::rms_norm_forward(there, nullptr), cudaSuccess);
    RmsNormBackward back = backward();
    back.dy = device_dy.data();
    back.x = device_x.data();
    back.weight = there.weight;
    back.rotation = there.rotation;
    back.dx = in_place ? device_dy.data() : dx.data();
    back.dweight = has_weight ? dweight.data() : nullptr;
    EXPECT_EQ(cuda::rms_norm_backward(back, workspace.data(), nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return {columns(y.host(), in_place ? x : empty),
            columns((in_place ? device_dy : dx).host(), in_place ? dy : empty), dweight.host()};
  }

  Shape shape;
  DType type;
  std::vector<uint8_t> x, dy;
  std::vector<float> weight, cosine, sine;
};

TEST_F(GpuRmsNormTest, EqualsTheCpu) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      const Inputs inputs(shape, type);
      for (const bool has_weight : {false, true}) {
        const Results want = inputs.on_cpu(has_weight);
        for (const bool in_place : {false, true}) {
          for (const size_t offset : {0, 1}) {
            SCOPED_TRACE(testing::Message()
                         << to_string(type) << " " << shape.rows << " x " << shape.width << " + "
                         << shape.gap << (has_weight ? ", weight" : "")
                         << (in_place ? ", in place" : "") << ", offset " << offset);
            const Results got = inputs.on_gpu(has_weight, in_place, offset);
            expect_close(got.y, want.y, type, 1e-2, "y");
            // One column: dx is what epsilon leaves of a difference.
            expect_close(got.dx, want.dx, type, 1.0, "dx");
            if (has_weight) {
              expect_close(got.dweight, want.dweight, DType::kF32,
                           10.0 * std::sqrt(static_cast<double>(shape.rows)), "dweight");
            }
          }
        }
      }
    }
  }
}

TEST_F(GpuRmsNormTest, TurnsPairsAsTheCpu) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : {Shape{257, 72}, Shape{3, 6}, Shape{33, 72, 8}, Shape{257, 1152},
                               Shape{70, 1536, 3072}, Shape{65, 5120}, Shape{9, 8194, 2}}) {
      const Inputs inputs(shape, type);
      for (const int64_t num_angles : {int64_t{1}, int64_t{3}, kAngles, shape.width / 2}) {
        const Results want = inputs.on_cpu(true, num_angles);
        for (const bool in_place : {false, true}) {
          for (const size_t offset : {0, 1}) {
            SCOPED_TRACE(testing::Message()
                         << to_string(type) << " " << shape.rows << " x " << shape.width << ", "
                         << num_angles << " angles" << (in_place ? ", in place" : "") << ", offset "
                         << offset);
            const Results got = inputs.on_gpu(true, in_place, offset, num_angles);
            expect_close(got.y, want.y, type, type == DType::kF32 ? 1.0 : 1e-2, "y");
            expect_close(got.dx, want.dx, type, 1.0, "dx");
            expect_close(got.dweight, want.dweight, DType::kF32,
                         10.0 * std::sqrt(static_cast<double>(shape.rows)), "dweight");
          }
        }
      }
    }
  }
}

TEST_F(GpuRmsNormTest, NarrowsFp32AsTheCpu) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << to_string(type) << " " << shape.rows << " x " << shape.width);
      const Inputs inputs(shape, DType::kF32);
      std::vector<uint8_t> y(static_cast<size_t>(shape.size()) * size_of(type));
      const DeviceArray<uint8_t> device_x(inputs.x);
      const DeviceArray<uint8_t> device_y(y);
      const DeviceArray<float> device_weight(inputs.weight);
      RmsNormForward call = inputs.forward();
      call.y_type = type;
      call.x = device_x.data();
      call.weight = device_weight.data();
      call.y = device_y.data();
      ASSERT_EQ(cuda::rms_norm_forward(call, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      call.x = inputs.x.data();
      call.weight = inputs.weight.data();
      call.y = y.data();
      rms_norm_forward(call);
      expect_close(decode(device_y.host(), type), decode(y, type), type, 1e-2, "y");
    }
  }
}

TEST_F(GpuRmsNormTest, TheSameBitsTwice) {
  for (const Shape& shape : {Shape{8200, 1152}, Shape{1027, 3072}, Shape{33, 8200}}) {
    const Inputs inputs(shape, DType::kBF16);
    const Results first = inputs.on_gpu(true, false, 0);
    const Results second = inputs.on_gpu(true, false, 0);
    EXPECT_EQ(first.dweight, second.dweight);
    EXPECT_EQ(first.dx, second.dx);
  }
}

TEST_F(GpuRmsNormTest, NanAndInfinityPropagate) {
  for (const int64_t width : {16, 1152, 2048, 8200}) {
    Inputs inputs({3, width}, DType::kBF16);
    std::vector<float> x = decode(inputs.x, DType::kBF16);
    x[2] = NAN;
    x[static_cast<size_t>(width) + 3] = INFINITY;
    inputs.x = encode(x, DType::kBF16);
    const Results got = inputs.on_gpu(true, false, 0);
    EXPECT_TRUE(std::isnan(got.y[0]));
    EXPECT_TRUE(std::isnan(got.dx[5]));
    EXPECT_TRUE(std::isnan(got.y[static_cast<size_t>(width) + 3]));
    EXPECT_EQ(got.y[static_cast<size_t>(width)], 0.0F);
    EXPECT_FALSE(std::isnan(got.y[2 * static_cast<size_t>(width)]));
    EXPECT_TRUE(std::isnan(got.dweight[0]));
  }
}

}  // namespace gpu_rms_norm_test
}  // namespace kinora::kernels
