#include "kinora/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace safetensors_test {

using test::error_message;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::filesystem::path kPython = source_path("tests/io/data/python.safetensors");

void write_raw(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// The same for a file of this size already: much faster, since replaced files are synced.
void overwrite(const std::filesystem::path& path, const std::string& content) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << content;
}

/// A file of this header (its length taken from it) and data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return length + header + data;
}

class HostileSafetensorsTest : public ::testing::Test {
 protected:
  std::string refusal(const std::string& content) {
    write_raw(path_, content);
    std::string message =
        error_message(ErrorKind::kIo, [&] { (void)SafetensorsFile::open(path_); });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    return message;
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "a.safetensors";
};

template <typename T>
std::vector<T> values(const SafetensorsTensor& tensor) {
  std::vector<T> result(tensor.data.size() / sizeof(T));
  std::memcpy(result.data(), tensor.data.data(), tensor.data.size());
  return result;
}

TEST(SafetensorsFileTest, ReadsWhatThePythonPackageWrites) {
  const SafetensorsFile file = SafetensorsFile::open(kPython);
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("format", "pt")));
  ASSERT_EQ(file.tensors().size(), 13U);
  for (const DType dtype : {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kI32,
                            DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    std::string name = "dtype.";
    for (const char letter : to_string(dtype)) {
      name += static_cast<char>(std::tolower(letter));
    }
    const SafetensorsTensor* tensor = file.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->dtype, dtype);
    EXPECT_THAT(tensor->shape, ElementsAre(3));
    EXPECT_EQ(tensor->data.size(), 3 * size_of(dtype));
  }
  EXPECT_THAT(values<int64_t>(*file.find("dtype.i64")), ElementsAre(0, 1, 2));
  EXPECT_THAT(values<double>(*file.find("dtype.f64")), ElementsAre(0, 1, 2));
  EXPECT_THAT(values<float>(*file.find("dtype.f32")), ElementsAre(0, 1, 2));
  EXPECT_THAT(values<uint16_t>(*file.find("dtype.bf16")), ElementsAre(0, 0x3f80, 0x4000));
  EXPECT_THAT(values<uint8_t>(*file.find("dtype.bool")), ElementsAre(0, 1, 0));
  EXPECT_THAT(file.find("scalar")->shape, IsEmpty());
  EXPECT_THAT(values<float>(*file.find("scalar")), ElementsAre(7));
  EXPECT_THAT(file.find("empty")->shape, ElementsAre(2, 0));
  EXPECT_TRUE(file.find("empty")->data.empty());
  EXPECT_THAT(values<float>(*file.find("na\"me \xc3\xa9")), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(SafetensorsFileTest, StaysValidWhenMoved) {
  SafetensorsFile first = SafetensorsFile::open(kPython);
  const SafetensorsFile second = std::move(first);
  ASSERT_NE(second.find("scalar"), nullptr);
  EXPECT_THAT(values<float>(*second.find("scalar")), ElementsAre(7));
}

TEST(SafetensorsFileTest, OrdersByOffset) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  write_raw(path, file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                          R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                          "xyz"));
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensors().at(0).name, "a");
  EXPECT_EQ(file.tensors().at(1).name, "b");
  EXPECT_THAT(file.metadata(), IsEmpty());
}

TEST_F(HostileSafetensorsTest, Lengths) {
  EXPECT_THAT(refusal(""), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(refusal(std::string(8, '\xff') + "{}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal(file_of("{}", "").substr(0, 9)), HasSubstr("cut off"));
  EXPECT_THAT(refusal(file_of("", "{}")), HasSubstr("begin with '{'"));
  // One byte above the limit, in a sparse file that is long enough.
  write_raw(path_, std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));
  std::filesystem::resize_file(path_, 200'000'000);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)SafetensorsFile::open(path_); }),
              HasSubstr("100000001"));
}

