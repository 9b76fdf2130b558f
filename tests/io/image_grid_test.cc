#include "kinora/io/image_grid.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/io/io_testing.h"

namespace kinora::io {
namespace image_grid_test {

using test::error_message;
using ::testing::HasSubstr;

Image flat(int64_t height, int64_t width, uint8_t value) {
  Image image{.height = height, .width = width, .channels = 3, .pixels = {}};
  image.pixels.assign(static_cast<size_t>(height * width * 3), value);
  return image;
}

// The red channel, a digit a pixel.
std::vector<std::string> picture(const Image& image) {
  std::vector<std::string> rows;
  for (int64_t y = 0; y < image.height; ++y) {
    rows.emplace_back();
    for (int64_t x = 0; x < image.width; ++x) {
      rows.back() +=
          static_cast<char>('0' + image.pixels[static_cast<size_t>((y * image.width + x) * 3)]);
    }
  }
  return rows;
}

TEST(ImageGridTest, LaysImagesOutRowByRow) {
  const std::vector<Image> images = {flat(1, 2, 1), flat(1, 2, 2), flat(1, 2, 3)};
  const Image grid =
      make_grid(images, {.rows = 0, .columns = 2, .padding = 1, .background = {9, 8, 7}});
  EXPECT_THAT(picture(grid),
              ::testing::ElementsAre("9999999", "9119229", "9999999", "9339999", "9999999"));
  EXPECT_EQ(grid.pixels[1], 8);
  EXPECT_EQ(grid.pixels[2], 7);
}

TEST(ImageGridTest, ChoosesRowsAndColumns) {
  const std::vector<Image> images(5, flat(2, 3, 1));
  const auto size = [&](int64_t rows, int64_t columns) {
    const Image grid = make_grid(images, {.rows = rows, .columns = columns, .padding = 0});
    return std::pair(grid.height / 2, grid.width / 3);
  };
  EXPECT_EQ(size(0, 0), std::pair(int64_t{2}, int64_t{3}));
  EXPECT_EQ(size(1, 0), std::pair(int64_t{1}, int64_t{5}));
  EXPECT_EQ(size(3, 0), std::pair(int64_t{3}, int64_t{2}));
  EXPECT_EQ(size(0, 4), std::pair(int64_t{2}, int64_t{4}));
  EXPECT_EQ(size(4, 4), std::pair(int64_t{4}, int64_t{4}));
}

TEST(ImageGridTest, RefusesWhatDoesNotFit) {
  std::vector<Image> images = {flat(2, 2, 1), flat(2, 3, 1)};
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)make_grid({}); }),
              HasSubstr("at least one image"));
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)make_grid(images); }),
              HasSubstr("of the first one's size, 2 x 2, got 3 x 2"));
  images[1] = flat(2, 2, 1);
  EXPECT_THAT(
      error_message(ErrorKind::kShape, [&] { (void)make_grid(images, {.rows = 1, .columns = 1}); }),
      HasSubstr("must hold all 2 images, got 1 rows of 1"));
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)make_grid(images, {.padding = -1}); }),
              HasSubstr("must be in 0..65535"));
  EXPECT_THAT(error_message(ErrorKind::kShape,
                            [&] { (void)make_grid(images, {.rows = 20000, .columns = 1}); }),
              HasSubstr("sides must be at most 65535"));
}

TEST(ImageGridTest, ComesApartAgain) {
  std::vector<Image> images;
  for (uint8_t i = 0; i < 7; ++i) {
    images.push_back(flat(3, 4, i));
    images.back().pixels[5] = 99;
  }
  for (const GridOptions& options :
       {GridOptions{}, GridOptions{.columns = 1}, GridOptions{.rows = 2, .padding = 0}}) {
    const std::vector<Image> split = split_grid(make_grid(images, options), 7, options);
    ASSERT_EQ(split.size(), 7U);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(split[i].pixels, images[i].pixels) << i;
      EXPECT_EQ(split[i].width, 4);
    }
  }
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)split_grid(flat(11, 9, 0), 2); }),
              HasSubstr("a grid of 2 images in 1 rows and 2 columns cannot be 9 x 11 pixels"));
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)split_grid(flat(1, 1, 0), 9); }),
              HasSubstr("cannot be"));
}

}  // namespace image_grid_test
}  // namespace kinora::io
