// Each stage by itself. Expected values are those of the unit tests of Hugging Face's tokenizers,
// or were printed by them (0.23.3).

#include <gmock/gmock.h>

#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"
#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace stages_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string normalized(std::string_view stage, std::string text) {
  const JsonFile file(stage, "stage");
  std::vector<Normalizer> stages;
  read_normalizer(file.root(), stages);
  NormalizedText result{std::move(text)};
  normalize(stages, result);
  return result.text;
}

std::vector<std::string> pieces(std::string_view stage, const std::string& text) {
  const JsonFile file(stage, "stage");
  std::vector<PreTokenizer> stages;
  read_pre_tokenizer(file.root(), stages);
  DividedText divided{text, {{{0, text.size()}, -1, true}}};
  pre_tokenize(stages, divided);
  std::vector<std::string> texts;
  for (const Piece& piece : divided.pieces) {
    texts.push_back(divided.text.substr(piece.range.begin, piece.range.end - piece.range.begin));
  }
  return texts;
}

std::string decoded(std::string_view stage, std::vector<std::string> tokens) {
  const JsonFile file(stage, "stage");
  std::vector<Decoder> stages;
  read_decoder(file.root(), stages);
  return decode_tokens(stages, std::move(tokens));
}

TEST(NormalizersTest, NormalForms) {
  const std::string text = "e\u0301 \u00C5 \uFB01 \u1E9B\u0323";
  EXPECT_EQ(normalized(R"({"type": "NFC"})", text), "\u00E9 \u00C5 \uFB01 \u1E9B\u0323");
  EXPECT_EQ(normalized(R"({"type": "NFD"})", text), "e\u0301 A\u030A \uFB01 \u017F\u0323\u0307");
  EXPECT_EQ(normalized(R"({"type": "NFKC"})", text), "\u00E9 \u00C5 fi \u1E69");
  EXPECT_EQ(normalized(R"({"type": "NFKD"})", text), "e\u0301 A\u030A fi s\u0323\u0307");
}

TEST(NormalizersTest, LowercaseIsThatOfSingleCharacters) {
  EXPECT_EQ(normalized(R"({"type": "Lowercase"})", "AB\u00C9\u0130\u03A3"),
            "ab\u00E9i\u0307\u03C3");
}

TEST(NormalizersTest, BertRulesAreThoseOfItsParts) {
  const std::string text =
      "A\tb\u00A0\u200BC" + std::string(1, '\0') + "\uFFFD \u00C9\u4EBA\u0939\u093F\u0301x";
  const auto bert = [&text](const std::string& rules) {
    return normalized(R"({"type": "BertNormalizer")" + rules + "}", text);
  };
  EXPECT_EQ(bert(""), "a b c e \u4EBA \u0939\u093Fx");
  EXPECT_EQ(bert(R"(, "strip_accents": false)"), "a b c \u00E9 \u4EBA \u0939\u093F\u0301x");
  EXPECT_EQ(bert(R"(, "lowercase": false)"), "A b C \u00C9 \u4EBA \u0939\u093F\u0301x");
  EXPECT_EQ(bert(R"(, "lowercase": false, "strip_accents": true)"), "A b C E \u4EBA \u0939\u093Fx");
  EXPECT_EQ(bert(R"(, "clean_text": false, "handle_chinese_chars": false)"),
            "a\tb\u00A0\u200Bc" + std::string(1, '\0') + "\uFFFD e\u4EBA\u0939\u093Fx");
}

TEST(PreTokenizersTest, BertDividesAtSpacesAndMarks) {
  EXPECT_THAT(pieces(R"({"type": "BertPreTokenizer"})", "it's  a-b\u3001c $5"),
              ElementsAre("it", "'", "s", "a", "-", "b", "\u3001", "c", "$", "5"));
}

TEST(DecodersTest, WordPiecesAreJoinedAndTidied) {
  EXPECT_EQ(decoded(R"({"type": "WordPiece"})",
                    {"it", "'", "s", "a", "circ", "##les", ",", "do", "not", ".", "##x"}),
            "it ' s a circles, do not.x");
  EXPECT_EQ(decoded(R"({"type": "WordPiece", "cleanup": false})", {"##a", "b", ",", "##c"}),
            "##a b ,c");
}

