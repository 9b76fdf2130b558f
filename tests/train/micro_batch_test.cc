#include "kinora/train/micro_batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kinora/inference/conditions.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace micro_batch_test {

using testing::HasSubstr;

/// Takes texts of up to 5 tokens of 8 numbers, or pooled vectors of 8 numbers.
models::ModelConfig text_model(const std::string& architecture) {
  models::ModelConfig model;
  model.name = "tiny";
  model.architecture = architecture;
  model.text_channels = 8;
  model.text_tokens = 5;
  model.compression = 8;
  model.frame_compression = 4;
  return model;
}

/// Of 3 latents of 4 channels with all that a source may have.
data::Batch batch_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> sizes = {3, 4};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return {.images = at::ones(sizes),
          .labels = at::arange(3, at::kLong),
          .sample_index = at::arange(10, 13, at::kLong),
          .fps = at::full({3}, 24.0),
          .text = at::ones({3, 5, 8}),
          .text_lengths = at::arange(1, 4, at::kLong),
          .pooled = at::full({3, 8}, 2.0)};
}

bool is_all(const at::Tensor& values, double value) {
  return values.dim() == 1 && values.size(0) == 3 &&
         (values == at::full({3}, value)).all().item<bool>();
}

TEST(MicroBatchTest, ClipSizeIsOfTheLastDims) {
  const inference::ClipSize image = inference::clip_size(at::zeros({2, 3, 4, 6}));
  EXPECT_EQ(image.frames, 1);
  EXPECT_EQ(image.height, 4);
  EXPECT_EQ(image.width, 6);
  const inference::ClipSize clip = inference::clip_size(at::zeros({2, 3, 5, 4, 6}));
  EXPECT_EQ(clip.frames, 5);
  EXPECT_EQ(clip.height, 4);
  EXPECT_EQ(clip.width, 6);
}

TEST(MicroBatchTest, AModelOfClassesGetsLabelsAlone) {
  const data::Batch batch = batch_of({2, 6});
  const MicroBatch got = micro_batch_of(batch, text_model("dit"));
  EXPECT_TRUE(got.images.is_same(batch.images));
  EXPECT_TRUE(got.sample_index.is_same(batch.sample_index));
  for (const auto& [name, tensor] : diffusion::kConditions) {
    EXPECT_EQ((got.conditions.*tensor).defined(), std::string(name) == "labels") << name;
  }
}

TEST(MicroBatchTest, AModelOfTextsGetsThemAndTheSizeInPixels) {
  const data::Batch batch = batch_of({3, 2, 6});
  const diffusion::Conditions got = micro_batch_of(batch, text_model("stdit2")).conditions;
  EXPECT_TRUE(got.text.is_same(batch.text));
  EXPECT_TRUE(got.text_lengths.is_same(batch.text_lengths));
  EXPECT_FALSE(got.labels.defined());
  EXPECT_FALSE(got.pooled.defined());
  EXPECT_TRUE(is_all(got.fps, 24.0));
  EXPECT_TRUE(is_all(got.height, 2 * 8));
  EXPECT_TRUE(is_all(got.width, 6 * 8));
  EXPECT_TRUE(is_all(got.num_frames, 3 * 4));
  // Which does not read their number.
  EXPECT_FALSE(micro_batch_of(batch, text_model("stdit3")).conditions.num_frames.defined());
}

TEST(MicroBatchTest, ImagesOfAModelOfClipsAreOneFrame) {
  const diffusion::Conditions got =
      micro_batch_of(batch_of({2, 6}), text_model("stdit2")).conditions;
  EXPECT_TRUE(is_all(got.fps, inference::kImageFps));
  EXPECT_TRUE(is_all(got.num_frames, 1));
}

TEST(MicroBatchTest, SomeModelsTakeTheVectorOfAText) {
  for (const char* architecture : {"vdit", "latte"}) {
    const data::Batch batch = batch_of({3, 2, 6});
    const diffusion::Conditions got = micro_batch_of(batch, text_model(architecture)).conditions;
    EXPECT_TRUE(got.pooled.is_same(batch.pooled));
    EXPECT_FALSE(got.text.defined());
    EXPECT_FALSE(got.text_lengths.defined());
  }
}

