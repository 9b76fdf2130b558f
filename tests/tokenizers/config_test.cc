// Folders: which file counts, tokenizer_config.json and special_tokens_map.json, and CLIP's files.

#include <gmock/gmock.h>

#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace config_test {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::filesystem::path& path) {
  return error_of(ErrorKind::kIo, [&] { return Tokenizer::load(path).vocab_size(); });
}

/// A folder of CLIP's kind with four tokens.
class ClipFolder : public TemporaryFolder {
 public:
  ClipFolder() {
    write("vocab.json", R"({"a": 0, "a</w>": 1, "aa</w>": 2, "!": 3, "!</w>": 4,
                            "<|startoftext|>": 5, "<|endoftext|>": 6})");
    write("merges.txt", "#version: 0.2\na a</w>\n\n");
  }
  void write(const char* name, std::string_view text) const {
    io::write_file_atomic(*this / name, text);
  }
};

TEST(ConfigTest, ClipNeedsOnlyItsTwoFiles) {
  const ClipFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_THAT(tokenizer.encode("AA  a<|endoftext|>!").ids, ElementsAre(5, 2, 1, 6, 4, 6));
  EXPECT_EQ(tokenizer.pad_id(), 6);
  EXPECT_EQ(tokenizer.decode({5, 2, 1, 6}), "aa a");
  EXPECT_EQ(tokenizer.decode({2, 0}), "aa a") << "a word that is cut off within";
  EXPECT_EQ(Tokenizer::load(folder / "vocab.json").vocab_size(), 7);
}

TEST(ConfigTest, ConfigurationNamesTokensAndLengths) {
  const ClipFolder folder;
  folder.write("special_tokens_map.json", R"({"pad_token": "!", "bos_token": {"content": "a"}})");
  folder.write("tokenizer_config.json",
               R"({"model_max_length": 77, "bos_token": "<|startoftext|>",
                   "tokenizer_class": "CLIPTokenizer"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.pad_id(), 3);
  EXPECT_EQ(tokenizer.bos_id(), 5) << "tokenizer_config.json comes second";
  EXPECT_EQ(tokenizer.max_length(), 77);
  folder.write("special_tokens_map.json", "{}");
  folder.write(
      "tokenizer_config.json",
      R"({"model_max_length": 1000000000000000019884624838656, "truncation_side": "left"})");
  const Tokenizer other = Tokenizer::load(folder.path());
  EXPECT_EQ(other.max_length(), std::nullopt);
  const Tokens cut = other.encode("aa a", {.special_tokens = false, .max_length = 1});
  EXPECT_THAT(cut.ids, ElementsAre(1));
  EXPECT_EQ(cut.cut, "aa");
}

TEST(ConfigTest, TokensThatOnlyTheConfigurationHasAreAdded) {
  const TemporaryFolder folder;
  io::write_file_atomic(folder / "tokenizer.json", test::json_of(test::abc_model()));
  io::write_file_atomic(folder / "tokenizer_config.json",
                        std::string_view(R"({"added_tokens_decoder": {"9": {"content": "<x>"}},
                                             "eos_token": "<x>"})"));
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_THAT(tokenizer.encode("a<x>").ids, ElementsAre(0, 9));
  EXPECT_EQ(tokenizer.eos_id(), 9);
  EXPECT_EQ(tokenizer.vocab_size(), 10);
}