TEST(NormalizersTest, ReplaceTakesTextsAndExpressions) {
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"String": "''"}, "content": "\""})",
                       "This is a ''test''"),
            "This is a \"test\"");
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "})",
                       "This     is   a\u3000\ttest"),
            "This is a test");
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"String": ""}, "content": "x"})", "a"),
            "a");
}

TEST(NormalizersTest, PrependStripAndSequence) {
  const std::string stage = R"({"type": "Sequence", "normalizers": [
      {"type": "Strip", "strip_left": true, "strip_right": true},
      {"type": "Prepend", "prepend": "_"}]})";
  EXPECT_EQ(normalized(stage, " \u3000 a b\n"), "_a b");
  EXPECT_EQ(normalized(stage, "  "), "");
  EXPECT_EQ(normalized(R"({"type": "Strip", "strip_left": false, "strip_right": true})", " a "),
            " a");
}

TEST(NormalizersTest, ManyMarksTakeLittleTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) {
    text += "\u0301\u0323";
  }
  const std::string sorted = normalized(R"({"type": "NFD"})", text);
  EXPECT_EQ(sorted.size(), text.size());
  EXPECT_TRUE(sorted.starts_with("a\u0323\u0323"));
  EXPECT_TRUE(sorted.ends_with("\u0301\u0301"));
}

TEST(PreTokenizersTest, SplitsBehaveAsPublished) {
  const auto split = [](const std::string& behavior, const std::string& invert = "false") {
    return pieces(R"({"type": "Split", "pattern": {"String": "-"}, "behavior": ")" + behavior +
                      R"(", "invert": )" + invert + "}",
                  "The-final--countdown");
  };
  EXPECT_THAT(split("Removed"), ElementsAre("The", "final", "countdown"));
  EXPECT_THAT(split("Isolated"), ElementsAre("The", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split("MergedWithPrevious"), ElementsAre("The-", "final-", "-", "countdown"));
  EXPECT_THAT(split("MergedWithNext"), ElementsAre("The", "-final", "-", "-countdown"));
  EXPECT_THAT(split("Contiguous"), ElementsAre("The", "-", "final", "--", "countdown"));
  EXPECT_THAT(split("Removed", "true"), ElementsAre("-", "-", "-"));
}

TEST(PreTokenizersTest, ByteLevelDividesAndMapsBytes) {
  const std::string stage =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
  EXPECT_THAT(pieces(stage, "Hello my friend, how is your day going?"),
              ElementsAre("Hello", "\u0120my", "\u0120friend", ",", "\u0120how", "\u0120is",
                          "\u0120your", "\u0120day", "\u0120going", "?"));
  EXPECT_THAT(pieces(stage, "a\nb"), ElementsAre("a", "\u010A", "b"));
  EXPECT_THAT(pieces(R"({"type": "ByteLevel"})", "i\u2B57j"),
              ElementsAre("\u0120i", "\u00E2\u0143\u0139", "j"));
}

TEST(PreTokenizersTest, MetaspaceDividesInFrontOfSpaces) {
  EXPECT_THAT(pieces(R"({"type": "Metaspace", "replacement": "\u2581"})", "Hey   friend!"),
              ElementsAre("\u2581Hey", "\u2581", "\u2581", "\u2581friend!"));
  EXPECT_THAT(pieces(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never",
                         "split": false})",
                     "a b"),
              ElementsAre("a_b"));
  EXPECT_THAT(
      pieces(R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})", "a b"),
      ElementsAre("a", "_b"));
}

TEST(PreTokenizersTest, Words) {
  EXPECT_THAT(pieces(R"({"type": "Whitespace"})", "How are_you, caf\u00E9?!  "),
              ElementsAre("How", "are_you", ",", "caf\u00E9", "?!"));
  EXPECT_THAT(pieces(R"({"type": "WhitespaceSplit"})", " a,\u3000b\nc "),
              ElementsAre("a,", "b", "c"));
  EXPECT_THAT(pieces(R"({"type": "Punctuation"})", "Hey, man\u3002"),
              ElementsAre("Hey", ",", " man", "\u3002"));
  EXPECT_THAT(pieces(R"({"type": "Digits", "individual_digits": true})", "Hey 123!"),
              ElementsAre("Hey ", "1", "2", "3", "!"));
  EXPECT_THAT(pieces(R"({"type": "Digits", "individual_digits": false})", "Hey 123!"),
              ElementsAre("Hey ", "123", "!"));
  EXPECT_THAT(pieces(R"({"type": "WhitespaceSplit"})", "  "), IsEmpty());
}