TEST(MicroBatchTest, TextsThatAModelCannotTakeAreRefused) {
  const auto refusal = [](const data::TextShape& texts, const std::string& architecture) {
    return error_of(ErrorKind::kConfig, [&] {
      inference::check_texts(texts, text_model(architecture));
      return 0;
    });
  };
  EXPECT_EQ(refusal({}, "dit"), "no error");
  EXPECT_EQ(refusal({.length = 5, .channels = 8}, "pixart"), "no error");
  EXPECT_EQ(refusal({.length = 9, .channels = 5, .pooled_channels = 8}, "latte"), "no error");
  EXPECT_THAT(refusal({}, "pixart"), HasSubstr("the data has none. Hint"));
  EXPECT_THAT(refusal({.length = 5, .channels = 8}, "vdit"),
              HasSubstr("the data has none with a pooled vector"));
  EXPECT_THAT(refusal({.length = 5, .channels = 7}, "stdit"),
              HasSubstr("vectors of 7 numbers, but model.text_channels is 8"));
  EXPECT_THAT(refusal({.length = 6, .channels = 8}, "stdit"),
              HasSubstr("up to 6 tokens, but model.text_tokens is 5"));
}

TEST(MicroBatchTest, UnseenSamplesHaveTheShapeAndNoMemory) {
  models::ModelConfig model = text_model("stdit");
  model.in_channels = 4;
  model.frames = 3;
  model.height = 2;
  model.width = 6;
  const at::Tensor samples = inference::unseen_samples(model, 7);
  EXPECT_EQ(samples.sizes(), (at::IntArrayRef{7, 4, 3, 2, 6}));
  EXPECT_EQ(samples.storage().nbytes(), sizeof(float));
}

TEST(MicroBatchTest, PartsAndCopiesHaveAllThatIsThere) {
  const MicroBatch whole = micro_batch_of(batch_of({3, 2, 6}), text_model("stdit3"));
  const MicroBatch part = narrow(whole, 1, 2);
  EXPECT_TRUE(part.sample_index.equal(at::arange(11, 13, at::kLong)));
  EXPECT_TRUE(part.conditions.text_lengths.equal(at::arange(2, 4, at::kLong)));
  EXPECT_EQ(part.conditions.height.size(0), 2);
  EXPECT_FALSE(part.conditions.labels.defined());

  const MicroBatch room = empty_like(whole, at::kCPU);
  EXPECT_TRUE(same_shapes(room, whole));
  EXPECT_FALSE(same_shapes(room, part));
  MicroBatch other = whole;
  other.conditions.text = whole.conditions.text.to(at::kHalf);
  EXPECT_FALSE(same_shapes(room, other)) << "another type";
  other.conditions.text.reset();
  EXPECT_FALSE(same_shapes(room, other)) << "without texts";
  copy(whole, room);
  EXPECT_TRUE(room.images.equal(whole.images));
  for (const auto& [name, tensor] : diffusion::kConditions) {
    const at::Tensor& want = whole.conditions.*tensor;
    const at::Tensor& got = room.conditions.*tensor;
    EXPECT_TRUE(want.defined() ? got.equal(want) : !got.defined()) << name;
  }
  const diffusion::Conditions same_device = inference::to_device(whole.conditions, at::kCPU);
  EXPECT_TRUE(same_device.text.is_same(whole.conditions.text));
}

TEST(MicroBatchTest, DroppedConditionsAreTheNullOnes) {
  const at::Tensor dropped = at::arange(3) == 1;
  diffusion::Conditions classes{.labels = at::arange(5, 8, at::kLong)};
  inference::drop_conditions(classes, dropped, /*null_class=*/9);
  EXPECT_TRUE(classes.labels.equal(at::arange(5, 8, at::kLong) + dropped * 3));  // 5, 9, 7
  diffusion::Conditions texts{.text = at::ones({3, 5, 8})};
  inference::drop_conditions(texts, dropped, 9);
  EXPECT_TRUE(texts.null_text.is_same(dropped));
  EXPECT_TRUE(texts.text.equal(at::ones({3, 5, 8})));

  const at::Tensor all = at::ones({3}, at::kBool);
  EXPECT_TRUE(inference::null_of(classes, 9).labels.equal(at::full({3}, 9, at::kLong)));
  for (const diffusion::Conditions& given :
       {texts, diffusion::Conditions{.pooled = at::ones({3, 8})}}) {
    const diffusion::Conditions null = inference::null_of(given, 9);
    EXPECT_TRUE(null.null_text.equal(all));
    EXPECT_FALSE(null.labels.defined());
  }
}

}  // namespace micro_batch_test
}  // namespace kinora::train