TEST_F(HostileSafetensorsTest, Json) {
  const auto with_tensor = [](const std::string& fields) {
    return file_of(R"({"a":{)" + fields + "}}", "1234");
  };
  EXPECT_THAT(refusal(file_of("{", "")), HasSubstr("valid JSON"));
  EXPECT_THAT(refusal(file_of(" {}", "")), HasSubstr("begin with '{'"));
  EXPECT_THAT(refusal(file_of("{}x", "")), HasSubstr("valid JSON"));
  EXPECT_THAT(refusal(file_of("{\"\xff\":{}}", "")), HasSubstr("valid JSON"));
  EXPECT_THAT(refusal(file_of(R"({"a":1})", "")), HasSubstr("got a number"));
  EXPECT_THAT(refusal(file_of(R"({"a":[]})", "")), HasSubstr("got an array"));
  EXPECT_THAT(refusal(file_of(R"({"a":null})", "")), HasSubstr("got null"));
  EXPECT_THAT(refusal(file_of(R"({"a":{}})", "")), HasSubstr("not all of them"));
  EXPECT_THAT(refusal(with_tensor(R"("dtype":{"dtype":{}})")), HasSubstr("got an object"));
  EXPECT_THAT(refusal(with_tensor(R"("dtype":3)")), HasSubstr("got a number"));
  EXPECT_THAT(refusal(with_tensor(R"("more":3)")), HasSubstr("\"more\""));
  EXPECT_THAT(refusal(with_tensor(R"("shape":[[1]])")), HasSubstr("got an array"));
  EXPECT_THAT(refusal(with_tensor(R"("shape":[true])")), HasSubstr("got true or false"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{"a":1}})", "")), HasSubstr("must be strings"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{"a":{}}})", "")), HasSubstr("must be strings"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":[]})", "")), HasSubstr("must be objects"));
  // A million levels: neither stack nor memory may run out.
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1'000'000; ++i) {
    deep += "[";
  }
  EXPECT_THAT(refusal(file_of(deep, "")), HasSubstr("got an array"));
}

TEST_F(HostileSafetensorsTest, DoubleNames) {
  const std::string tensor = R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_THAT(refusal(file_of("{\"a\":" + tensor + ",\"a\":" + tensor + "}", "12")),
              HasSubstr("\"a\" twice"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", "")),
              HasSubstr("\"k\" twice"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{},"__metadata__":{}})", "")),
              HasSubstr("\"__metadata__\" twice"));
  EXPECT_THAT(refusal(file_of(R"({"a":{"dtype":"U8","dtype":"I8"}})", "")),
              HasSubstr("\"dtype\" twice"));
}

