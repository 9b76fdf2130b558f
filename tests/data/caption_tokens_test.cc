#include "kinora/data/caption_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "kinora/data/data_config.h"
#include "kinora/data/loader.h"
#include "tests/data/files.h"
#include "tests/places.h"

namespace kinora::data {
namespace caption_tokens_test {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

fs::path tokenizer_data(const std::string& name) {
  return source_path("tests/tokenizers/data") / name;
}

CaptionTokens tokens_of(const std::string& name, int64_t max_length, bool cleans = false) {
  return {.tokenizer = std::make_shared<const tokenizers::Tokenizer>(
              tokenizers::Tokenizer::load(tokenizer_data(name))),
          .max_length = max_length,
          .cleans = cleans};
}

/// Images whose captions are these.
class CaptionedSource : public Source {
 public:
  explicit CaptionedSource(std::vector<std::string> captions) : captions_(std::move(captions)) {}

  [[nodiscard]] int64_t size() const override { return std::ssize(captions_); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return "picture " + std::to_string(index);
  }
  void read(int64_t index, Sample& out) const override {
    out.image = grey_image(static_cast<uint8_t>(index));
    out.caption = captions_[static_cast<size_t>(index)];
    out.label = 0;
  }

 private:
  std::vector<std::string> captions_;
  std::vector<std::string> names_ = {"jumping jack"};
};

Text text_of(const CaptionTokens& tokens, const std::string& caption) {
  const TokenSource source(std::make_unique<CaptionedSource>(std::vector<std::string>{caption}),
                           tokens);
  Sample sample;
  source.read(0, sample);
  return sample.text;
}

struct Reference {
  std::string text;
  std::vector<int64_t> ids;
};

/// What Hugging Face's tokenizer gives.
std::vector<Reference> references(const std::string& name) {
  std::ifstream file(tokenizer_data(name + ".jsonl"));
  std::vector<Reference> all;
  for (std::string line; std::getline(file, line);) {
    const auto value = nlohmann::json::parse(line);
    const auto hex = value.at("text").get<std::string>();
    std::string text;
    for (size_t i = 0; i < hex.size(); i += 2) {
      text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    all.push_back({std::move(text), value.at("ids").get<std::vector<int64_t>>()});
  }
  return all;
}

TEST(TokenSourceTest, TokensAreHuggingFacesInPaddedRows) {
  for (const std::string name : {"t5_json", "clip"}) {
    constexpr int64_t kLength = 1000;
    const CaptionTokens tokens = tokens_of(name, kLength);
    const int64_t padding = tokens.tokenizer->pad_id().value_or(0);
    std::vector<std::string> captions;
    std::vector<std::vector<int64_t>> expected;
    for (const Reference& reference : references(name)) {
      if (!reference.text.empty() && std::ssize(reference.ids) <= kLength) {
        captions.push_back(reference.text);
        expected.push_back(reference.ids);
      }
    }
    ASSERT_GT(captions.size(), 20U);
    const TokenSource source(std::make_unique<CaptionedSource>(captions), tokens);
    EXPECT_EQ(source.text_shape(), (TextShape{.length = kLength}));
    EXPECT_TRUE(source.text_shape()->is_ids());
    std::vector<int64_t> all(captions.size());
    std::iota(all.begin(), all.end(), 0);
    const Batch batch = load_samples(source, all, 8, 8);
    EXPECT_FALSE(batch.text.defined());
    EXPECT_FALSE(batch.pooled.defined());
    ASSERT_EQ(batch.tokens.scalar_type(), at::kLong);
    ASSERT_EQ(batch.tokens.sizes(), (at::IntArrayRef{std::ssize(all), kLength}));
    const auto* row = batch.tokens.const_data_ptr<int64_t>();
    for (size_t i = 0; i < captions.size(); ++i, row += kLength) {
      const std::vector<int64_t> ids(row, row + kLength);
      const int64_t length = batch.text_lengths.const_data_ptr<int64_t>()[i];
      EXPECT_EQ(std::vector(ids.begin(), ids.begin() + length), expected[i]) << captions[i];
      EXPECT_THAT(std::vector(ids.begin() + length, ids.end()), Each(padding));
    }
  }
}

TEST(TokenSourceTest, WithoutCaptionTheClassNameStandsForOne) {
  const CaptionTokens tokens = tokens_of("t5_json", 30);
  EXPECT_EQ(text_of(tokens, "").ids, text_of(tokens, "jumping jack").ids);
  EXPECT_NE(text_of(tokens, "").ids, text_of(tokens, "walking").ids);
}

TEST(TokenSourceTest, CaptionsAreCleanedWhereThatIsAsked) {
  const std::string caption = "A <b>Red</b> circle";
  EXPECT_NE(text_of(tokens_of("t5_json", 30), caption).ids,
            text_of(tokens_of("t5_json", 30), "a red circle").ids);
  EXPECT_EQ(text_of(tokens_of("t5_json", 30, /*cleans=*/true), caption).ids,
            text_of(tokens_of("t5_json", 30), "a red circle").ids);
}

TEST(TokenSourceTest, WhatIsCutOffIsSaidOnce) {
  const CaptionTokens tokens = tokens_of("t5_json", 5);
  const TokenSource source(std::make_unique<CaptionedSource>(std::vector<std::string>{
                               "one", "a bird that sings of the river", "a fish and another one"}),
                           tokens);
  Sample sample;
  testing::internal::CaptureStderr();
  source.read(0, sample);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  source.read(1, sample);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("more than 5 tokens"), HasSubstr("picture 1"), HasSubstr("river")));
  const tokenizers::Tokens whole = tokens.tokenizer->encode("a bird that sings of the river", {});
  EXPECT_EQ(sample.text.length, 5);
  EXPECT_EQ(sample.text.ids.back(), whole.ids.back());  // the end token stays
  EXPECT_EQ(sample.text.ids.front(), whole.ids.front());
  testing::internal::CaptureStderr();
  source.read(2, sample);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(TokenSourceTest, SamplesAreTheSameWhateverThreadsAndWherever) {
  const CaptionTokens tokens = tokens_of("t5_json", 12);
  std::vector<std::string> captions;
  for (int i = 0; i < 40; ++i) {
    captions.push_back("picture number " + std::to_string(i) + " of the river");
  }
  const TokenSource source(std::make_unique<CaptionedSource>(captions), tokens);
  const auto loaded = [&](int64_t threads, int64_t first) {
    LoaderOptions options;
    options.height = 8;
    options.width = 8;
    options.micro_batch = 4;
    options.global_batch = 4;
    options.first_position = first;
    options.seed = 3;
    options.num_threads = threads;
    Loader loader(source, options);
    std::vector<Batch> batches;
    while (first + 4 * std::ssize(batches) < 64) {
      batches.push_back(loader.next());
    }
    return batches;
  };
  const std::vector<Batch> one = loaded(1, 0);
  const std::vector<Batch> many = loaded(5, 0);
  const std::vector<Batch> resumed = loaded(3, 24);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(one[i].tokens.equal(many[i].tokens)) << i;
    EXPECT_TRUE(one[i].text_lengths.equal(many[i].text_lengths)) << i;
    if (i >= 6) {
      EXPECT_TRUE(one[i].tokens.equal(resumed[i - 6].tokens)) << i;
    }
  }
  const Batch part = first_samples(one[0], 2);
  EXPECT_TRUE(part.tokens.equal(one[0].tokens.narrow(0, 0, 2)));
}

TEST(TokenSourceTest, CaptionsThatCannotBeTokensAreUnreadable) {
  const std::string too_long((size_t{1} << 26) + 1, 'a');  // of Tokenizer::encode
  const std::string message = error_of([&] { (void)text_of(tokens_of("t5_json", 30), too_long); });
  EXPECT_THAT(message, AllOf(HasSubstr("picture 0"), HasSubstr("cannot be made tokens")));
  EXPECT_THAT(error_of([&] { (void)TokenSource(nullptr, tokens_of("t5_json", 1)); }),
              AllOf(HasSubstr("room for 2 tokens"), HasSubstr("got 1")));
}

TEST(TokenSourceTest, ASetOpensWithThem) {
  const auto config = parse_config<DataConfig>({"data: {text: tokens}", "test.yaml"});
  const CaptionTokens tokens = tokens_of("t5_json", 20);
  EXPECT_TRUE(open_source(config, &tokens)->text_shape()->is_ids());
  EXPECT_EQ(open_source(config)->text_shape(), std::nullopt);
  EXPECT_THAT(
      error_of([] {
        (void)parse_config<DataConfig>({"data: {text: tokens, text_embeddings: a}", "test.yaml"});
      }),
      HasSubstr("left out otherwise"));
}

}  // namespace caption_tokens_test
}  // namespace kinora::data