TEST(PreTokenizersTest, ExpressionsAreThoseOfOniguruma) {
  const auto matches = [](const std::string& regex, const std::string& text) {
    return pieces(R"({"type": "Split", "pattern": {"Regex": ")" + regex +
                      R"("}, "behavior": "Removed", "invert": true})",
                  text);
  };
  EXPECT_THAT(matches("\\\\s", "a\u180Eb\u3000"), ElementsAre("\u3000"));
  EXPECT_THAT(matches("[^\\\\s]+", "ab\u0085c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches("\\\\h+", "x1F y"), ElementsAre("1F"));
  EXPECT_THAT(matches("^.", "ab\ncd"), ElementsAre("a", "c"));
  EXPECT_THAT(matches("\\\\w+", "a\u0301_-b"), ElementsAre("a\u0301_", "b"));
}

TEST(DecodersTest, EachTurnsItsStageRound) {
  EXPECT_EQ(decoded(R"({"type": "ByteLevel"})", {"Hello", "\u0120my", "\u00E2\u0143\u0139"}),
            "Hello my\u2B57");
  EXPECT_EQ(decoded(R"({"type": "Metaspace", "replacement": "_"})", {"_Hey", "_friend"}),
            "Hey friend");
  EXPECT_EQ(decoded(R"({"type": "BPEDecoder", "suffix": "</w>"})", {"a</w>", "b", "c</w>"}),
            "a bc");
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {"a", "<0xE5>", "<0x8f>"}), "a\uFFFD\uFFFD")
      << "lower case is read, too";
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {"<0xE5>", "<0x8F>", "<0xAB>", "a"}), "\u53EBa");
  EXPECT_EQ(decoded(R"({"type": "Sequence", "decoders": [
                      {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
                      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})",
                    {"_a", "_b_"}),
            "a b ");
}

TEST(StagesTest, OthersAreRefusedByName) {
  const auto refused = [](const auto& read, const char* stage) {
    return error_of(ErrorKind::kIo, [&] { return read(stage, std::string("a")); });
  };
  EXPECT_THAT(refused(normalized, R"({"type": "Nmt"})"),
              AllOf(HasSubstr("stage: must be NFC"), HasSubstr("got \"Nmt\"")));
  EXPECT_THAT(refused(pieces, R"({"type": "UnicodeScripts"})"),
              HasSubstr("got \"UnicodeScripts\""));
  EXPECT_THAT(error_of(ErrorKind::kIo, [] { return decoded(R"({"type": "CTC"})", {"a"}); }),
              HasSubstr("got \"CTC\""));
  EXPECT_THAT(
      refused(pieces, R"({"type": "Split", "pattern": {"String": "-"}, "behavior": "Cut"})"),
      HasSubstr("behavior must be Removed, Isolated"));
  EXPECT_THAT(
      refused(pieces, R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Removed"})"),
      AllOf(HasSubstr("pattern.Regex: the regular expression \"(a\" cannot be used"),
            HasSubstr("parenthesis")));
  EXPECT_THAT(
      refused(normalized, R"({"type": "Replace", "pattern": {"Regex": "[a&&b]"}, "content": ""})"),
      HasSubstr("must not have [ or && within"));
  EXPECT_THAT(refused(pieces, R"({"type": "Metaspace", "replacement": "__"})"),
              HasSubstr("must be one character"));
  EXPECT_THAT(
      refused(pieces, R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"),
      HasSubstr("must be always, first or never, got \"last\""));
  EXPECT_THAT(
      refused(pieces, R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first",
                                  "add_prefix_space": false})"),
      HasSubstr("add_prefix_space: false"));
  EXPECT_THAT(refused(normalized, R"({"type": "Precompiled", "precompiled_charsmap": "?"})"),
              HasSubstr("must be base64"));
  EXPECT_THAT(refused(normalized, R"({"type": "Precompiled", "precompiled_charsmap": "////fw=="})"),
              HasSubstr("the double array of a table of replacements must have"));
}

}  // namespace stages_test
}  // namespace kinora::tokenizers
