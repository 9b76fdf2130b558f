#include "kinora/io/tar.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "kinora/core/philox.h"
#include "kinora/io/image.h"
#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace tar_test {

using test::error_message;
using ::testing::HasSubstr;

// Makes archives block by block, broken ones too.
class Archive {
 public:
  struct Header {
    std::string name;
    std::string size;  // as stored, at most 12 bytes; empty: the content's in octal
    char type = '0';
    std::string magic = std::string(
        "ustar\0"
        "00",
        8);
    std::string prefix = {};
  };

  Archive& add(Header header, const std::string& content = "") {
    char octal[16];
    if (header.size.empty()) {
      std::snprintf(octal, sizeof(octal), "%011zo", content.size());
      header.size = octal;
    }
    std::string block(512, '\0');
    const auto put = [&](size_t offset, const std::string& text) {
      std::memcpy(block.data() + offset, text.data(), text.size());
    };
    put(0, header.name);
    put(100, "0000644");
    put(124, header.size);
    put(148, "        ");
    block[156] = header.type;
    put(257, header.magic);
    put(345, header.prefix);
    unsigned sum = 0;
    for (const char c : block) {
      sum += static_cast<uint8_t>(c);
    }
    std::snprintf(octal, sizeof(octal), "%06o", sum);
    put(148, octal);
    bytes_ += block + content + std::string((512 - content.size() % 512) % 512, '\0');
    return *this;
  }
  Archive& add_pax(const std::string& records, char type = 'x') {
    return add({.name = "pax", .size = {}, .type = type}, records);
  }
  [[nodiscard]] std::string whole() const { return bytes_ + std::string(1024, '\0'); }
  [[nodiscard]] const std::string& without_end() const { return bytes_; }

 private:
  std::string bytes_;
};

// "LENGTH text\n", where LENGTH counts itself.
std::string record(const std::string& text) {
  size_t length = text.size() + 3;
  while (std::to_string(length).size() + text.size() + 2 != length) {
    ++length;
  }
  return std::to_string(length) + " " + text + "\n";
}

class TarTest : public ::testing::Test {
 protected:
  TarFile open(const std::string& bytes) {
    const auto path = folder_ / "a.tar";
    std::ofstream(path, std::ios::binary) << bytes;
    return TarFile::open(path);
  }
  // "NAME=CONTENT" of each entry.
  std::vector<std::string> list(const std::string& bytes) {
    const TarFile tar = open(bytes);
    std::vector<std::string> entries;
    for (const TarEntry& entry : tar.entries()) {
      const auto content = tar.bytes(entry);
      entries.push_back(entry.name + "=" +
                        std::string(reinterpret_cast<const char*>(content.data()), content.size()));
    }
    return entries;
  }
  std::string error(const std::string& bytes) {
    std::string message = error_message(ErrorKind::kIo, [&] { (void)open(bytes); });
    EXPECT_THAT(message, HasSubstr("a.tar"));
    return message;
  }

  test::TemporaryFolder folder_;
};

TEST_F(TarTest, ListsRegularFilesOfUstar) {
  Archive archive;
  archive.add({.name = "train/", .size = {}, .type = '5'})
      .add({.name = "./train/a.jpg", .size = {}}, "first")
      .add({.name = "train/empty", .size = {}})
      .add({.name = "link", .size = {}, .type = '2'})
      .add({.name = "hard", .size = "00000000777", .type = '1'})
      .add({.name = "fifo", .size = {}, .type = '6'})
      .add({.name = "b.jpg", .size = {}, .prefix = "deep/er"}, std::string(512, 'b'))
      .add({.name = std::string(100, 'n'), .size = {}}, "c");
  EXPECT_THAT(list(archive.whole()),
              ::testing::ElementsAre("train/a.jpg=first",
                                     "train/empty=", "deep/er/b.jpg=" + std::string(512, 'b'),
                                     std::string(100, 'n') + "=c"));
}