// Ids are those of transformers' BertTokenizer (5.23).
TEST(ConfigTest, BertNeedsOnlyItsVocabulary) {
  const TemporaryFolder folder;
  const auto write = [&folder](const char* name, std::string_view text) {
    io::write_file_atomic(folder / name, text);
  };
  const std::string special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  write("vocab.txt", special + "a\nA\n##a\n##b\n.\n\u00C9\ne\n");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const std::string text = "aab A. \u00C9[MASK]";
  EXPECT_THAT(tokenizer.encode(text).ids, ElementsAre(2, 5, 7, 8, 5, 9, 11, 4, 3));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids), "aab a. e");
  EXPECT_THAT(tokenizer.encode("ac").ids, ElementsAre(2, 1, 3));
  EXPECT_THAT(tokenizer.encode(std::string(101, 'a')).ids, ElementsAre(2, 1, 3));
  EXPECT_EQ(tokenizer.pad_id(), 0);
  EXPECT_EQ(tokenizer.bos_id(), 2);
  EXPECT_EQ(tokenizer.eos_id(), 3);
  EXPECT_EQ(tokenizer.vocab_size(), 12);
  write("tokenizer_config.json", R"({"do_lower_case": false, "model_max_length": 512})");
  EXPECT_THAT(Tokenizer::load(folder / "vocab.txt").encode(text).ids,
              ElementsAre(2, 5, 7, 8, 6, 9, 10, 4, 3));
  EXPECT_EQ(Tokenizer::load(folder.path()).max_length(), 512);
  write("tokenizer_config.json", R"({"pad_token": "a", "mask_token": "A"})");
  EXPECT_EQ(Tokenizer::load(folder.path()).pad_id(), 5);
  write("vocab.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("vocab.txt must have the token \"[SEP]\""));
  write("vocab.txt", "\xFF");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("vocab.txt must be UTF-8"));
  write("tokenizer_config.json", R"({"tokenizer_class": "ElectraTokenizer"})");
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("must be of a BertTokenizer, got one of \"ElectraTokenizer\""));
}

TEST(ConfigTest, ErrorsOfFolders) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.path()), HasSubstr("must have tokenizer.json, spiece.model"));
  EXPECT_THAT(refusal(folder / "absent"), HasSubstr("must be a folder or a file, got nothing"));
}

TEST(ConfigTest, ErrorsOfClipFiles) {
  const ClipFolder folder;
  folder.write("merges.txt", "a a</w>\na b c\n");
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("merges.txt: merge 2 must be two tokens with a space between them, got"));
  folder.write("merges.txt", "a b\n");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("merge 1 (\"a\" with \"b\") must be of tokens in "
                                                "the vocabulary, which lacks \"b\""));
  folder.write("merges.txt", "\xFF \xFE\n");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("merges.txt must be UTF-8"));
  folder.write("vocab.json", R"({"a": 0})");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("must have the token \"<|startoftext|>\""));
  folder.write("vocab.json", R"({"a": -1})");
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("the id of the token \"a\" must be 0 to 16777215, got -1"));
  folder.write("vocab.json", R"(["a"])");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("must be an object, got an array"));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("must be of a CLIPTokenizer, got one of \"GPT2Tokenizer\""));
}

TEST(ConfigTest, ErrorsOfConfigurations) {
  const ClipFolder folder;
  const auto with = [&](std::string_view config) {
    folder.write("tokenizer_config.json", config);
    return refusal(folder.path());
  };
  EXPECT_THAT(with("{"), HasSubstr("tokenizer_config.json: must be JSON, got"));
  EXPECT_THAT(with(R"({"model_max_length": 0})"),
              HasSubstr("model_max_length must be at least 1, got 0"));
  EXPECT_THAT(with(R"({"model_max_length": "a"})"), HasSubstr("must be a number, got \"a\""));
  EXPECT_THAT(with(R"({"pad_token": 3})"), HasSubstr("pad_token must be an object, got 3"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"x": "y"}})"),
              HasSubstr("must be named by an id, got x"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"99999999": "y"}})"),
              HasSubstr("the id of the added token \"y\" must be 0 to 16777215, got 99999999"));
  EXPECT_THAT(with(R"({"extra_ids": -1})"), HasSubstr("extra_ids must be 0 to 65536, got -1"));
  EXPECT_THAT(with(R"({"extra_ids": 16777215})"), HasSubstr("extra_ids must be 0 to 65536"));
  EXPECT_THAT(with(std::string(1'000'000, '[')), HasSubstr("JSON must have at most 32 levels"));
  EXPECT_THAT(with(R"({"add_bos_token": 1})"),
              HasSubstr("add_bos_token must be true or false, got 1"));
}

}  // namespace config_test
}  // namespace kinora::tokenizers
