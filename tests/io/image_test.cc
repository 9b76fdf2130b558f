#include "kinora/io/image.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "kinora/core/philox.h"
#include "kinora/io/file.h"
#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace image_test {

using test::error_message;
using ::testing::HasSubstr;

const std::string kFolder = source_path("tests/io/data/images/").string();

std::vector<std::byte> read_fixture(const std::string& name) {
  return read_file(kFolder + name, 1 << 20);
}

bool has_tiff() {
  return std::filesystem::exists(build_path("kinora_tiff.so"));
}

// What tools/make_image_fixtures.py wrote: Pillow's pixels.
struct Case {
  std::string name;
  int64_t height;
  int64_t width;
  int tolerance;
  std::vector<uint8_t> expected;
};

std::vector<Case> all_cases() {
  std::ifstream index(kFolder + "index.txt");
  const std::vector<std::byte> pixels = read_fixture("pixels.rgb");
  const auto* next = reinterpret_cast<const uint8_t*>(pixels.data());
  const uint8_t* const end = next + pixels.size();
  std::vector<Case> cases;
  Case c;
  while (index >> c.name >> c.height >> c.width >> c.tolerance) {
    const int64_t size = c.height * c.width * 3;
    if (size > end - next) {
      ADD_FAILURE() << "pixels.rgb is too short";
      return {};
    }
    c.expected.assign(next, next + size);
    next += size;
    if (has_tiff() || !c.name.ends_with(".tif")) {
      cases.push_back(c);
    }
  }
  EXPECT_EQ(next, end);
  return cases;
}

int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<int>(a[i]) - static_cast<int>(b[i])));
  }
  return largest;
}

void put_u32(std::vector<std::byte>& bytes, size_t offset, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) {
    bytes[offset + i] = static_cast<std::byte>(value >> (8 * (3 - i)));
  }
}

TEST(ImageTest, DecodesAsPillowDoes) {
  const std::vector<Case> cases = all_cases();
  ASSERT_GE(cases.size(), 35U);
  Image image;  // reused: nothing of the image before may shine through
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::vector<std::byte> bytes = read_fixture(c.name);
    decode_image_into(bytes, c.name, image);
    ASSERT_EQ(image.height, c.height);
    ASSERT_EQ(image.width, c.width);
    ASSERT_EQ(image.channels, 3);
    ASSERT_EQ(image.pixels.size(), c.expected.size());
    EXPECT_LE(largest_difference(image.pixels, c.expected), c.tolerance);
    std::fill(image.pixels.begin(), image.pixels.end(), uint8_t{77});
  }
}

TEST(ImageTest, SizeComesFromTheHeaderAndIsUpright) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const ImageSize size = image_size(read_fixture(c.name), c.name);
    EXPECT_EQ(size.height, c.height);
    EXPECT_EQ(size.width, c.width);
  }
}

TEST(ImageTest, ReusesItsMemory) {
  const std::vector<std::byte> bytes = read_fixture("rgb_420.jpg");
  Image image = decode_image(bytes, "a");
  const uint8_t* const before = image.pixels.data();
  decode_image_into(bytes, "a", image);
  EXPECT_EQ(image.pixels.data(), before);
}

constexpr size_t kHeaderBytes = 256;
// Sanitizers make decoding ten times slower, and need only some cuts to see reads past an end.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kCutStep = 7;
#else
constexpr size_t kCutStep = 1;
#endif

TEST(ImageTest, EveryTruncationIsAnErrorThatNamesTheFile) {
  for (const Case& c : all_cases()) {
    const std::vector<std::byte> bytes = read_fixture(c.name);
    if (c.name == "pages.tif") {
      continue;  // of which nobody looks at the second page
    }
    // Cuts that only take bytes behind the first frame of an animation count too, but those that
    // take nothing but the padding of the last chunk, or the code that ends a fax, leave a whole
    // file.
    const size_t end = c.name == "fax.tif" ? 4 : 1;
    for (size_t size = 0; size + end < bytes.size(); size += size < kHeaderBytes ? 1 : kCutStep) {
      SCOPED_TRACE(c.name + " cut to " + std::to_string(size));
      // A copy, behind whose end sanitizers watch.
      const std::vector<std::byte> cut(bytes.data(), bytes.data() + size);
      const std::string message =
          error_message(ErrorKind::kIo, [&] { (void)decode_image(cut, "folder/" + c.name); });
      ASSERT_THAT(message, HasSubstr("folder/" + c.name));
    }
  }
}