TEST_F(TarTest, ReadsOldAndGnuHeaders) {
  const std::string gnu = "ustar  ";
  const std::string long_name = std::string(300, 'x') + ".png";
  std::string binary_size(12, '\0');
  binary_size[0] = '\x80';
  binary_size[11] = 3;
  Archive archive;
  archive.add({.name = "v7/", .size = {}, .type = '\0', .magic = ""})
      .add({.name = "v7/a", .size = "       2 ", .type = '\0', .magic = ""}, "aa")
      .add({.name = "././@LongLink", .size = {}, .type = 'K', .magic = gnu}, "some/target")
      .add({.name = "././@LongLink", .size = {}, .type = 'L', .magic = gnu},
           long_name + std::string(1, '\0'))
      .add({.name = "xxx", .size = {}, .magic = gnu, .prefix = "no prefix in GNU's"}, "long")
      .add({.name = "big", .size = binary_size, .magic = gnu}, "big")
      .add({.name = "label", .size = {}, .type = 'V', .magic = gnu});
  EXPECT_THAT(list(archive.whole()),
              ::testing::ElementsAre("v7/a=aa", long_name + "=long", "big=big"));
}

TEST_F(TarTest, ReadsPaxPathsAndSizes) {
  Archive archive;
  archive.add_pax(record("comment=whole archive") + record("path=ignored"), 'g')
      .add_pax(record("mtime=1.5") + record("path=./caf\xc3\xa9/" + std::string(200, 'p')) +
               record("size=4"))
      .add({.name = "short", .size = "00000000000"}, "four")
      .add({.name = "next", .size = {}}, "n");
  EXPECT_THAT(list(archive.whole()),
              ::testing::ElementsAre("caf\xc3\xa9/" + std::string(200, 'p') + "=four", "next=n"));
}

TEST_F(TarTest, NamesAreOnlyNames) {
  Archive archive;
  archive.add({.name = "/etc/passwd", .size = {}}, "x")
      .add({.name = "../../up", .size = {}}, "y")
      .add({.name = "a", .size = {}}, "1")
      .add({.name = "a", .size = {}}, "2");
  EXPECT_THAT(list(archive.whole()),
              ::testing::ElementsAre("/etc/passwd=x", "../../up=y", "a=1", "a=2"));
}

TEST_F(TarTest, AnEmptyArchiveHasNoEntries) {
  EXPECT_TRUE(list(std::string(1024, '\0')).empty());
  EXPECT_TRUE(list(std::string(512, '\0')).empty());
}

TEST_F(TarTest, CompressedArchivesAreNamed) {
  EXPECT_THAT(error("\x1f\x8b and so on"),
              HasSubstr("got a compressed one. Hint: unpack it with gunzip first"));
  EXPECT_THAT(error("BZh91AY"), HasSubstr("bunzip2"));
  EXPECT_THAT(error(std::string("\xfd"
                                "7zXZ\0",
                                6)),
              HasSubstr("unxz"));
  EXPECT_THAT(error("\x28\xb5\x2f\xfd...."), HasSubstr("unzstd"));
}

TEST_F(TarTest, TruncationIsAnError) {
  const std::string bytes = Archive()
                                .add({.name = "a", .size = {}}, std::string(700, 'a'))
                                .add({.name = "b", .size = {}}, std::string(512, 'b'))
                                .without_end();
  for (size_t size = 0; size <= bytes.size(); size += 64) {
    SCOPED_TRACE(size);
    error(bytes.substr(0, size));
  }
  EXPECT_EQ(list(bytes + std::string(512, '\0')).size(), 2U);
}