TEST_F(HostileSafetensorsTest, Tensors) {
  const auto with = [](const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
    return file_of(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
                       offsets + "}}",
                   "12345678");
  };
  write_raw(path_, with("F32", "[2]", "[0,8]"));
  EXPECT_EQ(SafetensorsFile::open(path_).tensors().size(), 1U);  // the base is sound
  EXPECT_THAT(refusal(with("X32", "[2]", "[0,8]")), HasSubstr("\"X32\""));
  write_raw(path_, with("F8_E4M3", "[8]", "[0,8]"));
  EXPECT_EQ(SafetensorsFile::open(path_).tensors().front().dtype, DType::kF8E4M3);
  EXPECT_THAT(refusal(with("F8_E8M0", "[8]", "[0,8]")), HasSubstr("\"F8_E8M0\""));
  EXPECT_THAT(refusal(with("F32", "[-2]", "[0,8]")), HasSubstr("negative number"));
  EXPECT_THAT(refusal(with("F32", "[2.0]", "[0,8]")), HasSubstr("fraction"));
  EXPECT_THAT(refusal(with("F32", "[1e400]", "[0,8]")), HasSubstr("JSON"));
  EXPECT_THAT(refusal(with("F32", "[18446744073709551615]", "[0,8]")), HasSubstr("below 2^63"));
  EXPECT_THAT(refusal(with("F32", "[18446744073709551616]", "[0,8]")), HasSubstr("above 2^64"));
  // 2^62 * 4 bytes is 0 in 64 bits; 2^32 * 2^32 likewise; and with a zero at the end.
  EXPECT_THAT(refusal(with("F32", "[4611686018427387904]", "[0,0]")), HasSubstr("2^63"));
  EXPECT_THAT(refusal(with("U8", "[4294967296,4294967296]", "[0,0]")), HasSubstr("2^63"));
  EXPECT_THAT(refusal(with("U8", "[4294967296,4294967296,0]", "[0,0]")), HasSubstr("2^63"));
  EXPECT_THAT(refusal(with("F32", "[1]", "[0,8]")), HasSubstr("must have 4 bytes"));
  EXPECT_THAT(refusal(with("F32", "[2]", "[0,9]")), HasSubstr("within the 8 bytes"));
  EXPECT_THAT(refusal(with("F32", "[2]", "[8,0]")), HasSubstr("offsets 8 to 0"));
  EXPECT_THAT(refusal(with("F32", "[2]", "[0,8,9]")), HasSubstr("2 data_offsets, got 3"));
  EXPECT_THAT(refusal(with("F32", "[2]", "[18446744073709551612,4]")), HasSubstr("within"));
  EXPECT_THAT(refusal(with("F32", "[1]", "[4,8]")), HasSubstr("offset 0, got 4"));
  EXPECT_THAT(refusal(with("F32", "[1]", "[0,4]")), HasSubstr("4 bytes after the last"));
  EXPECT_THAT(refusal(file_of("{}", "x")), HasSubstr("1 bytes after the last"));
}

TEST_F(HostileSafetensorsTest, OverlapsAndHoles) {
  const auto with = [](const std::string& second) {
    return file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"U8","shape":[3],"data_offsets":)" +
                       second + "}}",
                   "12345678");
  };
  EXPECT_THAT(refusal(with("[3,6]")), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(with("[0,3]")), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(with("[5,8]")), HasSubstr("must follow"));
}

TEST_F(HostileSafetensorsTest, EveryCutAndManyFlips) {
  const std::string sound = read_text(kPython, 1 << 16);
  write_raw(path_, sound);
  for (size_t size = sound.size(); size-- > 0;) {
    std::filesystem::resize_file(path_, size);
    EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)SafetensorsFile::open(path_); }),
                HasSubstr(path_.string()));
  }
  write_raw(path_, sound);
  std::mt19937 random(7);
  int num_refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = sound;
    char& letter = damaged[random() % sound.size()];
    letter = static_cast<char>(static_cast<uint32_t>(letter) ^ 1U << random() % 8);
    overwrite(path_, damaged);
    try {
      const SafetensorsFile file = SafetensorsFile::open(path_);
      for (const SafetensorsTensor& tensor : file.tensors()) {
        (void)checksum(tensor.data);  // touches every byte
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 500);  // a flip in a name or in data is no error
}

TEST(SafetensorsWriterTest, WritesTheBytesOfThePythonPackage) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  const SafetensorsFile python = SafetensorsFile::open(kPython);
  const SafetensorsSummary summary = write_safetensors(path, python.tensors(), python.metadata());
  const std::vector<std::byte> written = read_file(path, 1 << 16);
  EXPECT_TRUE(written == read_file(kPython, 1 << 16));
  EXPECT_EQ(summary.num_bytes, static_cast<int64_t>(written.size()));
  EXPECT_EQ(summary.checksum, checksum(written));
}

