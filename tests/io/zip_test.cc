#include "kinora/io/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/io_testing.h"
#include "tests/io/zip_builder.h"

namespace kinora::io {
namespace zip_test {

using test::error_message;
using test::make_zip;
using test::put_le;
using test::ZipParts;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_string(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string refusal(const std::string& content) {
  std::string message =
      error_message(ErrorKind::kIo, [&] { ZipArchive archive(as_bytes(content), "THE_FILE"); });
  EXPECT_THAT(message, HasSubstr("THE_FILE"));
  return message;
}

/// Where the parts of make_zip({{"a", "AAAA"}, {"b", "BB"}}) lie.
constexpr size_t kFirstData = 31;
constexpr size_t kSecondLocal = 35;
constexpr size_t kDirectory = 68;
constexpr size_t kSecondCentral = kDirectory + 47;
constexpr size_t kEnd = kSecondCentral + 47;

class HostileZipTest : public ::testing::Test {
 protected:
  /// The refusal of the sound archive with `size` bytes at `offset` replaced by `value`.
  std::string changed(size_t offset, size_t size, uint64_t value) {
    std::string content = sound_;
    put_le(&content, offset, size, value);
    return refusal(content);
  }

  std::string sound_ = make_zip({{"a", "AAAA"}, {"b", "BB"}});
};

// The check value of the CRC catalogue for CRC-32/ISO-HDLC, and one that needs the eight-byte steps
// (Python's zlib.crc32 of bytes(range(256))).
TEST(Crc32Test, EqualsPublishedValues) {
  EXPECT_EQ(crc32({}), 0U);
  EXPECT_EQ(crc32(as_bytes("123456789")), 0xcbf43926U);
  std::string all;
  for (int i = 0; i < 256; ++i) {
    all += static_cast<char>(i);
  }
  EXPECT_EQ(crc32(as_bytes(all)), 0x29058c73U);
}

TEST(ZipArchiveTest, ListsAndFindsEntries) {
  const std::string content = make_zip({{"a", "AAAA"}, {"folder/", ""}, {"folder/b.c", ""}});
  const ZipArchive archive(as_bytes(content), "f");
  ASSERT_EQ(archive.entries().size(), 2U);
  EXPECT_EQ(as_string(archive.find("a")->data), "AAAA");
  EXPECT_TRUE(archive.find("folder/b.c")->data.empty());
  EXPECT_EQ(archive.find("folder/"), nullptr);
  archive.verify(*archive.find("a"));
  const std::string nothing = make_zip({});
  EXPECT_THAT(ZipArchive(as_bytes(nothing), "f").entries(), IsEmpty());
}

TEST(ZipArchiveTest, ReadsCommentsAndSixtyFourBitRecords) {
  std::string comment = make_zip({{"a", "AAAA"}});
  put_le(&comment, comment.size() - 2, 2, 5);
  comment += "hello";
  EXPECT_EQ(ZipArchive(as_bytes(comment), "f").entries().size(), 1U);
  const std::string large = make_zip({{"a", "AAAA"}, {"b", "BB"}}, ZipParts::k64);
  const ZipArchive archive(as_bytes(large), "f");
  EXPECT_EQ(as_string(archive.find("b")->data), "BB");
}

TEST(ZipArchiveTest, ComparesChecksums) {
  std::string content = make_zip({{"a", "AAAA"}, {"b", "BB"}});
  content[kFirstData] = 'x';
  const ZipArchive archive(as_bytes(content), "THE_FILE");
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { archive.verify(*archive.find("a")); }),
              AllOf(HasSubstr("THE_FILE"), HasSubstr("\"a\""), HasSubstr("damaged")));
  archive.verify(*archive.find("b"));
}

TEST(ZipArchiveTest, KnowsArchivesWithoutChecksums) {
  std::string content = make_zip({{"a", "AAAA"}, {"b", "BB"}});
  put_le(&content, kDirectory + 16, 4, 0);
  put_le(&content, kSecondCentral + 16, 4, 0);
  const ZipArchive archive(as_bytes(content), "f");
  archive.verify(*archive.find("a"));
}

TEST_F(HostileZipTest, EndRecords) {
  EXPECT_THAT(refusal(""), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal(std::string(1000, 'x')), HasSubstr("got none"));
  EXPECT_THAT(refusal(sound_ + "x"), HasSubstr("got none"));
  EXPECT_THAT(changed(kEnd + 4, 2, 1), HasSubstr("one part"));
  EXPECT_THAT(changed(kEnd + 10, 2, 3), HasSubstr("one part"));
  EXPECT_THAT(changed(kEnd + 16, 4, 0xfffffff0), HasSubstr("within the file"));
  EXPECT_THAT(changed(kEnd + 12, 4, 0xfffffff0), HasSubstr("within the file"));
  EXPECT_THAT(changed(kEnd + 12, 4, 95), HasSubstr("within the file"));
  EXPECT_THAT(changed(kEnd + 16, 4, kDirectory - 1), HasSubstr("headers only"));
  std::string many = sound_;
  put_le(&many, kEnd + 8, 2, 3);
  put_le(&many, kEnd + 10, 2, 3);
  EXPECT_THAT(refusal(many), HasSubstr("3 entries"));
  std::string few = sound_;
  put_le(&few, kEnd + 8, 2, 1);
  put_le(&few, kEnd + 10, 2, 1);
  EXPECT_THAT(refusal(few), HasSubstr("only its 1 entries"));
}

TEST_F(HostileZipTest, SixtyFourBitRecords) {
  const std::string sound = make_zip({{"a", "AAAA"}}, ZipParts::k64);
  const size_t end = sound.size() - 22;
  const size_t locator = end - 20;
  const size_t record = locator - 56;
  const auto changed64 = [&](size_t offset, size_t size, uint64_t value) {
    std::string content = sound;
    put_le(&content, offset, size, value);
    return refusal(content);
  };
  EXPECT_THAT(changed64(locator + 8, 8, ~uint64_t{0}), HasSubstr("before its locator"));
  EXPECT_THAT(changed64(locator + 8, 8, record - 1), HasSubstr("before its locator"));
  EXPECT_THAT(changed64(record + 48, 8, ~uint64_t{0} - 4), HasSubstr("within the file"));
  EXPECT_THAT(changed64(record + 40, 8, ~uint64_t{0}), HasSubstr("within the file"));
  std::string many = sound;
  put_le(&many, record + 24, 8, uint64_t{1} << 60);
  put_le(&many, record + 32, 8, uint64_t{1} << 60);
  EXPECT_THAT(refusal(many), HasSubstr("within the file"));
  EXPECT_THAT(changed64(end + 16, 4, 7), HasSubstr("must agree"));
}

TEST_F(HostileZipTest, Entries) {
  EXPECT_THAT(changed(kDirectory, 1, 'x'), HasSubstr("headers only"));
  EXPECT_THAT(changed(kDirectory + 8, 2, 1), HasSubstr("encrypted"));
  EXPECT_THAT(changed(kDirectory + 10, 2, 8), HasSubstr("compression method 8"));
  EXPECT_THAT(changed(8, 2, 8), HasSubstr("name and method"));
  EXPECT_THAT(changed(30, 1, 'c'), HasSubstr("name and method"));
  EXPECT_THAT(changed(kDirectory + 24, 4, 5), HasSubstr("one size"));
  EXPECT_THAT(changed(kDirectory + 28, 2, 60000), HasSubstr("end in the directory"));
  EXPECT_THAT(changed(kDirectory + 42, 4, 0xfffffffe), HasSubstr("before the directory"));
  EXPECT_THAT(changed(kDirectory + 42, 4, kDirectory), HasSubstr("before the directory"));
  EXPECT_THAT(changed(kDirectory + 42, 4, 1), HasSubstr("before the directory"));
  EXPECT_THAT(changed(0, 1, 'x'), HasSubstr("before the directory"));
  EXPECT_THAT(changed(kSecondLocal + 28, 2, 3), HasSubstr("lie before the directory"));
  std::string longer = sound_;
  put_le(&longer, kDirectory + 20, 4, 5);
  put_le(&longer, kDirectory + 24, 4, 5);
  EXPECT_THAT(refusal(longer), HasSubstr("must not overlap"));
  put_le(&longer, kDirectory + 20, 4,
         0xffffffff);  // the 64-bit field that this points to is not there
  EXPECT_THAT(refusal(longer), HasSubstr("one size"));
}

TEST_F(HostileZipTest, Names) {
  for (const std::string name :
       {"..", "../a", "a/../b", "a/..", "/a", "a//b", "./a", "a\\b", "a/."}) {
    EXPECT_THAT(refusal(make_zip({{name, "A"}})), HasSubstr("plain relative paths")) << name;
  }
  EXPECT_THAT(refusal(make_zip({{"", "A"}})), HasSubstr("plain relative paths"));
  EXPECT_THAT(refusal(make_zip({{std::string("a\0b", 3), "A"}})), HasSubstr("plain relative"));
  EXPECT_THAT(refusal(make_zip({{"a", "A"}, {"a", "B"}})), HasSubstr("\"a\" twice"));
  EXPECT_THAT(refusal(make_zip({{"a/", "A"}})), HasSubstr("folder must be empty"));
}

TEST_F(HostileZipTest, EveryCut) {
  for (const ZipParts parts : {ZipParts::k32, ZipParts::k64}) {
    const std::string sound = make_zip({{"a", "AAAA"}, {"b", "BB"}}, parts);
    for (size_t size = 0; size < sound.size(); ++size) {
      (void)refusal(sound.substr(0, size));
    }
  }
}

}  // namespace zip_test
}  // namespace kinora::io
