#include "kinora/inference/weighted_texts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/trained_model.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/error_of.h"
#include "tests/places.h"

// The states are Compel's and AUTOMATIC1111's: tools/reference/make_prompt_weight_fixtures.py.

namespace kinora::inference {
namespace weighted_texts_test {

namespace fs = std::filesystem;
using prompts::WeightedText;
using testing::HasSubstr;

const fs::path kData = source_path("tests/inference/data");
const fs::path kAlpha = kData / "pixart_alpha";
constexpr int64_t kLength = 120;

class WeightedTextsTest : public testing::Test {
 protected:
  [[nodiscard]] at::Tensor states(const std::vector<WeightedText>& pieces,
                                  PromptWeights weights) const {
    const at::NoGradGuard no_grad;
    return weighted_states(*encoder_, weighted_tokens(tokenizer_, pieces, kLength),
                           {.weights = weights,
                            .empty = tokenizer_.encode("").ids,
                            .pad_id = tokenizer_.pad_id().value_or(0),
                            .max_length = kLength});
  }
  [[nodiscard]] const tokenizers::Tokenizer& tokenizer() const { return tokenizer_; }

  /// The one text that a prompt becomes.
  static data::Text text(const std::string& prompt, PromptWeights weights) {
    const LoadOptions on_cpu = {.device = DeviceChoice::kCpu, .says = false};
    return prompts_of_pipeline(pipelines::find_pipeline(kAlpha).value(), {prompt},
                               read_recipe(kAlpha, on_cpu), {.says = false, .weights = weights})
        .all.front()
        .text;
  }

 private:
  tokenizers::Tokenizer tokenizer_ = tokenizers::Tokenizer::load(kAlpha / "tokenizer");
  std::unique_ptr<models::TextEncoder> encoder_ =
      pipelines::open_text_encoder(kAlpha / "text_encoder", {});
};

std::vector<std::vector<WeightedText>> recorded(const checkpoint::WeightsFile& file) {
  std::vector<std::vector<WeightedText>> all;
  for (const auto& prompt : nlohmann::json::parse(file.metadata("prompts"))) {
    std::vector<WeightedText>& pieces = all.emplace_back();
    for (const auto& piece : prompt) {
      pieces.push_back({.text = piece[0], .weight = piece[1]});
    }
  }
  return all;
}

TEST_F(WeightedTextsTest, StatesAreThoseOfCompelAndA1111) {
  const auto file = checkpoint::WeightsFile::open(kData / "prompt_weights.safetensors");
  const auto prompts = recorded(file);
  ASSERT_EQ(prompts.size(), 4);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<WeightedText> unweighted = prompts[i];
    for (WeightedText& piece : unweighted) {
      piece.weight = 1.0;
    }
    for (const auto& [name, weights] : {std::pair("compel.", PromptWeights::kCompel),
                                        std::pair("a1111.", PromptWeights::kA1111)}) {
      const at::Tensor expected = file.read(name + std::to_string(i));
      const at::Tensor own = states(prompts[i], weights);
      ASSERT_EQ(own.sizes(), expected.sizes()) << name << i;
      EXPECT_LT(((own - expected).norm() / expected.norm()).item<double>(), 1e-5) << name << i;
      // The weights matter that much.
      EXPECT_GT(((states(unweighted, weights) - expected).norm() / expected.norm()).item<double>(),
                1e-2)
          << name << i;
    }
  }
}

TEST_F(WeightedTextsTest, PromptsAreReadInTheChosenWay) {
  const data::Text plain = text("a red circle", PromptWeights::kOff);
  EXPECT_EQ(text("a red circle", PromptWeights::kA1111).tokens, plain.tokens);
  EXPECT_EQ(text("a red circle", PromptWeights::kCompel).tokens, plain.tokens);
  const data::Text brackets = text("a (red:1.3) circle", PromptWeights::kA1111);
  EXPECT_EQ(brackets.length, plain.length);
  EXPECT_NE(brackets.tokens, plain.tokens);
  const data::Text signs = text("a red++ circle", PromptWeights::kCompel);
  EXPECT_EQ(signs.length, plain.length);
  EXPECT_NE(signs.tokens, plain.tokens);
  EXPECT_NE(text("a (red:1.3) circle", PromptWeights::kOff).length, plain.length);
}

TEST_F(WeightedTextsTest, LongPromptsAreCutBetweenTokens) {
  const WeightedTokens tokens =
      weighted_tokens(tokenizer(), {{"a red circle", 1.0}, {"and a blue cross", 1.5}}, 6);
  ASSERT_EQ(tokens.ids.size(), 6);
  EXPECT_EQ(tokens.ids.back(), tokenizer().encode("").ids.back());
  EXPECT_GT(tokens.num_cut, 0);
  EXPECT_FALSE(tokens.cut.empty());
  EXPECT_LE(tokens.pieces.back().end, 5);
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return weighted_tokens(tokenizer(), {{"a", 1.0}, {"b", 2.0}}, 0);
                       }),
              HasSubstr("no room"));
}

TEST_F(WeightedTextsTest, AMeanOfNothingIsNotRestored) {
  // Weights so far apart that the factor lies beyond its bounds.
  const at::Tensor own = states({{"a red circle", 40.0}, {"a", 1.0}}, PromptWeights::kA1111);
  EXPECT_TRUE(at::isfinite(own).all().item<bool>());
  const at::Tensor plain = states({{"a red circle", 1.0}, {"a", 1.0}}, PromptWeights::kA1111);
  EXPECT_NEAR((own[0] / plain[0]).mean().item<double>(), 40.0, 1e-3);
}

}  // namespace weighted_texts_test
}  // namespace kinora::inference
