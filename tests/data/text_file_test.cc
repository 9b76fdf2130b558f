#include "kinora/data/text_file.h"

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/BFloat16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/shapes.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace text_file_test {

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
  std::vector<int64_t> sample_to_text = {};
  bool has_lengths = true;
  std::vector<std::string> keys = {};
  std::map<std::string, std::string> metadata = {};
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
  std::string keys;
  std::vector<int64_t> key_ends;
  for (const std::string& key : content.keys) {
    keys += key;
    key_ends.push_back(std::ssize(keys));
  }
  if (!content.keys.empty()) {
    tensors.push_back({"keys",
                       DType::kU8,
                       {std::ssize(keys)},
                       std::as_bytes(std::span(keys.data(), keys.size()))});
    tensors.push_back({"key_ends", DType::kI64, {std::ssize(key_ends)}, bytes_of(key_ends)});
  }
  fs::path path = folder.path() / "texts.safetensors";
  io::write_safetensors(path, tensors, content.metadata);
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

TEST(TextFileTest, ReadsTextsThatLieOneBehindTheOther) {
  const TemporaryFolder folder;
  const Content content{.shape = {7, 2},
                        .embeddings = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}};
  const TextFile file(write(folder, content));
  EXPECT_EQ(file.shape(), (TextShape{.length = 4, .channels = 2, .pooled_channels = 3}));
  EXPECT_EQ(file.num_texts(), 3);
  Text text;
  file.read(1, text);
  EXPECT_EQ(text.length, 4);
  EXPECT_THAT(text.tokens, ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  file.read(2, text);
  EXPECT_EQ(text.length, 2);
  EXPECT_THAT(text.tokens, ElementsAre(10, 11, 12, 13, 0, 0, 0, 0));
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1, 4, 1}, {1, 4, 3}, {7, 7, 7}}) {
    Content spoilt = content;
    spoilt.lengths = lengths;
    EXPECT_THAT(error_of([&] { const TextFile spoilt_file(write(folder, spoilt)); }),
                HasSubstr("must add up to the 7 embeddings"));
  }
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
  EXPECT_THAT(message([](Content& c) { c.shape = {24}; }), HasSubstr("got [24]"));
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

/// Two pictures of two classes, as names and captions.
class TwoSamples : public Source {
 public:
  TwoSamples(std::vector<std::string> names, std::vector<std::string> captions)
      : names_(std::move(names)), captions_(std::move(captions)) {}
  [[nodiscard]] int64_t size() const override { return 2; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return classes_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return names_[static_cast<size_t>(index)];
  }
  void read(int64_t index, Sample& out) const override {
    out.label = index;
    out.caption = captions_[static_cast<size_t>(index)];
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::string> captions_;
  std::vector<std::string> classes_ = {"cat", "dog"};
};

/// The first values of the two texts, which tell which they are: 0, 8 or 16.
std::vector<float> first_values(const Content& content, std::vector<std::string> names,
                                std::vector<std::string> captions) {
  const TemporaryFolder folder;
  const TextFileSource source(std::make_unique<TwoSamples>(std::move(names), std::move(captions)),
                              write(folder, content));
  std::vector<float> values;
  Sample sample;
  for (int64_t i = 0; i < 2; ++i) {
    source.read(i, sample);
    values.push_back(sample.text.tokens.front());
  }
  return values;
}

TEST(TextFileSourceTest, KeysPairTextsByName) {
  const Content content{.keys = {"dog/1.jpg", "cat/1.jpg", "1.jpg"}};
  EXPECT_THAT(first_values(content, {"/data/cat/1.jpg", "a.tar:\"train/dog/1.jpg\""}, {"", ""}),
              ElementsAre(8, 0));
  EXPECT_THAT(first_values(content, {"cow/1.jpg", "dog/1.jpg"}, {"", ""}), ElementsAre(16, 0));
  EXPECT_THAT(error_of([&] {
                (void)first_values(content, {"dog/1.jpg", "dog/2.jpg"}, {"", ""});
              }),
              AllOf(HasSubstr("none for 1 of them: dog/2.jpg"), HasSubstr("each of the 2")));
}

TEST(TextFileSourceTest, KeysPairTextsByCaption) {
  const Content content{.keys = {"a red cat", "dog", "a cow"},
                        .metadata = {{"keyed_by", "caption"}}};
  EXPECT_THAT(first_values(content, {"1", "2"}, {"a red cat", ""}), ElementsAre(0, 8));
  EXPECT_THAT(first_values(content, {"1", "2"}, {"a cow", "a cow"}), ElementsAre(16, 16));
  EXPECT_THAT(error_of([&] {
                (void)first_values(content, {"1", "2"}, {"a hen", ""});
              }),
              AllOf(HasSubstr("\"a hen\""), HasSubstr(" of 1")));
}

TEST(TextFileSourceTest, NamesWhatIsWrongWithKeys) {
  const auto message = [](const Content& content) {
    return error_of([&] { (void)first_values(content, {"a", "b"}, {"", ""}); });
  };
  EXPECT_THAT(message({.keys = {"a", "b", "a"}}), HasSubstr("got twice \"a\""));
  EXPECT_THAT(message({.keys = {"a", "b"}}), HasSubstr("3 keys"));
  EXPECT_THAT(message({.keys = {"a", "b", "c"}, .metadata = {{"keyed_by", "hash"}}}),
              HasSubstr("name or caption, got \"hash\""));
}

}  // namespace text_file_test
}  // namespace kinora::data
