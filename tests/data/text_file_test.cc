#include "kinora/data/text_file.h"

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <c10/util/BFloat16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/shapes.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

template <typename Value>
std::span<const std::byte> bytes_of(const std::vector<Value>& values) {
  return std::as_bytes(std::span(values));
}

// What a test may spoil: K = 3 texts of L = 4 tokens with D = 2, value i of the embeddings is i.
struct Content {
  std::vector<int64_t> shape = {3, 4, 2};
  std::vector<float> embeddings = [] {
    std::vector<float> values(24);
    std::iota(values.begin(), values.end(), 0.0F);
    return values;
  }();
  std::vector<int64_t> lengths = {1, 4, 2};
  std::vector<float> pooled = {10, 11, 12, 20, 21, 22, 30, 31, 32};
  std::vector<int64_t> sample_to_text;
  bool has_lengths = true;
};

fs::path write(const TemporaryFolder& folder, const Content& content) {
  std::vector<io::SafetensorsTensor> tensors = {
      {"embeddings", DType::kF32, content.shape, bytes_of(content.embeddings)}};
  if (content.has_lengths) {
    tensors.push_back(
        {"lengths", DType::kI64, {std::ssize(content.lengths)}, bytes_of(content.lengths)});
  }
  if (!content.pooled.empty()) {
    tensors.push_back(
        {"pooled", DType::kF32, {std::ssize(content.pooled) / 3, 3}, bytes_of(content.pooled)});
  }
  if (!content.sample_to_text.empty()) {
    tensors.push_back({"sample_to_text",
                       DType::kI64,
                       {std::ssize(content.sample_to_text)},
                       bytes_of(content.sample_to_text)});
  }
  fs::path path = folder.path() / "texts.safetensors";
  io::write_safetensors(path, tensors);
  return path;
}

TEST(TextFileTest, ReadsTexts) {
  const TemporaryFolder folder;
  const TextFile file(write(folder, {}));
  EXPECT_EQ(file.shape(), (TextShape{.length = 4, .channels = 2, .pooled_channels = 3}));
  EXPECT_EQ(file.num_texts(), 3);
  Text text;
  file.read(1, text);
  EXPECT_EQ(text.length, 4);
  file.read(2, text);
  EXPECT_EQ(text.length, 2);
  EXPECT_THAT(text.tokens, ElementsAre(16, 17, 18, 19, 0, 0, 0, 0));  // zero behind the length
  EXPECT_THAT(text.pooled, ElementsAre(30, 31, 32));
}

TEST(TextFileTest, ReadsHalfPrecisionAndDoesWithoutPooled) {
  const TemporaryFolder folder;
  const std::vector<c10::BFloat16> embeddings = {1.5F, -2.0F, 0.25F, 3.0F};
  const std::vector<int64_t> lengths = {2, 1};
  const fs::path path = folder.path() / "bf16.safetensors";
  io::write_safetensors(path, std::vector<io::SafetensorsTensor>{
                                  {"lengths", DType::kI64, {2}, bytes_of(lengths)},
                                  {"embeddings", DType::kBF16, {2, 2, 1}, bytes_of(embeddings)}});
  const TextFile file(path);
  EXPECT_EQ(file.shape().pooled_channels, 0);
  Text text;
  file.read(0, text);
  EXPECT_THAT(text.tokens, ElementsAre(1.5F, -2.0F));
  EXPECT_TRUE(text.pooled.empty());
  file.read(1, text);
  EXPECT_THAT(text.tokens, ElementsAre(0.25F, 0.0F));
}

TEST(TextFileTest, NamesWhatIsWrong) {
  const TemporaryFolder folder;
  const auto message = [&folder](const std::function<void(Content&)>& spoil) {
    Content content;
    spoil(content);
    const fs::path path = write(folder, content);
    return error_of([&] { TextFile file(path); });
  };
  EXPECT_EQ(message([](Content&) {}), "");
  EXPECT_THAT(message([](Content& c) { c.has_lengths = false; }),
              AllOf(HasSubstr("texts.safetensors"), HasSubstr("there is no lengths")));
  EXPECT_THAT(message([](Content& c) { c.shape = {3, 8}; }), HasSubstr("got [3, 8]"));
  EXPECT_THAT(message([](Content& c) { c.lengths[1] = 5; }),
              AllOf(HasSubstr("from 1 to 4"), HasSubstr("got 5 at 1")));
  EXPECT_THAT(message([](Content& c) { c.lengths[0] = 0; }), HasSubstr("got 0 at 0"));
  EXPECT_THAT(message([](Content& c) { c.lengths.pop_back(); }), HasSubstr("got [2]"));
  EXPECT_THAT(message([](Content& c) { c.pooled.resize(6); }), HasSubstr("got [2, 3]"));
  EXPECT_THAT(message([](Content& c) {
                c.sample_to_text = {0, 3};
              }),
              AllOf(HasSubstr("from 0 to 2"), HasSubstr("got 3 at 1")));
  EXPECT_THAT(error_of([&] { TextFile file(folder.path() / "none.safetensors"); }),
              HasSubstr("none.safetensors"));
}

TEST(TextFileTest, ValuesThatAreNotFiniteMakeAnUnreadableText) {
  const TemporaryFolder folder;
  Content content;
  content.embeddings[9] = std::nanf("");  // of text 1
  content.embeddings[7] = INFINITY;       // of text 0, behind its length
  const TextFile file(write(folder, content));
  Text text;
  EXPECT_THAT(error_of([&] { file.read(1, text); }), HasSubstr("text 1 of"));
  EXPECT_EQ(error_of([&] { file.read(0, text); }), "");
}

TEST(TextFileSourceTest, TextsGoByClassBySampleOrAsTheFileSays) {
  const TemporaryFolder folder;
  const auto shapes = [](int64_t count) { return std::make_unique<ShapeSource>(0, count, 16, 16); };
  Sample sample;
  const TextFileSource by_sample(shapes(3), write(folder, {}));
  by_sample.read(1, sample);
  EXPECT_THAT(sample.text.pooled, ElementsAre(20, 21, 22));

  Content content;
  content.sample_to_text = {2, 2, 0, 1, 2};
  const TextFileSource mapped(shapes(5), write(folder, content));
  mapped.read(4, sample);
  EXPECT_THAT(sample.text.pooled, ElementsAre(30, 31, 32));
  mapped.read(2, sample);
  EXPECT_THAT(sample.text.pooled, ElementsAre(10, 11, 12));

  Content classes;
  classes.shape = {16, 1, 1};
  classes.embeddings.resize(16);
  classes.lengths.assign(16, 1);
  classes.pooled.clear();
  const TextFileSource by_class(shapes(100), write(folder, classes));
  by_class.read(37, sample);  // of class 37 % 16
  EXPECT_THAT(sample.text.tokens, ElementsAre(5));
}

TEST(TextFileSourceTest, RefusesAnotherNumberOfTexts) {
  const TemporaryFolder folder;
  const auto message = [&folder](const Content& content, int64_t count) {
    const fs::path path = write(folder, content);
    return error_of([&] { TextFileSource(std::make_unique<ShapeSource>(0, count, 16, 16), path); });
  };
  EXPECT_THAT(message({}, 100),
              AllOf(HasSubstr("16 classes"), HasSubstr("100 samples"), HasSubstr("got 3")));
  Content content;
  content.sample_to_text = {0, 1};
  EXPECT_THAT(message(content, 3), AllOf(HasSubstr("3 samples"), HasSubstr("got 2")));
}

}  // namespace
}  // namespace kinora::data