TEST_F(TarTest, RefusesHostileHeaders) {
  const auto with_size = [](const std::string& size) {
    return Archive().add({.name = "a", .size = size}).whole();
  };
  EXPECT_THAT(error(with_size("77777777777")), HasSubstr("a member of 8589934591 bytes"));
  EXPECT_THAT(error(with_size("-0000000001")), HasSubstr("size that is not an octal number"));
  EXPECT_THAT(error(with_size("9")), HasSubstr("size that is not an octal number, \"9"));
  EXPECT_THAT(error(with_size(std::string(12, '\xff'))), HasSubstr("negative or huge size"));
  EXPECT_THAT(error(with_size("\x80" + std::string(11, '\xff'))), HasSubstr("huge size"));
  EXPECT_THAT(error(with_size("\x80" + std::string(3, '\0') + "\x7f" + std::string(7, '\xff'))),
              HasSubstr("a member of 9223372036854775807 bytes"));

  std::string bad_sum = with_size("0");
  bad_sum[5] = 'x';
  EXPECT_THAT(error(bad_sum), HasSubstr("at byte 0: a header with checksum"));
  EXPECT_THAT(error(std::string(2000, 'z')), HasSubstr("must be a whole, valid tar archive"));

  EXPECT_THAT(error(Archive().add({.name = "./", .size = {}}, "x").whole()),
              HasSubstr("a file without a name"));
  EXPECT_THAT(error(Archive().add({.name = "a", .size = {}, .type = 'S'}).whole()),
              HasSubstr("sparse"));
  EXPECT_THAT(error(Archive()
                        .add({.name = "L", .size = {}, .type = 'L'}, "one")
                        .add({.name = "L", .size = {}, .type = 'L'}, "two")
                        .whole()),
              HasSubstr("two long names"));
  EXPECT_THAT(error(Archive().add({.name = "L", .size = {}, .type = 'L'}, "one").whole()),
              HasSubstr("without its file"));
  EXPECT_THAT(
      error(
          Archive().add({.name = "L", .size = {}, .type = 'L'}, std::string(2 << 20, 'n')).whole()),
      HasSubstr("a name or pax header of 2097152 bytes"));
}

TEST_F(TarTest, RefusesHostilePaxRecords) {
  const auto with_records = [](const std::string& records) {
    return Archive().add_pax(records).add({.name = "a", .size = {}}, "x").whole();
  };
  for (const std::string& broken :
       {std::string("path=x\n"), std::string("99 path=x\n"), std::string("4 a=\n"),
        std::string("0 path=x\n"), std::string("10 path=xxx"), std::string("8 path x\n"),
        std::string("99999999999999999999 path=x\n"), std::string("-9 path=x\n")}) {
    EXPECT_THAT(error(with_records(broken)), HasSubstr("broken pax record")) << broken;
  }
  EXPECT_THAT(error(with_records(record(std::string("path=a\0b", 8)))), HasSubstr("zero byte"));
  EXPECT_THAT(error(with_records(record("size=-1"))), HasSubstr("not a number, \"-1\""));
  EXPECT_THAT(error(with_records(record("size=99999999999999999999"))), HasSubstr("not a number"));
  EXPECT_THAT(error(with_records(record("size=18446744073709551615"))),
              HasSubstr("a member of 18446744073709551615 bytes"));
  EXPECT_THAT(error(with_records(record("GNU.sparse.major=1"))), HasSubstr("sparse"));
}

TEST_F(TarTest, DamagedArchivesNeverReadBeyondTheirEnd) {
  const std::string good = Archive()
                               .add_pax(record("path=some/name") + record("size=5"))
                               .add({.name = "a", .size = {}}, "12345")
                               .add({.name = "L", .size = {}, .type = 'L'}, "long name")
                               .add({.name = "b", .size = {}}, std::string(600, 'b'))
                               .whole();
  const RandomStream stream{.seed = 3};
  uint64_t element = 0;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = good;
    for (int hit = 0; hit < 2; ++hit) {
      const uint32_t where = random_index(stream, element++, static_cast<uint32_t>(good.size()));
      damaged[where] = static_cast<char>(random_index(stream, element++, 256));
    }
    try {
      for (const std::string& entry : list(damaged)) {
        ASSERT_LE(entry.size(), good.size());
      }
    } catch (const Error& caught) {
      ASSERT_EQ(caught.kind(), ErrorKind::kIo);
    }
  }
}

TEST_F(TarTest, IndexesFiftyThousandImages) {
  const char* data = std::getenv("KINORA_DATA");
  const std::filesystem::path path =
      (data != nullptr ? std::filesystem::path(data) : source_path("../shared/data")) /
      "cifar10/train.tar";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "needs the data folder (variable KINORA_DATA): no " << path;
  }
  const TarFile tar = TarFile::open(path);
  ASSERT_EQ(tar.entries().size(), 50000U);
  Image image;
  for (size_t i = 0; i < tar.entries().size(); i += 997) {
    const TarEntry& entry = tar.entries()[i];
    decode_image_into(tar.bytes(entry), entry.name, image);
    EXPECT_EQ(image.height, 32) << entry.name;
    EXPECT_EQ(image.width, 32) << entry.name;
  }
}

}  // namespace tar_test
}  // namespace kinora::io
