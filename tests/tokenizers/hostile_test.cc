// A tokenizer.json that is malformed, or means to do harm: a clear error, and soon.

#include <gmock/gmock.h>

#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace hostile_test {

using test::abc_model;
using test::json_of;
using ::testing::HasSubstr;

std::string refusal(const std::string& json) {
  return error_of(ErrorKind::kIo, [&] { return test::from_json(json).vocab_size(); });
}

TEST(HostileTokenizerTest, DeepJsonIsRefused) {
  const std::string depth(1'000'000, '[');
  EXPECT_THAT(refusal(depth), HasSubstr("JSON must have at most 32 levels"));
  std::string nested = R"({"type": "NFC"})";
  for (int i = 0; i < 100; ++i) {
    nested = R"({"type": "Sequence", "normalizers": [)" + nested + "]}";
  }
  EXPECT_THAT(refusal(json_of(abc_model(), R"("normalizer": )" + nested)),
              HasSubstr("must have at most 32 levels"));
}

TEST(HostileTokenizerTest, MalformedFilesAreRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("must be JSON, got"));
  EXPECT_THAT(refusal("{\"model\": \"\xFF\"}"), HasSubstr("must be JSON, got"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object, got an array"));
  EXPECT_THAT(refusal("{}"), HasSubstr("must have \"model\", got none"));
  EXPECT_THAT(refusal(json_of(R"({"type": "WordLevel", "vocab": {}})")),
              HasSubstr("model must be of type BPE, Unigram or WordPiece, got \"WordLevel\""));
  EXPECT_THAT(refusal(json_of(R"({"type": "WordPiece", "vocab": {"a": 0}})")),
              HasSubstr("a token for unknown words must be in the vocabulary"));
  EXPECT_THAT(refusal(json_of(R"({"type": "WordPiece", "vocab": {"[UNK]": 0, ")" +
                              std::string(1025, 'a') + R"(": 1}})")),
              HasSubstr("a token must have at most 1024 bytes, got 1025"));
  EXPECT_THAT(refusal(json_of(R"({"type": "BPE", "vocab": {"a": 1.5}, "merges": []})")),
              HasSubstr("model.vocab.* must be an integer, got 1.5"));
  EXPECT_THAT(refusal(json_of(R"({"type": "BPE", "vocab": [], "merges": []})")),
              HasSubstr("model.vocab must be an object, got an array"));
  EXPECT_THAT(refusal(json_of(abc_model(R"(, "dropout": 0.1)"))),
              HasSubstr("model.dropout must be 0 or null"));
  EXPECT_THAT(refusal(json_of(abc_model(R"(, "unk_token": "<unk>")"))),
              HasSubstr("model.unk_token must be in the vocabulary, got \"<unk>\""));
}

TEST(HostileTokenizerTest, IdsOutOfRangeAreRefused) {
  for (const char* id : {"-1", "16777216", "4294967296", "9223372036854775807"}) {
    EXPECT_THAT(refusal(json_of(R"({"type": "BPE", "merges": [], "vocab": {"a": )" +
                                std::string(id) + "}}")),
                HasSubstr("must be 0 to 16777215, got " + std::string(id)));
  }
  EXPECT_THAT(
      refusal(json_of(R"({"type": "BPE", "merges": [], "vocab": {"a": 18446744073709551615}})")),
      HasSubstr("must be an integer, got 18446744073709551615"));
  EXPECT_THAT(
      refusal(json_of(abc_model(), R"("added_tokens": [{"id": 16777216, "content": "x"}])")),
      HasSubstr("must be an id of 0 to 16777215, got 16777216"));
  EXPECT_THAT(refusal(json_of(R"({"type": "Unigram", "unk_id": 1, "vocab": [["a", 0]]})")),
              HasSubstr("unk_id must be the number of a piece, 0 to 0, got 1"));
  EXPECT_THAT(refusal(json_of(R"({"type": "Unigram", "unk_id": 0, "vocab": []})")),
              HasSubstr("unk_id must be the number of a piece"));
}

