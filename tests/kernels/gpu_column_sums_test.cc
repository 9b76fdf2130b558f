#include <cmath>

#include "kinora/kernels/cuda/column_sums.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_column_sums_test {

using GpuColumnSumsTest = GpuTest;

struct Shape {
  int64_t rows;
  int64_t width;
  int64_t row_stride;
};

constexpr Shape kShapes[] = {{1, 1, 1},      {2, 7, 9},          {257, 1152, 1152},
                             {31, 300, 304}, {10'001, 264, 264}, {40'003, 3, 3}};

std::vector<float> on_gpu(const Shape& shape, DType type, const std::vector<uint8_t>& in,
                          size_t offset) {
  const DeviceArray<uint8_t> device_in(in, offset * size_of(type));
  const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(shape.width), 1.0F), offset);
  const DeviceArray<uint8_t> workspace(
      std::vector<uint8_t>(cuda::column_sums_workspace_bytes(shape.rows, shape.width)));
  const ColumnSums call = {shape.rows, shape.width,      shape.row_stride,
                           type,       device_in.data(), out.data()};
  EXPECT_EQ(cuda::column_sums(call, workspace.data(), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.host();
}

TEST_F(GpuColumnSumsTest, EqualsTheCpuAndItself) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << to_string(type) << " " << shape.rows << " x " << shape.width);
      const std::vector<uint8_t> in = encode(random_values(shape.rows * shape.row_stride, 1), type);
      std::vector<float> want(static_cast<size_t>(shape.width), 1.0F);
      column_sums({shape.rows, shape.width, shape.row_stride, type, in.data(), want.data()});
      const std::vector<float> got = on_gpu(shape, type, in, 0);
      expect_close(got, want, DType::kF32, std::sqrt(static_cast<double>(shape.rows)), "out");
      EXPECT_EQ(got, on_gpu(shape, type, in, 0)) << "the order must be fixed";
      EXPECT_EQ(got, on_gpu(shape, type, in, 1)) << "whatever the alignment";
    }
  }
}

}  // namespace gpu_column_sums_test
}  // namespace kinora::kernels
