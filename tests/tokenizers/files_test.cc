// Tokenizers that other files keep.

#include "kinora/tokenizers/tokenizer_files.h"

#include <gmock/gmock.h>

#include <map>
#include <vector>

#include "tests/tokenizers/tokenizers_testing.h"

namespace kinora::tokenizers {
namespace files_test {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::Key;
using testing::UnorderedElementsAre;
using Texts = std::map<std::string, std::string>;

std::optional<TokenizerFiles> files_of(const Texts& texts) {
  return TokenizerFiles::from_texts(
      [&texts](const std::string& name) {
        const auto found = texts.find(name);
        return found == texts.end() ? "" : found->second;
      },
      "weights.safetensors");
}

const std::string kText = "Two red circles, a caf\xC3\xA9 & \xE2\x98\x83 above 17 squares";

TEST(TokenizerFilesTest, TextsAreTheSameTokenizer) {
  int64_t count = 0;
  for (const auto& entry : fs::directory_iterator(test::kData)) {
    if (entry.is_directory()) {
      const auto files = files_of(TokenizerFiles::read(entry.path()).texts());
      ASSERT_TRUE(files.has_value()) << entry.path();
      const Tokenizer kept(*files);
      const Tokenizer loaded = Tokenizer::load(entry.path());
      EXPECT_EQ(kept.encode(kText).ids, loaded.encode(kText).ids) << entry.path();
      EXPECT_EQ(kept.pad_id(), loaded.pad_id());
      EXPECT_EQ(kept.max_length(), loaded.max_length());
      ++count;
    }
  }
  EXPECT_GE(count, 8);
}

TEST(TokenizerFilesTest, OnlyWhatIsReadIsKept) {
  const TemporaryFolder folder;
  fs::copy(test::kData / "clip", folder.path(), fs::copy_options::recursive);
  io::write_file_atomic(folder / "readme.txt", std::string_view("mine"));
  EXPECT_THAT(TokenizerFiles::read(folder / "vocab.json").texts(),
              testing::IsSupersetOf({Key("vocab.json"), Key("merges.txt")}));
  EXPECT_EQ(TokenizerFiles::read(folder.path()).texts().count("readme.txt"), 0U);
  fs::create_directories(folder / "own");
  fs::copy_file(test::kData / "t5_spiece/spiece.model", folder / "own/words.model");
  EXPECT_THAT(TokenizerFiles::read(folder / "own/words.model").texts(),
              UnorderedElementsAre(Key("spiece.model")));
}

TEST(TokenizerFilesTest, WhatAFileSaysIsNotTrusted) {
  EXPECT_FALSE(files_of({}).has_value());
  EXPECT_FALSE(files_of({{"../spiece.model", "YQ=="}, {"merges.txt", "YQ=="}}).has_value());
  const auto refusal = [](const Texts& texts) {
    return error_of(ErrorKind::kIo, [&] { return Tokenizer(*files_of(texts)).vocab_size(); });
  };
  EXPECT_THAT(refusal({{"spiece.model", "no base64"}}),
              HasSubstr("weights.safetensors: spiece.model must be base64"));
  EXPECT_THAT(refusal({{"tokenizer.json", "YQ=="}}),
              HasSubstr("weights.safetensors: tokenizer.json: must be JSON"));
  EXPECT_THAT(refusal({{"vocab.json", "e30="}}), HasSubstr("weights.safetensors"));
}

}  // namespace files_test
}  // namespace kinora::tokenizers