TEST(SafetensorsWriterTest, AlignsAndTakesPieces) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  SafetensorsWriter writer(path, {{"flags", DType::kBool, {3}},
                                  {"none", DType::kF32, {0, 4}},
                                  {"big", DType::kF64, {2}},
                                  {"small", DType::kF32, {2, 1}}});
  EXPECT_EQ(writer.tensors().at(0).name, "big");
  EXPECT_EQ(writer.tensors().at(3).name, "flags");
  const std::vector<double> big{1, 2};
  const std::vector<float> small{3, 4};
  const std::vector<uint8_t> flags{1, 0, 1};
  writer.write("big", std::as_bytes(std::span(big)).first(5));
  writer.write("big", std::as_bytes(std::span(big)).subspan(5));
  writer.write("small", std::as_bytes(std::span(small)));
  writer.write("flags", std::as_bytes(std::span(flags)));
  EXPECT_FALSE(std::filesystem::exists(path));
  const SafetensorsSummary summary = writer.finish();
  EXPECT_EQ(summary.checksum, checksum(read_file(path, 1 << 16)));

  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_THAT(values<double>(*file.find("big")), ElementsAre(1, 2));
  EXPECT_THAT(values<float>(*file.find("small")), ElementsAre(3, 4));
  EXPECT_THAT(values<uint8_t>(*file.find("flags")), ElementsAre(1, 0, 1));
  EXPECT_THAT(file.find("none")->shape, ElementsAre(0, 4));
  for (const SafetensorsTensor& tensor : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % size_of(tensor.dtype), 0U)
        << tensor.name;
  }
}

TEST(SafetensorsWriterTest, LeavesNothingWhenAbandoned) {
  const TemporaryFolder folder;
  write_raw(folder.path() / "a", "old");
  {
    SafetensorsWriter writer(folder.path() / "a", {{"x", DType::kU8, {2}}});
    writer.write("x", std::as_bytes(std::span("1", 1)));
  }
  EXPECT_EQ(read_text(folder.path() / "a", 10), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriterTest, RefusesMisuse) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  const auto declare = [&](std::vector<SafetensorsSpec> specs) {
    return error_message(ErrorKind::kInternal, [&] { SafetensorsWriter writer(path, specs); });
  };
  EXPECT_THAT(declare({{"x", DType::kU8, {}}, {"x", DType::kU8, {}}}), HasSubstr("\"x\" twice"));
  EXPECT_THAT(declare({{"__metadata__", DType::kU8, {}}}), HasSubstr("__metadata__"));
  EXPECT_THAT(declare({{"x", DType::kU8, {-1}}}), HasSubstr("negative"));
  EXPECT_THAT(declare({{"x", DType::kF32, {int64_t{1} << 62}}}), HasSubstr("2^63"));
  EXPECT_THAT(declare({{"\xff", DType::kU8, {}}}), HasSubstr("UTF-8"));

  const auto bytes = std::as_bytes(std::span("12345", 5));
  SafetensorsWriter writer(path, {{"x", DType::kU8, {2}}, {"y", DType::kU8, {2}}});
  const auto misuse = [&](const auto& call) { return error_message(ErrorKind::kInternal, call); };
  EXPECT_THAT(misuse([&] { writer.write("y", bytes.first(2)); }),
              AllOf(HasSubstr("must be of \"x\""), HasSubstr("got \"y\"")));
  EXPECT_THAT(misuse([&] { writer.write("x", bytes.first(3)); }), HasSubstr("2 bytes, got 3"));
  writer.write("x", bytes.first(1));
  EXPECT_THAT(misuse([&] { writer.finish(); }), HasSubstr("not all of \"x\""));
  writer.write("x", bytes.first(1));
  writer.write("y", bytes.first(2));
  EXPECT_THAT(misuse([&] { writer.write("y", bytes.first(1)); }), HasSubstr("of no tensor"));
  writer.finish();
  EXPECT_THAT(misuse([&] { writer.finish(); }), HasSubstr("twice"));
  EXPECT_THAT(error_message(ErrorKind::kIo,
                            [&] { SafetensorsWriter elsewhere(folder.path() / "no" / "a", {}); }),
              HasSubstr("No such file"));
}

TEST(SafetensorsWriterTest, WritesNoTensorsAtAll) {
  const TemporaryFolder folder;
  write_safetensors(folder.path() / "a", {});
  EXPECT_EQ(read_text(folder.path() / "a", 100), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_THAT(SafetensorsFile::open(folder.path() / "a").tensors(), IsEmpty());
}

}  // namespace safetensors_test
}  // namespace kinora::io
