#include "kinora/io/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "kinora/io/inflate.h"
#include "tests/io/io_testing.h"
#include "tests/io/zip_builder.h"
#include "tests/places.h"

namespace kinora::io {
namespace npz_test {

using test::error_message;
using test::make_zip;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kData = source_path("tests/io/data/npz");
constexpr std::string_view kMagic = "\x93NUMPY";

std::vector<double> doubles(const NpyArray& array) {
  std::vector<double> values(array.data().size() / sizeof(double));
  std::memcpy(values.data(), array.data().data(), array.data().size());
  return values;
}

/// 0, 1/8, 2/8, ...: what the fixtures hold.
std::vector<double> eighths(size_t count) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<double>(i) / 8.0);
  }
  return values;
}

/// An array of format 1 with this header and data.
std::string npy(const std::string& header, const std::string& data) {
  std::string text(kMagic);
  text.append("\x01", 1).append("\0", 1).append(test::le(2, header.size()));
  return text + header + data;
}

class NpzTest : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path written(const std::string& bytes) const {
    write_file_atomic(folder_ / "file.npz", bytes);
    return folder_ / "file.npz";
  }

  /// What reading the one array `content` says.
  [[nodiscard]] std::string refusal(const std::string& content) const {
    const fs::path path = written(make_zip({{"x.npy", content}}));
    return error_message(ErrorKind::kIo, [&] { (void)NpzFile::open(path).read("x"); });
  }

  test::TemporaryFolder folder_;
};

class NpzFixtureTest : public ::testing::TestWithParam<const char*> {};