TEST(ImageTest, DamagedBytesGiveAnErrorOrAnImageButNeverACrash) {
  int num_errors = 0;
  uint64_t element = 0;
  const RandomStream stream{.seed = 7};
  for (const Case& c : all_cases()) {
    const std::vector<std::byte> bytes = read_fixture(c.name);
    for (int round = 0; round < 60; ++round) {
      std::vector<std::byte> damaged = bytes;
      for (int hits = 0; hits < 3; ++hits) {
        const uint32_t where = random_index(stream, element++, static_cast<uint32_t>(bytes.size()));
        damaged[where] = static_cast<std::byte>(random_index(stream, element++, 256));
      }
      try {
        // Damage in the header may claim a legal but huge image: not worth the time here.
        const ImageSize size = image_size(damaged, c.name);
        if (size.height * size.width < 1 << 20) {
          (void)decode_image(damaged, c.name);
        }
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kIo);
        ++num_errors;
      }
    }
  }
  EXPECT_GT(num_errors, 500);
}

TEST(ImageTest, FlippedBitInPngDataIsFoundByItsChecksum) {
  std::vector<std::byte> bytes = read_fixture("interlaced.png");
  bytes[bytes.size() / 2] ^= std::byte{1};
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(bytes, "x.png"); }),
              HasSubstr("libpng says"));
}

TEST(ImageTest, DamagedJpegDataIsAnErrorAlthoughTheLibraryOnlyWarns) {
  std::vector<std::byte> bytes = read_fixture("rgb_420.jpg");
  // An end marker in the middle of the pixels: a premature end for libjpeg, which would fill up.
  bytes[bytes.size() - 60] = std::byte{0xff};
  bytes[bytes.size() - 59] = std::byte{0xd9};
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(bytes, "x.jpg"); }),
              HasSubstr("premature end"));
}

TEST(ImageTest, RefusesOtherFormatsAndEmptyFiles) {
  EXPECT_THAT(
      error_message(ErrorKind::kIo, [] { (void)decode_image({}, "none.png"); }),
      HasSubstr("none.png must be a PNG, JPEG, WebP, GIF, BMP or TIFF image, got an empty file"));
  const std::string text = "%PDF-1.7 and what follows";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(bytes, "a.gif"); }),
              HasSubstr("a.gif must be a PNG, JPEG, WebP, GIF, BMP or TIFF image"));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)image_size(bytes, "a.gif"); }),
              HasSubstr("a.gif"));
}

TEST(ImageTest, RefusesWhatAFormatMayHoldAndIsNotRead) {
  std::vector<std::byte> packed = read_fixture("8bit.bmp");
  packed[30] = std::byte{1};  // its compression: run lengths
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(packed, "a.bmp"); }),
              HasSubstr("compressed ones are not read"));
  std::vector<std::byte> tableless = read_fixture("palette.gif");
  tableless[10] = std::byte{0x70};  // says that no table of colours follows
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(tableless, "a.gif"); }),
              HasSubstr("a.gif must be a whole, valid GIF"));
  std::vector<std::byte> floats = read_fixture("rgb16.tif");
  const std::vector<std::byte> bits = {std::byte{16}, std::byte{0},  std::byte{16},
                                       std::byte{0},  std::byte{16}, std::byte{0}};
  const auto place = std::search(floats.begin(), floats.end(), bits.begin(), bits.end());
  ASSERT_NE(place, floats.end());
  for (const int64_t i : {0, 2, 4}) {
    place[i] = std::byte{32};
  }
  if (has_tiff()) {
    EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(floats, "a.tif"); }),
                HasSubstr("libtiff says: Sorry, can not handle images with 32-bit samples"));
  }
}

TEST(ImageDeathTest, WithoutTheModuleATiffSaysWhatIsMissing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not loaded it
  const auto tell = [] {
    ::setenv("KINORA_MODULES", source_path("tests/io/data").c_str(), 1);
    std::cerr << error_message(ErrorKind::kConfig,
                               [] { (void)image_size(read_fixture("gray.tif"), "a.tif"); });
    std::exit(0);
  };
  EXPECT_EXIT(tell(), ::testing::ExitedWithCode(0), "this build has no TIFF module.*setup.sh");
}

