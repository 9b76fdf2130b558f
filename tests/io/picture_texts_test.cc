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

TEST(PictureTextsTest, GifKeepsThemAsComments) {
  for (const size_t frames : {1, 3}) {
    std::vector<Image> clip(frames, grey());
    clip.back().pixels.front() = 200;
    const Bytes plain = encode_gif(clip, 8.0);
    std::vector<PictureText> all = texts();
    all.push_back({.key = "long", .value = std::string(1000, 'x') + "=\n"});  // of several parts
    const Bytes gif = with_gif_texts(plain, all);
    EXPECT_EQ(read_texts(gif, "a.gif"), all);
    EXPECT_EQ(decode_image(gif, "a.gif").pixels, clip.front().pixels);
    EXPECT_TRUE(read_texts(plain, "a.gif").empty());
  }
}

// As the format's description (GIF 89a, section 24) has them.
TEST(PictureTextsTest, CommentsOfOthersAreNoTexts) {
  const auto gif_of = [](std::string_view comment) {
    const std::string bytes = std::string("GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff", 19) +
                              std::string(comment) +
                              std::string("\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0\x3b", 16);
    const auto span = std::as_bytes(std::span(bytes));
    return Bytes(span.begin(), span.end());
  };
  EXPECT_EQ(read_texts(gif_of(std::string_view("\x21\xfe\3a=b\2cd\0", 10)), "x"),
            (std::vector<PictureText>{{.key = "a", .value = "bcd"}}));
  EXPECT_TRUE(read_texts(gif_of(std::string_view("\x21\xfe\5hello\0", 9)), "x").empty());
  EXPECT_TRUE(read_texts(gif_of(std::string_view("\x21\xfe\6made =\0", 10)), "x").empty());
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
  EXPECT_THAT(refusal(Bytes(100)), HasSubstr("must be a PNG, WebP, GIF or MP4"));
  const Bytes gif = with_gif_texts(encode_gif(std::vector<Image>{grey()}, 1.0), texts());
  for (size_t size = 6; size < gif.size(); ++size) {
    EXPECT_THAT(refusal({gif.begin(), gif.begin() + static_cast<int64_t>(size)}),
                HasSubstr("ends within a block"));
  }
  Bytes other = gif;
  other[other.size() - 1] = std::byte{7};
  EXPECT_THAT(refusal(other), HasSubstr("a frame or its end at byte"));
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
