#include "kinora/inference/prompts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/moving_shapes.h"
#include "kinora/tokenizers/tokenizer.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::inference {
namespace prompts_test {

using testing::HasSubstr;

constexpr data::TextShape kShape = {.length = 16};

data::CaptionTokens shipped() {
  return {.tokenizer = std::make_shared<const tokenizers::Tokenizer>(
              tokenizers::Tokenizer::load(source_path("configs/captions/spiece.model"))),
          .max_length = kShape.length};
}

/// Generated clips with the tokens of their captions; sample 1 cannot be read.
class BrokenSource : public data::WrappedSource {
 public:
  BrokenSource()
      : WrappedSource(std::make_unique<data::TokenSource>(
            std::make_unique<data::MovingShapeSource>(5, 4, 2, 8.0F, 16, 16), shipped())) {}
  void read(int64_t index, data::Sample& out) const override {
    KINORA_CHECK(index != 1, kIo, "[test] sample 1 is broken");
    WrappedSource::read(index, out);
  }
};

models::ModelConfig model_of(const std::string& architecture) {
  models::ModelConfig model;
  model.architecture = architecture;
  model.frames = architecture == "pixart" ? 1 : 2;
  model.height = 16;
  model.width = 24;
  model.text_tokens = kShape.length;
  model.text_encoder.layers = 1;
  return model;
}

TEST(PromptsTest, OfDataAreTheFirstThatCanBeRead) {
  const Prompts prompts = prompts_of_data(BrokenSource(), 2);
  ASSERT_EQ(prompts.all.size(), 2U);
  EXPECT_EQ(prompts.shape, kShape);
  EXPECT_EQ(prompts.all[0].label, 0);
  EXPECT_EQ(prompts.all[1].label, 2);
  EXPECT_EQ(prompts.all[1].caption, data::moving_caption(5, 2));
  EXPECT_EQ(prompts_of_data(BrokenSource(), 100).all.size(), 3U);
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [] { return prompts_of_data(data::MovingShapeSource(5, 4, 2, 8.0F, 16, 16), 2); }),
      HasSubstr("no texts"));
}

TEST(PromptsTest, OfCaptionsAreThoseOfDataWithTheSameCaption) {
  const Prompts data = prompts_of_data(BrokenSource(), 1);
  const Prompts captions = prompts_of_tokens({data.all[0].caption}, shipped());
  EXPECT_EQ(captions.all[0].text.ids, data.all[0].text.ids);
  EXPECT_EQ(captions.all[0].text.length, data.all[0].text.length);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return prompts_of_tokens({}, shipped()); }),
              HasSubstr("at least one"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return prompts_of_captions({"a"}, {}); }),
              HasSubstr("captions need a text encoder"));
}

TEST(PromptsTest, TakeTurnsAsConditions) {
  const Prompts prompts = prompts_of_tokens({"red circle", "blue", "a cross moving up"}, shipped());
  const auto conditions = conditions_of_prompts(prompts, model_of("stdit2"), 12.0, at::kCPU);
  const pipelines::DrawConditions got = conditions(2, 3);
  EXPECT_EQ(got.conditions.tokens.sizes(), (at::IntArrayRef{3, 16}));
  const int64_t lengths[] = {5, 3, 2};  // one that ends the text
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.conditions.text_lengths[i].item<int64_t>(), lengths[i]);
    EXPECT_EQ(got.conditions.fps[i].item<float>(), 12.0F);
    EXPECT_EQ(got.conditions.height[i].item<float>(), 16.0F);
    EXPECT_EQ(got.conditions.width[i].item<float>(), 24.0F);
    EXPECT_EQ(got.conditions.num_frames[i].item<float>(), 2.0F);
    EXPECT_TRUE(got.null.null_text[i].item<bool>());
  }
  EXPECT_TRUE(at::equal(got.conditions.tokens[1], conditions(0, 1).conditions.tokens[0]));
  EXPECT_FALSE(got.conditions.text.defined());
  EXPECT_FALSE(got.conditions.pooled.defined());
  EXPECT_FALSE(got.conditions.null_text.defined());
}

TEST(PromptsTest, EveryFamilyOfCaptionsReadsTokens) {
  const Prompts prompts = prompts_of_tokens({"red circle"}, shipped());
  const auto clips = conditions_of_prompts(prompts, model_of("latte"), 8.0, at::kCPU)(0, 2);
  EXPECT_EQ(clips.conditions.tokens.sizes(), (at::IntArrayRef{2, 16}));
  EXPECT_FALSE(clips.conditions.pooled.defined());
  const auto image = conditions_of_prompts(prompts, model_of("pixart"), 8.0, at::kCPU)(0, 2);
  EXPECT_FALSE(image.conditions.fps.defined());
  EXPECT_TRUE(image.conditions.tokens.defined());
}

// As Open-Sora 1.1 to 1.3 train on images.
TEST(PromptsTest, ImagesAreClipsOfOneFrameAt120ASecond) {
  const Prompts prompts = prompts_of_tokens({"red circle"}, shipped());
  models::ModelConfig model = model_of("stdit2");
  model.frames = 1;
  model.frame_compression = 4;
  const auto got = conditions_of_prompts(prompts, model, 8.0, at::kCPU)(0, 2).conditions;
  EXPECT_TRUE((got.fps == 120.0).all().item<bool>());
  EXPECT_TRUE((got.num_frames == 1.0).all().item<bool>());
  EXPECT_EQ(got.fps.sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(got.fps.scalar_type(), at::kFloat);
}

}  // namespace prompts_test
}  // namespace kinora::inference
