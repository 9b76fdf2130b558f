#include "kinora/io/picture_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/io/animation.h"
#include "kinora/io/image.h"
#include "tests/error_of.h"

namespace kinora::io {
namespace picture_texts_test {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Image grey() {
  Image image;
  set_size(image, 3, 5);
  image.pixels.assign(image.pixels.size(), 77);
  return image;
}

std::vector<PictureText> texts() {
  return {{.key = "parameters", .value = "a red circle\nSteps: 4"},
          {.key = "kinora", .value = "{\"a\": \"<b> & 'c' \xC3\xA9 \xE2\x98\x83\t\"}"},
          {.key = "empty", .value = ""}};
}

TEST(PictureTextsTest, PngAndWebpKeepThem) {
  const Bytes png = with_png_texts(encode_png(grey()), texts());
  EXPECT_EQ(read_texts(png, "a.png"), texts());
  EXPECT_EQ(decode_image(png, "a.png").pixels, grey().pixels);
  for (const size_t frames : {1, 3}) {
    std::vector<Image> clip(frames, grey());
    clip.back().pixels.front() = 200;
    const Bytes webp = with_webp_texts(encode_webp(clip, 8.0), texts());
    EXPECT_EQ(read_texts(webp, "a.webp"), texts());
    EXPECT_EQ(decode_image(webp, "a.webp").pixels, clip.front().pixels);
  }
}

TEST(PictureTextsTest, FilesWithoutTextsHaveNone) {
  EXPECT_TRUE(read_texts(encode_png(grey()), "a.png").empty());
  const Image image = grey();
  EXPECT_TRUE(read_texts(encode_webp(std::span(&image, 1), 1.0), "a.webp").empty());
}

TEST(PictureTextsTest, WhatIsDamagedIsRefused) {
  const auto refusal = [](Bytes bytes) {
    return error_of(ErrorKind::kIo, [&] { return read_texts(bytes, "x"); });
  };
  const Bytes png = with_png_texts(encode_png(grey()), texts());
  Bytes longer = png;
  longer[33] = std::byte{0x7F};  // the length of the first text
  EXPECT_THAT(refusal(longer), HasSubstr("more than the file has"));
  EXPECT_THAT(refusal({png.begin(), png.begin() + 40}), HasSubstr("ends within a chunk"));
  EXPECT_THAT(refusal(Bytes(100)), HasSubstr("must be a PNG, WebP or MP4"));
  Bytes webp = with_webp_texts(encode_webp(std::vector<Image>{grey()}, 1.0), texts());
  webp.resize(20);
  EXPECT_THAT(refusal(webp), HasSubstr("valid WebP"));
}

TEST(PictureTextsTest, SizesAndKeysHaveLimits) {
  const Bytes png = encode_png(grey());
  const auto refusal = [&](const PictureText& text) {
    return error_of(ErrorKind::kShape, [&] { return with_png_texts(png, std::span(&text, 1)); });
  };
  EXPECT_THAT(refusal({.key = "a b", .value = ""}), HasSubstr("a b"));
  EXPECT_THAT(refusal({.key = "", .value = ""}), HasSubstr("1 to 79"));
  EXPECT_THAT(refusal({.key = "a", .value = std::string(kMostTextBytes + 1, 'x')}),
              HasSubstr("at most"));
  // Another program's file may have more.
  const PictureText most{.key = "a", .value = std::string(kMostTextBytes - 1, 'x')};
  const Bytes full = with_png_texts(png, std::span(&most, 1));
  const Bytes twice = with_png_texts(full, std::span(&most, 1));
  EXPECT_EQ(read_texts(full, "x").front(), most);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return read_texts(twice, "x"); }),
              HasSubstr("of texts"));
}

}  // namespace picture_texts_test
}  // namespace kinora::io
