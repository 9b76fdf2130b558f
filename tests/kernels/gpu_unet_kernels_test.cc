#include "kinora/kernels/cuda/gated_gelu.h"
#include "kinora/kernels/cuda/residual_sum.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_unet_kernels_test {

using GpuGatedGeluTest = GpuTest;
using GpuResidualSumTest = GpuTest;

struct Shape {
  int64_t rows;
  int64_t width;
};

// One element, odd widths, whole and partial vectors, several blocks.
constexpr Shape kShapes[] = {{1, 1}, {3, 5}, {1, 8}, {257, 72}, {4113, 1280}, {5, 10'240}};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST_F(GpuGatedGeluTest, EqualsTheCpuBothWays) {
  for (const DType type : kTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << to_string(type) << " " << shape.rows << " x " << shape.width);
      const int64_t count = shape.rows * shape.width;
      const std::vector<uint8_t> uv = encode(random_values(2 * count, 1, 3.0F), type);
      const std::vector<uint8_t> dg = encode(random_values(count, 2), type);
      std::vector<uint8_t> g(dg.size());
      std::vector<uint8_t> duv(uv.size());
      const DeviceArray<uint8_t> on_gpu(uv);
      const DeviceArray<uint8_t> dg_on_gpu(dg);
      const DeviceArray<uint8_t> g_on_gpu(g);
      const DeviceArray<uint8_t> duv_on_gpu(duv);
      GatedGeluForward forward{shape.rows, shape.width, type, uv.data(), g.data()};
      GatedGeluBackward backward{shape.rows, shape.width, type, uv.data(), dg.data(), duv.data()};
      gated_gelu_forward(forward);
      gated_gelu_backward(backward);
      forward.uv = on_gpu.data();
      forward.g = g_on_gpu.data();
      EXPECT_EQ(cuda::gated_gelu_forward(forward, nullptr), cudaSuccess);
      backward.uv = on_gpu.data();
      backward.dg = dg_on_gpu.data();
      backward.duv = duv_on_gpu.data();
      EXPECT_EQ(cuda::gated_gelu_backward(backward, nullptr), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      expect_close(decode(g_on_gpu.host(), type), decode(g, type), type, 1.0, "g");
      expect_close(decode(duv_on_gpu.host(), type), decode(duv, type), type, 1.0, "duv");
    }
  }
}

TEST_F(GpuResidualSumTest, EqualsTheCpuInPlaceToo) {
  for (const DType type : kTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << to_string(type) << " " << shape.rows << " x " << shape.width);
      const int64_t count = shape.rows * shape.width;
      const std::vector<uint8_t> x = encode(random_values(count, 1), type);
      const std::vector<uint8_t> y = encode(random_values(count, 2), type);
      const std::vector<uint8_t> bias = encode(random_values(shape.width, 3), type);
      std::vector<uint8_t> want(x.size());
      ResidualSum call{shape.rows, shape.width, type, x.data(), y.data(), bias.data(), want.data()};
      residual_sum(call);
      const DeviceArray<uint8_t> both(x);
      const DeviceArray<uint8_t> y_on_gpu(y);
      const DeviceArray<uint8_t> bias_on_gpu(bias);
      call.x = both.data();
      call.y = y_on_gpu.data();
      call.bias = bias_on_gpu.data();
      call.out = both.data();
      EXPECT_EQ(cuda::residual_sum(call, nullptr), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(both.host(), want);
    }
  }
}

}  // namespace gpu_unet_kernels_test
}  // namespace kinora::kernels
