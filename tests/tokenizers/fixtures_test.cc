// Small trained tokenizers, and the real ones of CLIP and T5, against ids of Hugging Face's
// tokenizers and of SentencePiece (tools/reference/make_tokenizer_fixtures.py).

#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "kinora/core/text.h"
#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace fixtures_test {

using ::testing::ElementsAre;

std::string from_hexadecimal(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

struct Line {
  std::string text;
  std::vector<int64_t> ids;
};

std::vector<Line> lines_of(const std::string& name) {
  std::vector<Line> lines;
  const std::string text = io::read_text(test::kData / (name + ".jsonl"), 1 << 20);
  for (const std::string_view line : split(text, '\n')) {
    if (!line.empty()) {
      const auto json = nlohmann::json::parse(line);
      lines.push_back({from_hexadecimal(json["text"].get<std::string>()), json["ids"]});
    }
  }
  return lines;
}

class FixturesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FixturesTest, GivesTheIdsOfTheReference) {
  const Tokenizer tokenizer = Tokenizer::load(test::kData / GetParam());
  const std::vector<Line> lines = lines_of(GetParam());
  ASSERT_GT(lines.size(), 100U);
  for (const Line& line : lines) {
    EXPECT_EQ(tokenizer.encode(line.text).ids, line.ids) << quote(line.text);
  }
}

TEST_P(FixturesTest, GivesTheSameIdsToThreadsAtOnce) {
  const Tokenizer tokenizer = Tokenizer::load(test::kData / GetParam());
  const std::vector<Line> lines = lines_of(GetParam());
  std::vector<size_t> num_wrong(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (const Line& line : lines) {
        num_wrong[i] += tokenizer.encode(line.text).ids == line.ids ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(num_wrong, ::testing::Each(0U));
}

INSTANTIATE_TEST_SUITE_P(Trained, FixturesTest,
                         ::testing::Values("bert", "bert_json", "clip", "qwen2", "llama3",
                                           "llama2_json", "llama2_model", "t5_json", "t5_spiece",
                                           "umt5_spiece"),
                         [](const auto& info) { return info.param; });

TEST(FixturesTest, BytesOfByteLevelAndOfFallbackComeBack) {
  const std::string text =
      "a small circle, 4K \xF0\x9F\x98\x80 \xE4\xBA\xBA\xE4\xBA\xBA caf\xC3\xA9";
  for (const char* name : {"qwen2", "llama3", "llama2_json", "llama2_model"}) {
    const Tokenizer tokenizer = Tokenizer::load(test::kData / name);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids), text) << name;
  }
}

/// A folder of real tokenizers; empty without KINORA_DATA.
std::filesystem::path real(const char* name) {
  const char* folder = std::getenv("KINORA_DATA");
  return std::filesystem::path(folder == nullptr ? "" : folder) / "tokenizers" / name;
}

TEST(RealTokenizerTest, ClipGivesThePublishedIds) {
  if (!std::filesystem::exists(real("clip"))) {
    GTEST_SKIP() << "no CLIP tokenizer: " << real("clip") << " is absent (set KINORA_DATA)";
  }
  const Tokenizer tokenizer = Tokenizer::load(real("clip"));
  EXPECT_THAT(tokenizer.encode("a photo of a cat").ids,
              ElementsAre(49406, 320, 1125, 539, 320, 2368, 49407));
  const Tokens cut = tokenizer.encode("a photo of a cat and a dog", {.max_length = 6});
  EXPECT_THAT(cut.ids, ElementsAre(49406, 320, 1125, 539, 320, 49407));
  EXPECT_EQ(cut.cut, "cat and a dog");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("A photo of a cat's 3 tails").ids),
            "a photo of a cat 's 3 tails");
  const std::string words = "un caf\xC3\xA9 noir \xE4\xBA\xBA";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(words).ids), words);
  EXPECT_EQ(tokenizer.vocab_size(), 49408);
  EXPECT_EQ(tokenizer.pad_id(), 49407);
  EXPECT_EQ(tokenizer.bos_id(), 49406);
}

TEST(RealTokenizerTest, T5GivesThePublishedIds) {
  if (!std::filesystem::exists(real("t5"))) {
    GTEST_SKIP() << "no T5 tokenizer: " << real("t5") << " is absent (set KINORA_DATA)";
  }
  const Tokenizer tokenizer = Tokenizer::load(real("t5"));
  // The two examples of transformers' page on T5.
  EXPECT_THAT(tokenizer.encode("The house is wonderful.").ids,
              ElementsAre(37, 629, 19, 1627, 5, 1));
  EXPECT_THAT(tokenizer.encode("Studies have been shown that owning a dog is good for you").ids,
              ElementsAre(6536, 43, 118, 2008, 24, 293, 53, 3, 9, 1782, 19, 207, 21, 25, 1));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Hello  w\xC3\xB6rld <extra_id_0> x").ids),
            "Hello w\xC3\xB6rld x");
  EXPECT_EQ(tokenizer.vocab_size(), 32100);
  EXPECT_EQ(tokenizer.pad_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.id_of("<extra_id_0>"), 32099);
}

}  // namespace fixtures_test
}  // namespace kinora::tokenizers
