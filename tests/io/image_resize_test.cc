#include "kinora/io/image_resize.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace image_resize_test {

using test::error_message;
using ::testing::HasSubstr;

// As in tools/make_image_fixtures.py.
Image noise(int64_t height, int64_t width) {
  Image image{.height = height, .width = width, .channels = 3, .pixels = {}};
  for (int64_t i = 1; i <= height * width * 3; ++i) {
    auto hash = static_cast<uint32_t>(i) * 2654435761U;
    hash ^= hash >> 15;
    hash *= 2246822519U;
    hash ^= hash >> 13;
    image.pixels.push_back(static_cast<uint8_t>(hash & 255U));
  }
  return image;
}

Filter filter_named(const std::string& kind) {
  return kind == "box" ? Filter::kBox : kind == "bicubic" ? Filter::kBicubic : Filter::kLanczos;
}

uint64_t fnv(const std::vector<uint8_t>& bytes) {
  uint64_t value = 0xcbf29ce484222325ULL;
  for (const uint8_t byte : bytes) {
    value = (value ^ byte) * 0x100000001b3ULL;
  }
  return value;
}

TEST(ImageResizeTest, EqualsPillowAndAdmToTheLastBit) {
  std::ifstream cases(source_path("tests/io/data/resize.txt"));
  Resizer resizer;
  Image out;
  int num_cases = 0;
  std::string kind;
  std::string hash;
  int64_t in_height = 0;
  int64_t in_width = 0;
  int64_t height = 0;
  int64_t width = 0;
  while (cases >> kind >> in_height >> in_width >> height >> width >> hash) {
    SCOPED_TRACE(kind + " " + std::to_string(in_height) + " x " + std::to_string(in_width) +
                 " to " + std::to_string(height) + " x " + std::to_string(width));
    const Image image = noise(in_height, in_width);
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second time with cached tables
      if (kind == "crop") {
        resizer.center_crop(image, height, width, out);
      } else {
        resizer.resize(image, height, width, filter_named(kind), out);
      }
      ASSERT_EQ(out.height, height);
      ASSERT_EQ(out.width, width);
      ASSERT_EQ(out.pixels.size(), static_cast<size_t>(height * width * 3));
      EXPECT_EQ(fnv(out.pixels), std::stoull(hash, nullptr, 16));
    }
    ++num_cases;
  }
  EXPECT_GE(num_cases, 60);
}

TEST(ImageResizeTest, BoxHalvingIsTheRoundedMean) {
  Image image{.height = 2, .width = 2, .channels = 3, .pixels = {}};
  image.pixels = {0, 10, 255, 1, 10, 255, 0, 20, 255, 1, 20, 255};
  const Image out = resize(image, 1, 1, Filter::kBox);
  // Rows first, rounded: (0, 1) gives 1; then columns.
  EXPECT_EQ(out.pixels, (std::vector<uint8_t>{1, 15, 255}));
}

TEST(ImageResizeTest, AFlatImageStaysFlat) {
  Image image{.height = 37, .width = 53, .channels = 3, .pixels = {}};
  image.pixels.assign(size_t{37} * 53 * 3, 201);
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{100, 7}, {5, 99}, {36, 54}}) {
    const Image out = resize(image, height, width, Filter::kBicubic);
    EXPECT_EQ(out.pixels, std::vector<uint8_t>(static_cast<size_t>(height * width * 3), 201));
  }
}

TEST(ImageResizeTest, CropOfTheSameSizeIsTheImage) {
  const Image image = noise(9, 14);
  EXPECT_EQ(center_crop(image, 9, 14).pixels, image.pixels);
}

TEST(ImageResizeTest, AStripOfExtremeShapeCostsNoMoreThanItsTarget) {
  // Scaled to cover 64 x 64 it would have 64 x 4,194,240 pixels, of which only the crop is made.
  const Image out = center_crop(noise(1, 65535), 64, 64);
  EXPECT_EQ(out.pixels.size(), 64U * 64U * 3U);
}

TEST(ImageResizeTest, ForgettingTablesOfOtherSizesChangesNothing) {
  // More sizes than tables, and axes whose tables are found or made in every order.
  Resizer resizer;
  Image out;
  for (int64_t i = 0; i < 400; ++i) {
    const Image image = noise(5 + i * 7 % 23, 5 + i * 11 % 19);
    const int64_t height = 4 + i * 5 % 3;
    const int64_t width = 4 + i % 4;
    resizer.resize(image, height, width, Filter::kBicubic, out);
    ASSERT_EQ(out.pixels, resize(image, height, width, Filter::kBicubic).pixels) << i;
  }
}

TEST(ImageResizeTest, ReusesItsMemory) {
  const Image image = noise(90, 70);
  Resizer resizer;
  Image out;
  resizer.center_crop(image, 16, 16, out);
  const uint8_t* const before = out.pixels.data();
  resizer.center_crop(image, 16, 16, out);
  EXPECT_EQ(out.pixels.data(), before);
}

TEST(ImageResizeTest, RefusesEmptyImagesAndTargets) {
  EXPECT_THAT(error_message(ErrorKind::kShape, [] { (void)center_crop(Image{}, 8, 8); }),
              HasSubstr("must be RGB and not empty, got 0 x 0"));
  const Image image = noise(4, 4);
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)center_crop(image, 0, 8); }),
              HasSubstr("must be in 1..65535, got 8 x 0"));
  EXPECT_THAT(
      error_message(ErrorKind::kShape, [&] { (void)resize(image, 8, 65536, Filter::kBox); }),
      HasSubstr("got 65536 x 8"));
}

// The colour of a pixel says where it was; a picture that is exactly covered is only cut.
TEST(ImageResizeTest, OffsetsOfCropsAreWhereTheyCut) {
  for (const ImageSize size : {ImageSize{20, 33}, ImageSize{47, 20}, ImageSize{20, 20}}) {
    Image image;
    set_size(image, size.height, size.width);
    for (int64_t i = 0; i < size.height * size.width; ++i) {
      image.pixels[static_cast<size_t>(3 * i)] = static_cast<uint8_t>(i / size.width);
      image.pixels[static_cast<size_t>(3 * i + 1)] = static_cast<uint8_t>(i % size.width);
    }
    const Image cut = center_crop(image, 20, 20);
    const ImageSize offset = center_crop_offset(size, 20, 20);
    EXPECT_EQ(offset.height, cut.pixels[0]);
    EXPECT_EQ(offset.width, cut.pixels[1]);
    // Of a picture of twice the size and four times: in the smaller one's pixels.
    for (const int64_t factor : {2, 4}) {
      const ImageSize large =
          center_crop_offset({factor * size.height, factor * size.width}, 20, 20);
      EXPECT_EQ(large.height, offset.height);
      EXPECT_EQ(large.width, offset.width);
    }
  }
}

}  // namespace image_resize_test
}  // namespace kinora::io
