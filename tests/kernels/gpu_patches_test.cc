#include <cmath>

#include "kinora/kernels/cuda/patches.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_patches_test {

using GpuPatchesTest = GpuTest;

struct Shape {
  int64_t batch;
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t patch;
};

// One element, tokens shorter than a vector and of no multiple of one, DiT's latents, pixels.
constexpr Shape kShapes[] = {{1, 1, 1, 1, 1},   {257, 3, 1, 1, 1}, {257, 1, 6, 3, 3},
                             {3, 5, 10, 4, 2},  {5, 4, 32, 32, 2}, {2, 8, 32, 32, 2},
                             {2, 3, 48, 32, 16}};

void expect_exact(const Shape& shape, DType type, PatchOrder order, size_t offset) {
  const Patches patches = {order,       shape.batch, shape.channels, shape.height, shape.width,
                           shape.patch, type};
  const int64_t numel = shape.batch * shape.channels * shape.height * shape.width;
  std::vector<float> image = random_values(numel, 1);
  image[0] = NAN;
  image.back() = INFINITY;
  std::vector<uint8_t> tokens(static_cast<size_t>(numel) * size_of(type));
  patchify(patches, image.data(), tokens.data());
  std::vector<float> back(image.size());
  unpatchify(patches, tokens.data(), back.data());

  const DeviceArray<float> device_image(image, offset);
  const DeviceArray<uint8_t> device_tokens(std::vector<uint8_t>(tokens.size()),
                                           offset * size_of(type));
  const DeviceArray<float> device_back(std::vector<float>(image.size()), offset);
  EXPECT_EQ(cuda::patchify(patches, device_image.data(), device_tokens.data(), nullptr),
            cudaSuccess);
  EXPECT_EQ(cuda::unpatchify(patches, device_tokens.data(), device_back.data(), nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto expect_equal = [](const std::vector<float>& got, const std::vector<float>& want,
                               const char* what) {
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i]) ? !std::isnan(got[i]) : got[i] != want[i]) {
        ADD_FAILURE() << what << ": element " << i << " is " << got[i] << ", must be " << want[i];
        return;
      }
    }
  };
  expect_equal(decode(device_tokens.host(), type), decode(tokens, type), "tokens");
  expect_equal(device_back.host(), back, "image");
}

TEST_F(GpuPatchesTest, EqualsTheCpuExactly) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      for (const PatchOrder order : {PatchOrder::kChannelFirst, PatchOrder::kChannelLast}) {
        for (const size_t offset : {0, 1}) {
          SCOPED_TRACE(testing::Message()
                       << to_string(type) << " " << shape.batch << " x " << shape.channels << " x "
                       << shape.height << " x " << shape.width << " / " << shape.patch
                       << (order == PatchOrder::kChannelFirst ? " cpp" : " ppc") << ", offset "
                       << offset);
          expect_exact(shape, type, order, offset);
        }
      }
    }
  }
}

TEST_F(GpuPatchesTest, RefusesImagesThatPatchesDoNotFill) {
  const Patches patches = {PatchOrder::kChannelFirst, 1, 1, 4, 3, 2, DType::kF32};
  EXPECT_EQ(cuda::patchify(patches, nullptr, nullptr, nullptr), cudaErrorInvalidValue);
}

}  // namespace gpu_patches_test
}  // namespace kinora::kernels
