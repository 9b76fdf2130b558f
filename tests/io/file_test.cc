#include "kinora/io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <numeric>

#include "tests/io/io_testing.h"

namespace kinora::io {
namespace file_test {

using test::error_message;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_string(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

size_t num_files(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(MappedFileTest, ShowsTheBytesAndMoves) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  std::ofstream(path) << "hello";
  MappedFile first(path);
  EXPECT_EQ(as_string(first.bytes()), "hello");
  MappedFile second(std::move(first));
  EXPECT_EQ(as_string(second.bytes()), "hello");
  std::ofstream(folder.path() / "b") << "";
  MappedFile empty(folder.path() / "b");
  EXPECT_TRUE(empty.bytes().empty());
  empty = std::move(second);
  EXPECT_EQ(as_string(empty.bytes()), "hello");
  EXPECT_EQ(empty.path(), path);
}

TEST(MappedFileTest, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { MappedFile file(folder.path() / "none"); }),
              AllOf(HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { MappedFile file(folder.path()); }),
              HasSubstr("folder"));
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { MappedFile file(folder.path() / "pipe"); }),
              HasSubstr("regular"));
}

TEST(ReadFileTest, ReadsUpToTheLimit) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  std::ofstream(path) << "12345";
  EXPECT_EQ(as_string(read_file(path, 5)), "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)read_file(path, 4); }),
              AllOf(HasSubstr("at most 4"), HasSubstr("got 5"), HasSubstr(path.string())));
}

TEST(WriteFileAtomicTest, ReplacesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  write_file_atomic(path, "first, a longer text");
  write_file_atomic(path, "second");
  EXPECT_EQ(read_text(path, 100), "second");
  EXPECT_EQ(num_files(folder.path()), 1U);
}

TEST(WriteFileAtomicTest, KeepsTheOldFileWhenItFails) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  std::filesystem::create_directory(path);  // a file cannot replace a folder
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { write_file_atomic(path, "text"); }),
              HasSubstr(path.string()));
  EXPECT_TRUE(std::filesystem::is_directory(path));
  EXPECT_EQ(num_files(folder.path()), 1U);
  EXPECT_THAT(
      error_message(ErrorKind::kIo, [&] { write_file_atomic(folder.path() / "no" / "a", "text"); }),
      HasSubstr("No such file"));
}

TEST(FileWriterTest, JoinsSmallAndLargePieces) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  std::string expected;
  FileWriter writer(path);
  // Around the buffer's size of 1 MiB.
  for (const size_t size :
       {3UL, 1048576UL, 1UL, 1048575UL, 1UL, 0UL, 2500000UL, 700000UL, 700000UL}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    writer.append(piece);
    expected += piece;
    EXPECT_EQ(writer.size(), static_cast<int64_t>(expected.size()));
  }
  writer.write_at(2, as_bytes("XY"));
  expected.replace(2, 2, "XY");
  writer.append("end");
  expected += "end";
  writer.sync();
  writer.close();
  EXPECT_TRUE(read_text(path, 1 << 24) == expected);
}

TEST(FileWriterTest, NewRefusesFilesAndLinks) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "a") << "old";
  std::filesystem::create_symlink("elsewhere", folder.path() / "link");
  for (const char* name : {"a", "link"}) {
    EXPECT_THAT(
        error_message(ErrorKind::kIo,
                      [&] { FileWriter writer(folder.path() / name, FileWriter::Create::kNew); }),
        HasSubstr("File exists"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "elsewhere"));
}

TEST(WriteFileAtomicTest, APipeOrADeviceIsNotReplaced) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { write_file_atomic(pipe, "x"); }),
              HasSubstr("must be a regular file, got a pipe or a device"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            1)
      << "nothing half-made is left";
}

TEST(FileWriterTest, ReportsAFullDevice) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full here";
  }
  FileWriter writer("/dev/full");
  writer.append("buffered");
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { writer.close(); }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("8 bytes"), HasSubstr("No space left")));
}

TEST(FileReaderTest, ReadsAnywhere) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  {
    FileWriter writer(path);
    writer.write_at(6, as_bytes("world"));  // in any order
    writer.write_at(0, as_bytes("hello "));
    writer.start_sync(0, 11);
    writer.sync();
    writer.close();
  }
  const FileReader reader(path);
  EXPECT_EQ(reader.size(), 11);
  reader.start_reading(0, reader.size());
  std::vector<std::byte> piece(5);
  reader.read_at(6, piece);
  EXPECT_EQ(as_string(piece), "world");
  reader.read_at(1, piece);
  EXPECT_EQ(as_string(piece), "ello ");
  reader.read_at(11, std::span<std::byte>());
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { reader.read_at(7, piece); }),
              AllOf(HasSubstr(path.string()), HasSubstr("must have 5 bytes from 7 on, got 4")));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { const FileReader none(folder.path() / "none"); }),
              HasSubstr("none"));
}

TEST(FreeSpaceTest, IsKnownForFoldersThatExist) {
  const TemporaryFolder folder;
  EXPECT_GT(free_space(folder.path()), 0);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)free_space(folder.path() / "none"); }),
              HasSubstr("none"));
  sync_folder(folder.path());
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { sync_folder(folder.path() / "none"); }),
              HasSubstr("none"));
}

// Test values of xxHash itself (cli/xsum_sanity_check.c, XXH3_64bits with seed 0).
TEST(ChecksumTest, EqualsPublishedValues) {
  std::vector<std::byte> buffer(2367);
  uint64_t generator = 2654435761U;
  for (std::byte& byte : buffer) {
    byte = static_cast<std::byte>(generator >> 56);
    generator *= 11400714785074694797ULL;
  }
  const std::pair<size_t, const char*> expected[] = {
      {0, "2d06800538d394c2"},   {1, "c44bdff4074eecdb"},    {6, "27b56a84cd2d7325"},
      {12, "a713daf0dfbb77e7"},  {24, "a3fe70bf9d3510eb"},   {48, "397da259ecba1f11"},
      {80, "bcdefbbb2c47c90a"},  {195, "cd94217ee362ec3a"},  {403, "cdeb804d65c6dea4"},
      {512, "617e49599013cb6b"}, {2048, "dd59e2c3a5f038e0"}, {2367, "cb37aeb9e5d361ed"},
  };
  for (const auto& [size, hex] : expected) {
    EXPECT_EQ(checksum(std::span(buffer).first(size)), hex) << size;
  }
  Checksum sum;
  for (size_t at = 0; at < buffer.size(); at += 100) {
    sum.update(std::span(buffer).subspan(at, std::min<size_t>(100, buffer.size() - at)));
  }
  EXPECT_EQ(sum.hex(), "cb37aeb9e5d361ed");
}

TEST(InQuotesTest, EscapesAndShortens) {
  EXPECT_EQ(in_quotes("a b"), "\"a b\"");
  EXPECT_EQ(in_quotes(std::string_view("\x1b[2J\0\xff", 6)), "\"\\x1b[2J\\x00\\xff\"");
  EXPECT_EQ(in_quotes(std::string(1000, 'a')), "\"" + std::string(120, 'a') + "\"...");
}

}  // namespace file_test
}  // namespace kinora::io
