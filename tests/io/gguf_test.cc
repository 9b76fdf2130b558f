#include "kinora/io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kinora/io/safetensors.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace gguf_test {

using testing::HasSubstr;

// tools/reference/make_gguf_fixtures.py
const std::filesystem::path kFile = source_path("tests/io/data/types.gguf");

TEST(GgufTest, ValuesAreThoseOfGgml) {
  const GgufFile file = GgufFile::open(kFile);
  const auto expected = SafetensorsFile::open(source_path("tests/io/data/types.safetensors"));
  ASSERT_EQ(file.tensors().size(), expected.tensors().size());
  for (const GgufTensor& tensor : file.tensors()) {
    SCOPED_TRACE(tensor.name);
    const SafetensorsTensor* const want = expected.find(tensor.name);
    ASSERT_NE(want, nullptr);
    EXPECT_EQ(tensor.shape, want->shape);
    std::vector<float> values(static_cast<size_t>(num_elements(tensor)));
    read_floats(tensor, 0, num_elements(tensor), values);
    ASSERT_EQ(values.size() * sizeof(float), want->data.size());
    EXPECT_EQ(std::memcmp(values.data(), want->data.data(), want->data.size()), 0);
  }
  EXPECT_EQ(file.metadata().at("general.architecture"), "sd1");
  EXPECT_EQ(file.find("q4_k.weight")->type, GgufType::kQ4_K);
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(GgufTest, PartsEqualTheWhole) {
  const GgufFile file = GgufFile::open(kFile);
  const GgufTensor& tensor = *file.find("q6_k.weight");
  std::vector<float> whole(1024);
  std::vector<float> part(512);
  read_floats(tensor, 0, 1024, whole);
  read_floats(tensor, 256, 768, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 256));
}

TEST(GgufTest, DamagedFilesAreRefused) {
  const std::vector<std::byte> bytes = read_file(kFile, 1 << 20);
  const test::TemporaryFolder folder;
  const auto refusal = [&](std::span<const std::byte> damaged) {
    const std::filesystem::path path = folder.path() / "damaged.gguf";
    write_file_atomic(path, damaged);
    return error_of(ErrorKind::kIo, [&] { return GgufFile::open(path).tensors().size(); });
  };
  EXPECT_THAT(refusal(std::span(bytes).first(3)), HasSubstr("3 are left"));
  EXPECT_THAT(refusal(std::span(bytes).first(bytes.size() / 2)), HasSubstr("cut off"));
  for (size_t size = 0; size < 2000; size += 61) {
    EXPECT_THAT(refusal(std::span(bytes).first(size)), HasSubstr("[gguf]"));
  }
  auto changed = bytes;
  changed[0] = std::byte{'X'};
  EXPECT_THAT(refusal(changed), HasSubstr("must begin with GGUF"));
  changed = bytes;
  changed[4] = std::byte{1};
  EXPECT_THAT(refusal(changed), HasSubstr("must be 2 or 3, got 1"));
  changed = bytes;
  changed[15] = std::byte{0xff};  // the count of tensors
  EXPECT_NE(refusal(changed), "no error");
  // The type of q4_0.weight: behind its name, its number of dims and two of them.
  changed = bytes;
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t type = text.find("q4_0.weight") + std::strlen("q4_0.weight") + 4 + 16;
  changed[type] = std::byte{3};
  EXPECT_THAT(refusal(changed), HasSubstr("\"q4_0.weight\" must be of type F32, F16"));
  EXPECT_THAT(refusal(changed), HasSubstr("got ggml's number 3"));
  changed = bytes;
  changed[type - 16] = std::byte{33};  // its rows
  EXPECT_THAT(refusal(changed), HasSubstr("whole blocks of 32 elements, got 33"));
}

}  // namespace gguf_test
}  // namespace kinora::io
