#include "kinora/kernels/patches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace patches_test {

std::vector<float> tokens_of(const Patches& patches, const std::vector<float>& image) {
  std::vector<float> tokens(image.size());
  patchify(patches, image.data(), tokens.data());
  return tokens;
}

TEST(PatchesTest, EqualsNumpysTranspositions) {
  // x = arange(16).reshape(1, 2, 2, 4): x.reshape(1, 2, 1, 2, 2, 2).transpose(0, 2, 4, 1, 3, 5),
  // and for the other order .transpose(0, 2, 4, 3, 5, 1).
  std::vector<float> image(16);
  std::iota(image.begin(), image.end(), 0.0F);
  Patches patches;
  patches.batch = 1;
  patches.channels = 2;
  patches.height = 2;
  patches.width = 4;
  patches.patch = 2;
  EXPECT_EQ(tokens_of(patches, image),
            (std::vector<float>{0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15}));
  patches.order = PatchOrder::kChannelLast;
  EXPECT_EQ(tokens_of(patches, image),
            (std::vector<float>{0, 8, 1, 9, 4, 12, 5, 13, 2, 10, 3, 11, 6, 14, 7, 15}));
}

TEST(PatchesTest, UnpatchifyIsTheInverse) {
  for (const PatchOrder order : {PatchOrder::kChannelFirst, PatchOrder::kChannelLast}) {
    const Patches patches = {order, 3, 5, 6, 9, 3, DType::kF32};
    const std::vector<float> image = random_values(3 * 5 * 6 * 9, 1);
    std::vector<float> back(image.size());
    unpatchify(patches, tokens_of(patches, image).data(), back.data());
    EXPECT_EQ(back, image);
  }
}

TEST(PatchesTest, RoundsTokensToTheirType) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const Patches patches = {PatchOrder::kChannelLast, 1, 1, 2, 2, 1, type};
    const std::vector<float> image = random_values(4, 1);
    std::vector<uint8_t> tokens(8);
    patchify(patches, image.data(), tokens.data());
    EXPECT_EQ(tokens, encode(image, type));
  }
}

}  // namespace patches_test
}  // namespace kinora::kernels