TEST(ImageTest, RefusesSizesOutsideTheLimitsBeforeAskingForMemory) {
  constexpr size_t kWidthOffset = 16;  // in a PNG
  constexpr size_t kHeightOffset = 20;
  const auto png_of = [](uint32_t width, uint32_t height) {
    std::vector<std::byte> bytes = read_fixture("rgb.png");
    put_u32(bytes, kWidthOffset, width);
    put_u32(bytes, kHeightOffset, height);
    return bytes;
  };
  const auto decode_error = [](const std::vector<std::byte>& bytes) {
    return error_message(ErrorKind::kIo, [&] { (void)decode_image(bytes, "bomb.png"); });
  };
  EXPECT_THAT(decode_error(png_of(0, 5)), HasSubstr("at least one pixel, got 0 x 5"));
  EXPECT_THAT(decode_error(png_of(5, 0)), HasSubstr("at least one pixel, got 5 x 0"));
  EXPECT_THAT(decode_error(png_of(65536, 1)), HasSubstr("at most 65535, got 65536 x 1"));
  EXPECT_THAT(decode_error(png_of(0xffffffffU, 0xffffffffU)), HasSubstr("at most"));
  EXPECT_THAT(decode_error(png_of(16385, 16384)), HasSubstr("at most 268435456 pixels"));

  // Of these the size stands at a known place, in little endian.
  struct Place {
    const char* name;
    size_t width;
    size_t height;
    size_t count;  // bytes that make it too large
  };
  for (const Place& place : {Place{"24bit.bmp", 18, 22, 3}, Place{"palette.gif", 6, 8, 2}}) {
    std::vector<std::byte> bytes = read_fixture(place.name);
    for (size_t i = 0; i < place.count; ++i) {
      bytes[place.width + i] = std::byte{0xff};
      bytes[place.height + i] = i < 2 ? std::byte{0xff} : std::byte{0};
    }
    EXPECT_THAT(decode_error(bytes), HasSubstr("at most 268435456 pixels")) << place.name;
  }

  // SOF0 of a JPEG: marker, length (2 bytes), precision, height, width.
  std::vector<std::byte> jpeg = read_fixture("rgb_444.jpg");
  const std::vector<std::byte> sof = {std::byte{0xff}, std::byte{0xc0}, std::byte{0}};
  const auto frame = std::search(jpeg.begin(), jpeg.end(), sof.begin(), sof.end());
  ASSERT_NE(frame, jpeg.end());
  const auto size_offset = static_cast<size_t>(frame - jpeg.begin()) + 5;
  put_u32(jpeg, size_offset, 0xffdcffdcU);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(jpeg, "bomb.jpg"); }),
              HasSubstr("at most 268435456 pixels"));
  put_u32(jpeg, size_offset, 5);  // height 0
  error_message(ErrorKind::kIo, [&] { (void)decode_image(jpeg, "zero.jpg"); });
}

TEST(ImageTest, ATinyPngThatClaimsManyPixelsIsRefusedUnread) {
  std::vector<std::byte> bytes = read_fixture("rgb.png");
  put_u32(bytes, 16, 16000);
  put_u32(bytes, 20, 16000);
  // The header's checksum must be right to get this far: CRC-32 of "IHDR" and 16000 x 16000, 8
  // bits.
  uint32_t crc = 0xffffffffU;
  for (size_t i = 12; i < 29; ++i) {
    crc ^= static_cast<uint32_t>(bytes[i]);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
    }
  }
  put_u32(bytes, 29, ~crc);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)decode_image(bytes, "bomb.png"); }),
              HasSubstr("cannot hold 16000 x 16000 pixels"));
}

TEST(ImageTest, DamagedExifCountsAsUpright) {
  const std::vector<std::byte> good = read_fixture("orientation_6.jpg");
  const std::string prefix("Exif\0\0", 6);
  const auto* text = reinterpret_cast<const char*>(good.data());
  const size_t tiff = std::string_view(text, good.size()).find(prefix) + prefix.size();
  ASSERT_LT(tiff, good.size());
  EXPECT_EQ(image_size(good, "good").height, 19);
  // Little-endian fixture: a directory far away, too many entries, a value out of range.
  for (const auto& [offset, value] :
       std::vector<std::pair<size_t, int>>{{7, 0xff}, {2, 0}, {18, 9}, {18, 0}, {0, 'X'}}) {
    SCOPED_TRACE(offset);
    std::vector<std::byte> bytes = good;
    bytes[tiff + offset] = static_cast<std::byte>(value);
    EXPECT_EQ(decode_image(bytes, "damaged").height, 13);
  }
  std::vector<std::byte> bytes = good;
  bytes[tiff + 9] = std::byte{0xff};   // 65,281 entries
  bytes[tiff + 10] = std::byte{0x13};  // the only whole one is another tag
  EXPECT_EQ(decode_image(bytes, "damaged").height, 13);
}

TEST(ImageTest, WrittenPngReadsBackTheSame) {
  Image image;
  image.height = 7;
  image.width = 5;
  for (int i = 0; i < 7 * 5 * 3; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(i * 37));
  }
  const std::vector<std::byte> png = encode_png(image);
  const Image back = decode_image(png, "back");
  EXPECT_EQ(back.height, 7);
  EXPECT_EQ(back.width, 5);
  EXPECT_EQ(back.pixels, image.pixels);

  const test::TemporaryFolder folder;
  write_png(folder / "a.png", image);
  EXPECT_EQ(read_file(folder / "a.png", 1 << 20), png);
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "a temporary file was left";
}

TEST(ImageTest, RefusesToWriteWhatIsNoImage) {
  Image image{.height = 2, .width = 2, .channels = 3, .pixels = std::vector<uint8_t>(11)};
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)encode_png(image); }),
              HasSubstr("got 2 x 2 with 3 channels and 11 bytes"));
  EXPECT_THAT(error_message(ErrorKind::kShape, [&] { (void)encode_png(Image{}); }),
              HasSubstr("got 0 x 0"));
  image.pixels.resize(12);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { write_png("/nonexistent/a.png", image); }),
              HasSubstr("/nonexistent"));
}

}  // namespace image_test
}  // namespace kinora::io
