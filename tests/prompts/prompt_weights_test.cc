#include "kinora/prompts/prompt_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <utility>

#include "tests/error_of.h"
#include "tests/prompts/records.h"

namespace kinora::prompts {
namespace prompt_weights_test {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(PromptWeightsTest, BracketsAreThoseOfDiffusers) {
  const nlohmann::json all = records("brackets");
  ASSERT_GE(all.size(), 20U);
  for (const nlohmann::json& record : all) {
    const auto prompt = record.at(0).get<std::string>();
    const std::vector<WeightedText> got = parse_weights(prompt, WeightSyntax::kBrackets);
    ASSERT_EQ(got.size(), record.at(1).size()) << prompt;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].text, record.at(1).at(i).at(0).get<std::string>()) << prompt;
      EXPECT_DOUBLE_EQ(got[i].weight, record.at(1).at(i).at(1).get<double>()) << prompt;
    }
  }
}

/// Characters but spaces, each with its weight: Compel sets spaces anew.
std::vector<std::pair<char, double>> characters(const std::string& text, double weight) {
  std::vector<std::pair<char, double>> all;
  for (const char c : text) {
    if (c != ' ') {
      all.emplace_back(c, weight);
    }
  }
  return all;
}

TEST(PromptWeightsTest, SignsAreThoseOfCompel) {
  const nlohmann::json all = records("signs");
  ASSERT_GE(all.size(), 20U);
  for (const nlohmann::json& record : all) {
    const auto prompt = record.at(0).get<std::string>();
    std::vector<std::pair<char, double>> got;
    for (const WeightedText& piece : parse_weights(prompt, WeightSyntax::kSigns)) {
      const auto more = characters(piece.text, piece.weight);
      got.insert(got.end(), more.begin(), more.end());
    }
    std::vector<std::pair<char, double>> expected;
    for (const nlohmann::json& piece : record.at(1)) {
      const auto more = characters(piece.at(0).get<std::string>(), piece.at(1).get<double>());
      expected.insert(expected.end(), more.begin(), more.end());
    }
    ASSERT_EQ(got.size(), expected.size()) << prompt;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].first, expected[i].first) << prompt << " at " << i;
      EXPECT_NEAR(got[i].second, expected[i].second, 1e-12) << prompt << " at " << i;
    }
  }
}

TEST(PromptWeightsTest, SpacesOfSignsStay) {
  EXPECT_THAT(parse_weights("a (red ball)+ on grass, b-.", WeightSyntax::kSigns),
              ElementsAre(WeightedText{"a ", 1.0}, WeightedText{"red ball", 1.1},
                          WeightedText{" on grass, ", 1.0}, WeightedText{"b", 0.9},
                          WeightedText{".", 1.0}));
  EXPECT_THAT(
      parse_weights("(a)0.5.7 (b).5", WeightSyntax::kSigns),
      ElementsAre(WeightedText{"a", 0.5}, WeightedText{".7 ", 1.0}, WeightedText{"b", 0.5}));
}

TEST(PromptWeightsTest, WithoutSyntaxAllIsText) {
  EXPECT_THAT(parse_weights("(a:1.3) b++", WeightSyntax::kNone),
              ElementsAre(WeightedText{"(a:1.3) b++", 1.0}));
}

TEST(PromptWeightsTest, WhatCannotBeReadIsNamed) {
  const auto refusal = [](const std::string& prompt, WeightSyntax syntax) {
    return error_of(ErrorKind::kConfig, [&] { return parse_weights(prompt, syntax); });
  };
  EXPECT_THAT(refusal("(a:1.2.3)", WeightSyntax::kBrackets),
              HasSubstr("a weight must be a number, got \"1.2.3\""));
  EXPECT_THAT(refusal("(a:.)", WeightSyntax::kBrackets), HasSubstr("got \".\""));
  for (const auto& [open, syntax] :
       {std::pair("(", WeightSyntax::kBrackets), std::pair("[", WeightSyntax::kBrackets)}) {
    std::string deep;
    for (int i = 0; i <= kMostBracketDepth; ++i) {
      deep += open;
    }
    EXPECT_THAT(refusal(deep, syntax), HasSubstr("at most 64 deep"));
  }
  const std::string nested = std::string(100000, '(') + std::string(100000, ')');
  EXPECT_THAT(refusal(nested, WeightSyntax::kSigns), HasSubstr("at most 64 deep"));
  EXPECT_THAT(refusal(std::string(kMostPromptBytes + 1, 'a'), WeightSyntax::kBrackets),
              HasSubstr("at most 1 MiB long"));
}

}  // namespace prompt_weights_test
}  // namespace kinora::prompts