TEST_P(NpzFixtureTest, ReadsWhatNumpyWrites) {
  const NpzFile file = NpzFile::open(kData / GetParam());
  EXPECT_EQ(file.names().size(), 10U);
  const std::vector<int64_t> shape = {2, 3, 4};
  for (const char* name : {"doubles", "fortran", "big"}) {
    const NpyArray array = file.read(name);
    EXPECT_EQ(array.dtype(), DType::kF64) << name;
    EXPECT_EQ(array.shape(), shape) << name;
    EXPECT_EQ(doubles(array), eighths(24)) << name;
  }
  const NpyArray floats = file.read("floats");
  EXPECT_EQ(floats.dtype(), DType::kF32);
  float last = 0.0F;
  std::memcpy(&last, floats.data().data() + 23 * sizeof(float), sizeof(float));
  EXPECT_EQ(last, 23.0F / 8.0F);
  EXPECT_EQ(file.read("halves").dtype(), DType::kF16);
  EXPECT_EQ(file.read("longs").dtype(), DType::kI64);
  EXPECT_EQ(file.read("longs").shape(), std::vector<int64_t>{5});
  EXPECT_EQ(file.read("bytes").data()[6], std::byte{6});
  EXPECT_EQ(file.read("bools").dtype(), DType::kBool);
  EXPECT_EQ(doubles(file.read("scalar")), std::vector<double>{2.5});
  EXPECT_TRUE(file.read("scalar").shape().empty());
  EXPECT_EQ(file.read("empty").shape(), (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE(file.read("empty").data().empty());
}

INSTANTIATE_TEST_SUITE_P(Npz, NpzFixtureTest, ::testing::Values("stored.npz", "deflated.npz"),
                         [](const auto& info) { return fs::path(info.param).stem().string(); });

TEST_F(NpzTest, ReadsAllVersionsOfTheFormat) {
  const NpzFile file = NpzFile::open(kData / "versions.npz");
  for (const char* name : {"v1", "v2", "v3"}) {
    EXPECT_EQ(doubles(file.read(name)), eighths(24)) << name;
  }
}

TEST_F(NpzTest, WritesArraysAsNumpyDoes) {
  const std::vector<double> values = eighths(24);
  const std::array<int64_t, 5> longs = {0, 1, 2, 3, 4};
  const double scalar = 2.5;
  const std::vector<NpzMember> members = {
      {"doubles", DType::kF64, {2, 3, 4}, std::as_bytes(std::span(values))},
      {"longs", DType::kI64, {5}, std::as_bytes(std::span(longs))},
      {"scalar", DType::kF64, {}, std::as_bytes(std::span(&scalar, 1))}};
  write_npz(folder_ / "own.npz", members);
  const MappedFile own(folder_ / "own.npz");
  const MappedFile numpy(kData / "stored.npz");
  const ZipArchive ours(own.bytes(), "own");
  const ZipArchive theirs(numpy.bytes(), "numpy");
  ASSERT_EQ(ours.entries().size(), 3U);
  for (const ZipEntry& entry : ours.entries()) {
    ours.verify(entry);
    const ZipEntry* const same = theirs.find(entry.name);
    ASSERT_NE(same, nullptr) << entry.name;
    EXPECT_TRUE(std::ranges::equal(entry.data, same->data)) << entry.name;
  }
  EXPECT_EQ(doubles(NpzFile::open(folder_ / "own.npz").read("doubles")), values);
}

TEST_F(NpzTest, NeverReadsObjects) {
  const NpzFile file = NpzFile::open(kData / "objects.npz");
  EXPECT_EQ(file.read("good").shape(), std::vector<int64_t>{3});
  const auto message = [&](const char* name) {
    return error_message(ErrorKind::kIo, [&] { (void)file.read(name); });
  };
  EXPECT_THAT(message("objects"), AllOf(HasSubstr("objects.npy"), HasSubstr("a pickle")));
  EXPECT_THAT(message("records"), HasSubstr("got records"));
  EXPECT_THAT(message("words"), HasSubstr("\"<U1\""));
  EXPECT_THAT(message("complex"), HasSubstr("\"<c8\""));
  EXPECT_THAT(message("mu"), AllOf(HasSubstr("\"mu\""), HasSubstr("good, objects")));
}

TEST_F(NpzTest, RefusesHeadersThatLie) {
  const std::string good = "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }\n";
  const fs::path path = written(make_zip({{"x.npy", npy(good, "ab")}}));
  EXPECT_EQ(NpzFile::open(path).read("x").data().size(), 2U);
  EXPECT_THAT(refusal(npy(good, "abc")), HasSubstr("got 3 bytes"));
  EXPECT_THAT(refusal(npy(good, "")), HasSubstr("got 0 bytes"));
  EXPECT_THAT(refusal("no array"), HasSubstr("something else"));
  const auto with = [&](const std::string& header) { return refusal(npy(header, "ab")); };
  EXPECT_THAT(with("{'descr': '|u1', 'shape': (2,), }"), HasSubstr("lacks a key"));
  EXPECT_THAT(with("{'descr': '|u1', 'fortran_order': 0, 'shape': (2,), }"),
              HasSubstr("neither True nor False"));
  EXPECT_THAT(with("{'descr': '|u1', 'fortran_order': False, 'shape': (-2,), }"),
              HasSubstr("a shape of other"));
  EXPECT_THAT(with("{'descr': '|u1', 'descr': '|u1', 'shape': (2,), }"), HasSubstr("double key"));
  EXPECT_THAT(with("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), } x"),
              HasSubstr("text behind it"));
  // The elements of this shape, times their size, are 2^64 + 2.
  EXPECT_THAT(with("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"),
              HasSubstr("elements of its shape"));
  std::string longer = npy(good, "ab");
  longer[8] = '\xff';
  EXPECT_THAT(refusal(longer), HasSubstr("lies within it"));
}

TEST_F(NpzTest, SeesDamage) {
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    const std::string sound = read_text(kData / name, 1 << 20);
    int refused = 0;
    for (size_t i = 40; i + 40 < sound.size(); i += 97) {
      std::string damaged = sound;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      const fs::path path = written(damaged);
      try {
        const NpzFile file = NpzFile::open(path);
        for (const std::string& each : file.names()) {
          (void)file.read(each);
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
        ++refused;
      }
    }
    // Bytes that nobody looks at (dates) may change; data and sizes may not.
    EXPECT_GT(refused, 15) << name;
  }
}

TEST(InflateTest, RefusesStreamsOfOtherSizes) {
  // "aaaaaaaaaa" by zlib, raw: zlib.compressobj(9, zlib.DEFLATED, -15).
  const std::array<std::byte, 5> packed = {std::byte{0x4b}, std::byte{0x4c}, std::byte{0x84},
                                           std::byte{0x01}, std::byte{0x00}};
  EXPECT_EQ(inflate(packed, 10, "f"), std::vector<std::byte>(10, std::byte{'a'}));
  const auto message = [&](std::span<const std::byte> bytes, uint64_t size) {
    return error_message(ErrorKind::kIo, [&] { (void)inflate(bytes, size, "f"); });
  };
  EXPECT_THAT(message(packed, 9), HasSubstr("got more"));
  EXPECT_THAT(message(packed, 11), HasSubstr("got 10"));
  EXPECT_THAT(message(std::span(packed).first(2), 10), HasSubstr("whole deflate stream"));
  EXPECT_THAT(message(packed, uint64_t{1} << 60), HasSubstr("cannot hold as much"));
}

}  // namespace npz_test
}  // namespace kinora::io
