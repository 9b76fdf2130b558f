#include "kinora/core/glob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora {
namespace glob_test {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(GlobTest, StarsTakeAnyTextAndQuestionMarksOneCharacter) {
  EXPECT_TRUE(glob_matches("blocks.*.attn.*", "blocks.12.attn.qkv.weight"));
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("*bias", "a.bias"));
  EXPECT_TRUE(glob_matches("a*b*c", "aXbXbc"));
  EXPECT_TRUE(glob_matches("blocks.?.x", "blocks.1.x"));
  EXPECT_TRUE(glob_matches("y_embedder**", "y_embedder"));
  EXPECT_FALSE(glob_matches("blocks.?.x", "blocks.12.x"));
  EXPECT_FALSE(glob_matches("blocks.*.attn", "blocks.12.attn.qkv"));
  EXPECT_FALSE(glob_matches("", "a"));
  EXPECT_FALSE(glob_matches("a*b", "ab."));
  EXPECT_FALSE(glob_matches("blocks", "final_blocks"));
}

const std::vector<std::string> kNames = {"blocks.0.attn.qkv", "blocks.1.attn.qkv",
                                         "blocks.0.mlp.fc1", "y_embedder.table"};

TEST(GlobTest, AnyOfThePatternsMatches) {
  EXPECT_THAT(match_globs({"blocks.0.*", "y_*"}, kNames, "key"),
              ElementsAre(true, false, true, true));
  EXPECT_THAT(match_globs({}, kNames, "key"), ElementsAre(false, false, false, false));
}

TEST(GlobTest, APatternWithoutAMatchIsRefusedWithNearNames) {
  const std::string message = error_of(
      ErrorKind::kConfig, [] { return match_globs({"blocks.*.attn.qvk"}, kNames, "finetune.x"); });
  EXPECT_THAT(message, HasSubstr("finetune.x: nothing is called \"blocks.*.attn.qvk\""));
  EXPECT_THAT(message, HasSubstr("the most like it are blocks.*.attn.qkv"));
}

TEST(GlobTest, WhatAStarStandsForIsNotCompared) {
  EXPECT_THAT(near_names("y_embeder.*", kNames, 1), ElementsAre("y_embedder.table"));
}

TEST(GlobTest, NearNamesComeOnceWithTheNearestFirst) {
  EXPECT_THAT(near_names("blocks.7.mlp.fc2", kNames, 2),
              ElementsAre("blocks.*.mlp.fc1", "blocks.*.attn.qkv"));
}

}  // namespace glob_test
}  // namespace kinora
