#include "kinora/inference/shown_beside.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "kinora/data/normalise.h"
#include "kinora/inference/conditions.h"
#include "kinora/ops/random.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::inference {
namespace shown_beside_test {

using models::ShownInput;

/// Two pictures of 8 x 12 pixels with masks in greys, and pictures before them.
data::Batch pictures() {
  const auto values = [](std::vector<int64_t> shape, uint64_t seed) {
    return (ops::random_uniform(shape, at::arange(0, 2, at::kLong), seed, 0, RandomPurpose::kTest,
                                at::kCPU) *
            256.0)
        .to(at::kByte);
  };
  return {.images = values({2, 3, 8, 12}, 1),
          .before = values({2, 3, 8, 12}, 2),
          .mask = values({2, 1, 8, 12}, 3)};
}

TEST(ShownBesideTest, MasksStandBeforeTheLatentsOfWhatTheyLeave) {
  PatchAutoencoder autoencoder;
  const pipelines::LatentEncoder encoder(autoencoder, at::kCPU, 2);
  const data::Batch batch = pictures();
  const at::Tensor shown = shown_beside(batch, ShownInput::kInpaint, &encoder, at::kCPU);
  ASSERT_EQ(shown.sizes(), (at::IntArrayRef{2, 4, 2, 3}));
  const at::Tensor white = (batch.mask >= 128).to(at::kFloat);
  EXPECT_TRUE(at::equal(shown.select(1, 0), white.squeeze(1)
                                                .slice(1, 0, 8, PatchAutoencoder::kPatch)
                                                .slice(2, 0, 12, PatchAutoencoder::kPatch)));
  const at::Tensor left = data::to_float(batch.images, at::kCPU) * (1.0 - white);  // grey is 0
  EXPECT_TRUE(at::equal(shown.slice(1, 1), autoencoder.encode(left).mean));
}

// Flux Fill's: the order is that of FluxFillPipeline.prepare_mask_latents.
TEST(ShownBesideTest, PixelsOfMasksStandBehindTheLatentsOfWhatTheyLeave) {
  PatchAutoencoder autoencoder;
  const pipelines::LatentEncoder encoder(autoencoder, at::kCPU, 2);
  const data::Batch batch = pictures();
  const at::Tensor shown = shown_beside(batch, ShownInput::kFill, &encoder, at::kCPU);
  constexpr int64_t kSide = PatchAutoencoder::kPatch;
  ASSERT_EQ(shown.sizes(), (at::IntArrayRef{2, 3 + kSide * kSide, 2, 3}));
  const at::Tensor white = (batch.mask >= 128).to(at::kFloat);
  const at::Tensor left = data::to_float(batch.images, at::kCPU) * (1.0 - white);
  EXPECT_TRUE(at::equal(shown.slice(1, 0, 3), autoencoder.encode(left).mean));
  for (int64_t row = 0; row < kSide; ++row) {
    for (int64_t column = 0; column < kSide; ++column) {
      EXPECT_TRUE(at::equal(shown.select(1, 3 + row * kSide + column),
                            white.squeeze(1).slice(1, row, 8, kSide).slice(2, column, 12, kSide)));
    }
  }
}

TEST(ShownBesideTest, APictureToChangeIsShownAsTheAutoencoderHasIt) {
  PatchAutoencoder autoencoder;
  const pipelines::LatentEncoder encoder(autoencoder, at::kCPU, 2);
  const data::Batch batch = pictures();
  const at::Tensor before = data::to_float(batch.before, at::kCPU);
  const at::Tensor scaled = autoencoder.encode(before).mean;
  EXPECT_TRUE(at::equal(shown_beside(batch, ShownInput::kEdit, &encoder, at::kCPU),
                        scaled / autoencoder.space().scale.front()));
  EXPECT_TRUE(at::equal(shown_beside(batch, ShownInput::kReference, &encoder, at::kCPU), scaled));
  data::Batch latents = batch;  // of a cache
  latents.before = scaled;
  EXPECT_TRUE(at::equal(shown_beside(latents, ShownInput::kEdit, &encoder, at::kCPU),
                        scaled / autoencoder.space().scale.front()));
  EXPECT_TRUE(at::equal(shown_beside(latents, ShownInput::kReference, &encoder, at::kCPU), scaled));
  EXPECT_TRUE(at::equal(shown_beside(batch, ShownInput::kEdit, nullptr, at::kCPU), before));
  EXPECT_FALSE(shown_beside(batch, ShownInput::kPlain, &encoder, at::kCPU).defined());
}

TEST(ShownBesideTest, ReferencesAreShownOneByOneAndZerosBehindThem) {
  PatchAutoencoder autoencoder;
  const pipelines::LatentEncoder encoder(autoencoder, at::kCPU, 2);
  data::Batch batch = pictures();
  const at::Tensor both = at::stack({batch.images, batch.before}, 2);  // [2, 3, 2, 8, 12]
  batch.references = both;
  batch.num_references = at::tensor({2, 1}, at::kLong);
  const auto latents = [&](const at::Tensor& pixels) {
    return autoencoder.encode(data::to_float(pixels, at::kCPU)).mean;
  };
  const at::Tensor shown = shown_beside(batch, ShownInput::kSubjects, &encoder, at::kCPU);
  ASSERT_EQ(shown.sizes(), (at::IntArrayRef{2, 3, 2, 2, 3}));
  EXPECT_TRUE(at::equal(shown.select(2, 0), latents(batch.images)));
  EXPECT_TRUE(at::equal(shown[0].select(1, 1), latents(batch.before)[0]));
  EXPECT_TRUE((shown[1].select(1, 1) == 0.0).all().item<bool>());
  const at::Tensor pixels = shown_beside(batch, ShownInput::kSubjects, nullptr, at::kCPU);
  EXPECT_TRUE(at::equal(pixels[0], data::to_float(both, at::kCPU)[0]));
  EXPECT_TRUE((pixels[1].select(1, 1) == 0.0).all().item<bool>());
}

// As diffusers' train_instruct_pix2pix.py: of a rate of 0.1 each 5 % lose the caption, the picture
// and both.
TEST(ShownBesideTest, PicturesAreDroppedWithHalfOfTheCaptionsAndWithAsManyOthers) {
  constexpr int64_t kSamples = 200;
  const at::Tensor draws = (at::arange(0, kSamples, at::kFloat) + 0.5) / kSamples;
  diffusion::Conditions conditions;
  conditions.text = at::ones({kSamples, 1, 1});
  conditions.beside = at::ones({kSamples, 4, 1, 2});
  drop_conditions(conditions, draws < 0.1, 0);
  drop_pictures(conditions, draws, 0.1);
  const at::Tensor no_picture = conditions.beside.flatten(1).sum(1) == 0.0;
  const at::Tensor& no_text = conditions.null_text;
  const auto share = [](const at::Tensor& which) { return which.sum().item<int64_t>(); };
  EXPECT_EQ(share(no_text.logical_and(no_picture)), 10);
  EXPECT_EQ(share(no_text.logical_and(no_picture.logical_not())), 10);
  EXPECT_EQ(share(no_text.logical_not().logical_and(no_picture)), 10);
  EXPECT_EQ(share((conditions.beside == 1.0).all(3).all(2).all(1)), kSamples - 20);
}

}  // namespace shown_beside_test
}  // namespace kinora::inference
