#include "kinora/tokenizers/tokenizer.h"

#include <gmock/gmock.h>

#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace tokenizer_test {

using test::abc_model;
using test::from_json;
using test::json_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kSplit = R"("pre_tokenizer": {"type": "WhitespaceSplit"})";

std::string bert(int cls, int sep) {
  return R"("post_processor": {"type": "BertProcessing", "cls": ["?", )" + std::to_string(cls) +
         R"(], "sep": ["?", )" + std::to_string(sep) + "]}";
}

TEST(TokenizerTest, MergesTheEarliestPairsFirst) {
  const Tokenizer tokenizer = from_json(json_of(abc_model()));
  EXPECT_THAT(tokenizer.encode("abcab").ids, ElementsAre(4, 3));
  EXPECT_THAT(tokenizer.encode("aab").ids, ElementsAre(0, 3));
  EXPECT_THAT(tokenizer.encode("").ids, IsEmpty());
  EXPECT_THAT(tokenizer.encode("xax").ids, ElementsAre(0))
      << "without unk_token others are left out";
  EXPECT_EQ(tokenizer.vocab_size(), 6);
  EXPECT_EQ(tokenizer.id_of("ab"), 3);
  EXPECT_EQ(tokenizer.id_of("ba"), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(4), "abc");
  EXPECT_EQ(tokenizer.token_of(99), std::nullopt);
  EXPECT_EQ(tokenizer.max_length(), std::nullopt);
}

// Expected: tokenizers 0.23.3.
TEST(TokenizerTest, RulesOfBpe) {
  const auto ids = [](const std::string& more, std::string_view text) {
    return from_json(json_of(abc_model(more))).encode(text).ids;
  };
  EXPECT_THAT(ids(R"(, "unk_token": "?")", "xyabx"), ElementsAre(5, 5, 3, 5));
  EXPECT_THAT(ids(R"(, "unk_token": "?", "fuse_unk": true)", "xyabx"), ElementsAre(5, 3, 5));
  EXPECT_THAT(ids(R"(, "ignore_merges": true)", "abc"), ElementsAre(4));
  const std::string words = R"({"type": "BPE", "continuing_subword_prefix": "##",
      "end_of_word_suffix": "$", "merges": ["a ##b$"],
      "vocab": {"a": 0, "b": 1, "##b$": 2, "ab$": 3, "a$": 4, "##a": 5, "##a$": 6}})";
  EXPECT_THAT(from_json(json_of(words, kSplit)).encode("ab a aaa b").ids,
              ElementsAre(3, 4, 0, 5, 6));
  const std::string bytes = R"({"type": "BPE", "byte_fallback": true, "unk_token": "?",
      "merges": [], "vocab": {"a": 0, "?": 1, "<0xC3>": 2, "<0xA9>": 3}})";
  EXPECT_THAT(from_json(json_of(bytes))
                  .encode("\xC3\xA9"
                          "a!")
                  .ids,
              ElementsAre(2, 3, 0, 1));
}

TEST(TokenizerTest, UnigramTakesTheLikeliestDivision) {
  // The example of tokenizers' documentation of Unigram::encode.
  const std::string model =
      R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", 0.0],
      ["b", 0.0], ["c", 0.0], ["d", 0.0], ["cd", 1.0], ["ab", 2.0], ["abc", 5.0], ["abcd", 10.0]]})";
  const Tokenizer tokenizer = from_json(json_of(model));
  EXPECT_THAT(tokenizer.encode("abcdacdxx").ids, ElementsAre(8, 1, 5, 0));
  EXPECT_EQ(tokenizer.unk_id(), 0);
}

TEST(TokenizerTest, UnigramWithoutUnkRefusesUnknownText) {
  const Tokenizer tokenizer = from_json(json_of(R"({"type": "Unigram", "vocab": [["a", 0.0]]})"));
  EXPECT_THAT(tokenizer.encode("aa").ids, ElementsAre(0, 0));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return tokenizer.encode("ab"); }),
              HasSubstr("no token for \"b\", and none for unknown text"));
}