TEST(HostileTokenizerTest, MergesMustBeOfKnownTokens) {
  EXPECT_THAT(refusal(json_of(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]})")),
              HasSubstr("which lacks \"aa\""));
  EXPECT_THAT(refusal(json_of(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]})")),
              HasSubstr("model.merges[] must have at least 2 elements, got 1"));
  EXPECT_THAT(refusal(json_of(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [3]})")),
              HasSubstr("model.merges[] must have at least 1 element, got 3"));
}

TEST(HostileTokenizerTest, MergesThatLeadBackEnd) {
  // With a prefix that is all of the right token, a merge gives the left token again.
  const Tokenizer tokenizer = test::from_json(json_of(
      R"({"type": "BPE", "continuing_subword_prefix": "b", "vocab": {"a": 0, "b": 1, "bb": 2},
          "merges": ["a b", "b b", "bb b", "b bb"]})"));
  EXPECT_LE(tokenizer.encode(std::string(1000, 'b')).ids.size(), 1000U);
  EXPECT_LE(tokenizer.encode("a" + std::string(30, 'b')).ids.size(), 31U);
}

TEST(HostileTokenizerTest, LongPiecesAreRefused) {
  const std::string piece(1025, 'a');
  EXPECT_THAT(refusal(json_of(R"({"type": "Unigram", "vocab": [[")" + piece + R"(", 0]]})")),
              HasSubstr("a piece must have at most 1024 bytes, got 1025"));
  EXPECT_THAT(refusal(json_of(abc_model(),
                              R"("added_tokens": [{"id": 7, "content": ")" + piece + R"("}])")),
              HasSubstr("an added token must have at most 1024 bytes, got 1025"));
}

TEST(HostileTokenizerTest, PostProcessorsMustHaveTheTextOnce) {
  EXPECT_THAT(refusal(json_of(abc_model(), R"("post_processor": {"type": "TemplateProcessing",
                          "single": [], "special_tokens": {}})")),
              HasSubstr("single must have the text once, got 0 times"));
  EXPECT_THAT(refusal(json_of(abc_model(), R"("post_processor": {"type": "TemplateProcessing",
                          "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}})")),
              HasSubstr("special_tokens must have \"x\", got none"));
  EXPECT_THAT(refusal(json_of(abc_model(), R"("post_processor": {"type": "Other"})")),
              HasSubstr("got \"Other\""));
}

TEST(HostileTokenizerTest, TextsThatStagesMakeTooLongAreRefused) {
  std::string stages = R"({"type": "NFC"})";
  const std::string longer(64, 'a');
  for (int i = 0; i < 40; ++i) {
    stages += R"(, {"type": "Replace", "pattern": {"String": "a"}, "content": ")" + longer + "\"}";
  }
  const Tokenizer tokenizer = test::from_json(json_of(
      abc_model(), R"("normalizer": {"type": "Sequence", "normalizers": [)" + stages + "]}"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return tokenizer.encode("aaaa"); }),
              HasSubstr("a normalised text must have at most 268435456 bytes, got"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return tokenizer.encode(std::string((64 << 20) + 1, 'b')); }),
              HasSubstr("a text must have at most 67108864 bytes, got 67108865"));
}

TEST(HostileTokenizerTest, ExpressionsThatNeedManyStepsEnd) {
  const Tokenizer tokenizer = test::from_json(
      json_of(abc_model(), R"x("pre_tokenizer": {"type": "Split", "behavior": "Isolated",
                        "pattern": {"Regex": "(a+)+(a+)+b\\1"}})x"));
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return tokenizer.encode(std::string(5000, 'a') + "bc"); }),
      HasSubstr("must take few steps, got"));
}

}  // namespace hostile_test
}  // namespace kinora::tokenizers
