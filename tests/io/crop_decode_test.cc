#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "kinora/core/philox.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/io/image_resize.h"
#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace crop_decode_test {

using test::error_message;
using ::testing::HasSubstr;

const std::string kFolder = source_path("tests/io/data/crops/").string();
const std::array<std::string, 7> kFiles = {"420.jpg", "420_tall.jpg", "420_restarts.jpg",
                                           "422.jpg", "444.jpg",      "progressive.jpg",
                                           "gray.jpg"};
constexpr uint8_t kPoison = 77;

std::vector<std::byte> read_fixture(const std::string& name) {
  return read_file(kFolder + name, 1 << 20);
}

TEST(CropDecodeTest, RegionHoldsAllThatTheCropReads) {
  const RandomStream stream{7, 0, 0, RandomPurpose::kAugment};
  for (uint32_t i = 0; i < 300; ++i) {
    const auto draw = [&](uint32_t number, int64_t least, int64_t most) {
      const auto u = static_cast<double>(random_uniform(stream, 8 * i + number));
      return least + static_cast<int64_t>(u * static_cast<double>(most - least + 1));
    };
    const ImageSize size{draw(0, 20, 190), draw(1, 20, 190)};
    const int64_t height = draw(2, 3, 48);
    const int64_t width = draw(3, 3, 48);
    SCOPED_TRACE(std::to_string(size.height) + " x " + std::to_string(size.width) + " to " +
                 std::to_string(height) + " x " + std::to_string(width));
    Image image;
    set_size(image, size.height, size.width);
    for (size_t k = 0; k < image.pixels.size(); ++k) {
      image.pixels[k] = static_cast<uint8_t>(k * 2654435761U >> 13);
    }
    const Image expected = center_crop(image, height, width);
    const Region region = center_crop_region(size, height, width);
    ASSERT_TRUE(0 <= region.top && region.top < region.bottom && region.bottom <= size.height);
    ASSERT_TRUE(0 <= region.left && region.left < region.right && region.right <= size.width);
    for (int64_t y = 0; y < size.height; ++y) {
      for (int64_t x = 0; x < size.width; ++x) {
        if (y < region.top || y >= region.bottom || x < region.left || x >= region.right) {
          std::fill_n(image.pixels.begin() + (y * size.width + x) * 3, 3, kPoison);
        }
      }
    }
    ASSERT_EQ(center_crop(image, height, width).pixels, expected.pixels);
  }
}

TEST(CropDecodeTest, CropIsThatOfTheWholeImage) {
  size_t num_poisoned = 0;
  Image part;
  for (const std::string& name : kFiles) {
    SCOPED_TRACE(name);
    const std::vector<std::byte> bytes = read_fixture(name);
    const Image whole = decode_image(bytes, name);
    for (const auto& [height, width] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {64, 64}, {100, 40}, {150, 60}, {30, 90}, {139, 139}, {16, 16}, {33, 7}, {200, 10}}) {
      SCOPED_TRACE(std::to_string(height) + " x " + std::to_string(width));
      set_size(part, whole.height, whole.width);
      std::fill(part.pixels.begin(), part.pixels.end(), kPoison);
      decode_image_into(bytes, name, part, {.height = height, .width = width});
      ASSERT_EQ(part.height, whole.height);
      ASSERT_EQ(part.width, whole.width);
      EXPECT_EQ(center_crop(part, height, width).pixels, center_crop(whole, height, width).pixels);
      num_poisoned += std::count(part.pixels.begin(), part.pixels.end(), kPoison) >
                              static_cast<int64_t>(part.pixels.size()) / 10
                          ? 1
                          : 0;
    }
  }
  EXPECT_GT(num_poisoned, 20U);  // so much was left out
}

TEST(CropDecodeTest, ScaledDecodeIsPillowsDraft) {
  std::ifstream cases(kFolder + "scaled.txt");
  const std::vector<std::byte> pixels = read_fixture("scaled.rgb");
  const auto* expected = reinterpret_cast<const uint8_t*>(pixels.data());
  int num_cases = 0;
  std::string name;
  int64_t height = 0;
  int64_t width = 0;
  for (; cases >> name >> height >> width; ++num_cases) {
    SCOPED_TRACE(name + " " + std::to_string(height) + " x " + std::to_string(width));
    const Image whole = decode_image(read_fixture(name), name);
    Image image;
    decode_image_into(read_fixture(name), name, image,
                      {.height = height, .width = width, .may_scale = true});
    EXPECT_LE(2 * image.height, whole.height + 1);
    EXPECT_GE(image.height, height);
    EXPECT_GE(image.width, width);
    const Image crop = center_crop(image, height, width);
    int largest = 0;
    for (const uint8_t pixel : crop.pixels) {
      largest = std::max(largest, std::abs(static_cast<int>(pixel) - static_cast<int>(*expected)));
      ++expected;
    }
    EXPECT_LE(largest, 1);  // libjpegs differ in the rounding of colours
  }
  EXPECT_EQ(num_cases, 21);
}

TEST(CropDecodeTest, ScaledDecodeLeavesSmallImagesAlone) {
  const std::vector<std::byte> bytes = read_fixture("420.jpg");  // 150 x 217
  Image image;
  decode_image_into(bytes, "a", image, {.height = 76, .width = 76, .may_scale = true});
  EXPECT_EQ(image.height, 150);
  decode_image_into(bytes, "a", image, {.height = 75, .width = 75, .may_scale = true});
  EXPECT_EQ(image.height, 75);
  EXPECT_EQ(image.width, 109);
  EXPECT_EQ(image.full.height, 150);
  EXPECT_EQ(image.full.width, 217);
}

TEST(CropDecodeTest, AFileThatIsCutOffIsRefusedWhereverTheCropLies) {
  for (const std::string& name : kFiles) {
    const std::vector<std::byte> bytes = read_fixture(name);
    for (const size_t missing : {size_t{1}, size_t{2}, size_t{40}, bytes.size() / 2}) {
      SCOPED_TRACE(name + " without " + std::to_string(missing));
      const std::vector<std::byte> cut(bytes.begin(),
                                       bytes.end() - static_cast<std::ptrdiff_t>(missing));
      for (const bool may_scale : {false, true}) {
        Image image;
        EXPECT_THAT(error_message(ErrorKind::kIo,
                                  [&] {
                                    decode_image_into(
                                        cut, "cut.jpg", image,
                                        {.height = 20, .width = 60, .may_scale = may_scale});
                                  }),
                    HasSubstr("cut.jpg must be a whole, valid JPEG"));
      }
    }
  }
}

TEST(CropDecodeTest, FlippedBitsNeverCrash) {
  const RandomStream stream{11, 0, 0, RandomPurpose::kAugment};
  uint32_t drawn = 0;
  int num_read = 0;
  Image image;
  for (const std::string& name : kFiles) {
    const std::vector<std::byte> bytes = read_fixture(name);
    for (int turn = 0; turn < 60; ++turn) {
      std::vector<std::byte> bad = bytes;
      const auto at = static_cast<size_t>(static_cast<double>(random_uniform(stream, drawn++)) *
                                          static_cast<double>(bytes.size()));
      bad[at] ^= static_cast<std::byte>(1 << turn % 8);
      try {
        decode_image_into(bad, name, image,
                          {.height = 30, .width = 50, .may_scale = turn % 2 == 0});
        ++num_read;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      }
    }
  }
  EXPECT_GT(num_read, 0);
}

}  // namespace crop_decode_test
}  // namespace kinora::io