// Expected: tokenizers 0.23.3.
TEST(TokenizerTest, AddedTokensAreFoundFirst) {
  const auto ids = [](const std::string& token, std::string_view text) {
    return from_json(json_of(abc_model(), kSplit + R"(, "normalizer": {"type": "Lowercase"},
               "added_tokens": [{"id": 6, "special": true, "content": )" +
                                              token + "}]"))
        .encode(text)
        .ids;
  };
  EXPECT_THAT(ids(R"("<B>")", "a<B>b <b>"), ElementsAre(0, 6, 1, 1));
  EXPECT_THAT(ids(R"("<B>", "normalized": true)", "a<B>b <b>"), ElementsAre(0, 6, 1, 6));
  EXPECT_THAT(ids(R"("abz", "single_word": true)", "aabz abz, abz"), ElementsAre(0, 3, 6, 6));
  EXPECT_THAT(ids(R"("ab")", "abab abc"), ElementsAre(3, 3, 3, 2))
      << "one of the vocabulary keeps its id";
  EXPECT_THAT(ids(R"("")", "a"), ElementsAre(0));
  const Tokenizer strips = from_json(json_of(
      abc_model(R"(, "unk_token": "?")"),
      R"("added_tokens": [{"id": 6, "special": true, "content": "#", "lstrip": true, "rstrip": true}])"));
  EXPECT_THAT(strips.encode("a # \n b").ids, ElementsAre(0, 6, 1));
  EXPECT_EQ(strips.decode({0, 6, 1}), "a b");
  EXPECT_EQ(strips.decode({0, 6, 1}, /*special_tokens=*/true), "a # b");
  EXPECT_EQ(strips.decode({77, -1}), "");
}

TEST(TokenizerTest, SpecialTokensStandAroundTheText) {
  const Tokenizer tokenizer = from_json(json_of(abc_model(), bert(1, 2)));
  EXPECT_THAT(tokenizer.encode("a").ids, ElementsAre(1, 0, 2));
  EXPECT_THAT(tokenizer.encode("a", {.special_tokens = false}).ids, ElementsAre(0));
  EXPECT_EQ(tokenizer.num_special_tokens(), 2);
  const Tokenizer both = from_json(json_of(abc_model(), R"("post_processor": {"type": "Sequence",
      "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"x": {"id": "x", "ids": [7, 8], "tokens": ["y", "z"]}}}]})"));
  EXPECT_THAT(both.encode("a").ids, ElementsAre(7, 8, 0));
}

TEST(TokenizerTest, TruncationKeepsSpecialTokensAndShowsWhatWasCutOff) {
  const Tokenizer tokenizer = from_json(json_of(abc_model(), kSplit + ", " + bert(1, 2)));
  const Tokens whole = tokenizer.encode("a abc", {.max_length = 4});
  EXPECT_THAT(whole.ids, ElementsAre(1, 0, 4, 2));
  EXPECT_EQ(whole.cut, "");
  EXPECT_EQ(whole.num_cut, 0);
  const Tokens cut = tokenizer.encode("a ab abc", {.max_length = 3});
  EXPECT_THAT(cut.ids, ElementsAre(1, 0, 2));
  EXPECT_EQ(cut.cut, "ab abc");
  EXPECT_EQ(cut.num_cut, 2);
  EXPECT_THAT(tokenizer.encode("a ab", {.special_tokens = false, .max_length = 1}).ids,
              ElementsAre(0));
  EXPECT_THAT(tokenizer.encode("a ab", {.max_length = 2}).ids, ElementsAre(1, 2));
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return tokenizer.encode("a", {.max_length = 1}); }),
      HasSubstr("max_length must be at least 2, the number of special tokens, got 1"));
}

TEST(TokenizerTest, MetaspaceBeginsOnlyTheFirstPieceWhereItSaysSo) {
  const Tokenizer tokenizer = from_json(json_of(
      R"({"type": "BPE", "vocab": {"a": 0, "_": 1, "#": 2}, "merges": []})",
      R"("pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"},
         "added_tokens": [{"id": 2, "content": "#", "special": true}])"));
  EXPECT_THAT(tokenizer.encode("a#a a").ids, ElementsAre(1, 0, 2, 0, 1, 0));
  EXPECT_THAT(tokenizer.encode("#a").ids, ElementsAre(2, 0));
}

TEST(TokenizerTest, TenMegabytesTakeLinearTime) {
  // Quadratic time would take hours.
  for (const char* name : {"clip", "llama2_json", "t5_spiece"}) {
    const Tokenizer tokenizer = Tokenizer::load(test::kData / name);
    const std::string letters(10'000'000, 'a');
    EXPECT_GT(tokenizer.encode(letters).ids.size(), 100'000U) << name;
    EXPECT_GT(tokenizer.encode(std::string(2'000'000, ' ') + "x").ids.size(), 0U) << name;
    EXPECT_GT(tokenizer.encode(std::string(2'000'000, '\xFF')).ids.size(), 0U) << name;
  }
}

}  // namespace tokenizer_test
}  // namespace kinora::tokenizers
