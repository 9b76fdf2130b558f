// Models of SentencePiece, written here byte by byte. Expected ids: sentencepiece 0.2.3, with the
// tokens around them.

#include <gmock/gmock.h>

#include <bit>

#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace sentence_piece_test {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string varint(uint64_t value) {
  std::string bytes;
  while (value >= 0x80) {
    bytes += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  return bytes + static_cast<char>(value);
}

std::string bytes_field(uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

std::string integer_field(uint64_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}

std::string piece(const std::string& text, float score, uint64_t type = 1) {
  const auto bits = std::bit_cast<uint32_t>(score);
  std::string inner = bytes_field(1, text) + varint(2 << 3 | 5);
  for (int i = 0; i < 4; ++i) {
    inner += static_cast<char>(bits >> (8 * i));
  }
  return bytes_field(1, inner + integer_field(3, type));
}

/// <unk> <s> </s> a b ab _a, of type BPE (2) or unigram (1).
std::string model(uint64_t type, const std::string& trainer = "", const std::string& rules = "") {
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("a", -3) +
         piece("b", -4) + piece("ab", -1) +
         piece(
             "\u2581"
             "a",
             -2) +
         piece("\u2581", -5) + bytes_field(2, integer_field(3, type) + trainer) +
         bytes_field(3, rules);
}

Tokenizer load(const std::string& bytes, std::string_view config = "") {
  const TemporaryFolder folder;
  io::write_file_atomic(folder / "tokenizer.model", bytes);
  if (!config.empty()) {
    io::write_file_atomic(folder / "tokenizer_config.json", config);
  }
  return Tokenizer::load(folder.path());
}

std::string refusal(const std::string& bytes) {
  return error_of(ErrorKind::kIo, [&] { return load(bytes).vocab_size(); });
}

TEST(SentencePieceTest, BothKindsOfModelsAreRead) {
  EXPECT_THAT(load(model(2)).encode("  aab  b ").ids, ElementsAre(1, 6, 5, 7, 4));
  EXPECT_THAT(load(model(1)).encode("  aab  b ").ids, ElementsAre(6, 5, 7, 4, 2));
  EXPECT_THAT(load(model(2)).encode("xyb").ids, ElementsAre(1, 7, 0, 4));
  EXPECT_THAT(load(model(1)).encode("b</s>").ids, ElementsAre(7, 4, 2, 2));
}

TEST(SentencePieceTest, ConfigurationSaysWhichTokensStandAround) {
  const Tokenizer tokenizer =
      load(model(2), R"({"add_bos_token": false, "add_eos_token": true, "extra_ids": 2})");
  EXPECT_THAT(tokenizer.encode("a").ids, ElementsAre(6, 2));
  EXPECT_EQ(tokenizer.id_of("<extra_id_1>"), 8);
  EXPECT_EQ(tokenizer.id_of("<extra_id_0>"), 9);
  EXPECT_EQ(load(model(1)).vocab_size(), 108) << "T5 has a hundred";
  EXPECT_EQ(load(model(2)).vocab_size(), 8);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
}

TEST(SentencePieceTest, RulesOfTheFileCount) {
  const std::string plain = integer_field(3, 0) + integer_field(4, 0);
  EXPECT_THAT(load(model(2, "", plain)).encode(" a").ids, ElementsAre(1, 6));
  EXPECT_THAT(load(model(2, "", plain)).encode("a").ids, ElementsAre(1, 3));
  EXPECT_THAT(load(model(1, integer_field(24, 1))).encode("ab").ids, ElementsAre(5, 7, 2));
  EXPECT_EQ(load(model(1)).decode({6, 5, 7, 4, 2}), "aab b");
}

TEST(SentencePieceTest, SymbolsOfTheUserStayWhole) {
  EXPECT_THAT(load(model(2) + piece("b!b", 0, 4)).encode("ab!bb").ids, ElementsAre(1, 6, 8, 4));
  EXPECT_THAT(load(model(1) + piece("!", 0, 4)).encode("a !b b").ids,
              ElementsAre(6, 7, 8, 4, 7, 4, 2));
}

TEST(SentencePieceTest, DamagedFilesAreRefused) {
  const std::string whole = model(1);
  for (size_t size = 1; size < whole.size(); ++size) {
    try {
      (void)load(whole.substr(0, size)).encode("aab");
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
    }
  }
  EXPECT_THAT(refusal(""), HasSubstr("got a file without pieces"));
  EXPECT_THAT(refusal("\x0A\xFF\xFF\xFF\xFF\x0F"),
              HasSubstr("must be a message of Protocol Buffers, got other bytes"));
  EXPECT_THAT(refusal(std::string(20, '\xFF')), HasSubstr("must be a message of Protocol Buffers"));
  EXPECT_THAT(refusal("\x0B"), HasSubstr("must be a message")) << "a group";
  EXPECT_THAT(refusal(integer_field(1, 3)), HasSubstr("field 1 must be bytes, got wire type 0"));
  EXPECT_THAT(refusal(bytes_field(1, bytes_field(2, "a"))),
              HasSubstr("field 2 must be a float, got wire type 2"));
  EXPECT_THAT(refusal(bytes_field(1, bytes_field(3, "a"))),
              HasSubstr("field 3 must be an integer, got wire type 2"));
}

TEST(SentencePieceTest, UnfitModelsAreRefused) {
  EXPECT_THAT(refusal(model(3)),
              HasSubstr("must be a model of type 1 (unigram) or 2 (BPE), got 3"));
  EXPECT_THAT(refusal(model(1, integer_field(40, 8))),
              HasSubstr("unk_id must be the number of a piece, got 8"));
  EXPECT_THAT(refusal(model(1, integer_field(40, static_cast<uint64_t>(-1)))), HasSubstr("got -1"));
  EXPECT_THAT(refusal(model(1, integer_field(35, 1))),
              HasSubstr("must have a piece of each byte, got none of 0"));
  EXPECT_THAT(refusal(model(2) + piece("c", 0, 5)),
              HasSubstr("must not have unused pieces, got \"c\""));
  EXPECT_THAT(refusal(model(1) + piece("\xFF", 0)),
              HasSubstr("piece 8 must be UTF-8 and not empty"));
  EXPECT_THAT(refusal(model(1) + piece("", 0)), HasSubstr("piece 8 must be UTF-8 and not empty"));
  EXPECT_THAT(refusal(model(1) + piece("c", std::bit_cast<float>(0x7FC00000U))),
              HasSubstr("piece 8 must have a finite score"));
  EXPECT_THAT(refusal(model(1) + piece(std::string(1025, 'c'), 0)),
              HasSubstr("piece 8 must have at most 1024 bytes, got 1025"));
  EXPECT_THAT(refusal(model(1, "", bytes_field(2, "abc"))),
              HasSubstr("a table of replacements must have 4 bytes at least, got 3"));
}

}  // namespace sentence_piece_test
}  // namespace kinora::tokenizers
