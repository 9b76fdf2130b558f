#include "kinora/models/autoencoders/video_dc_ae.h"

#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"

namespace kinora::models {
namespace video_dc_ae_test {

/// Of the fixture.
VideoDcAeConfig small() {
  return {.latent_channels = 4,
          .widths = {4, 8, 8},
          .encoder_depths = {1, 1, 1},
          .decoder_depths = {1, 1, 1},
          .first_attention_stage = 1,
          .attention_dim = 4,
          .temporal = {false, true, false}};
}

TEST(VideoDcAeTest, EqualsTheReferenceAndItsGradients) {
  const Fixture fixture("dc_ae_video.safetensors");
  VideoDcAe model(small());
  expect_case(fixture, "encode", model, {2, 3, 4, 8, 12});
  expect_case(fixture, "decode", model, {1, 4, 2, 3, 2});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 8, 12});
  expect_image(fixture, "decode_image", model, {1, 4, 1, 2, 3});
}

TEST(VideoDcAeTest, PiecesAreTheWhole) {
  VideoDcAe model(small());
  for (const int64_t frames : {1, 2, 3}) {
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                              {1, 4, frames, 5, 2});
  }
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                            {2, 3, 6, 20, 8});
}

TEST(VideoDcAeTest, FramesThatDoNotFitAreNamed) {
  VideoDcAe model(small());
  EXPECT_EQ(latent_frames(model.space(), 1), 1);
  EXPECT_EQ(latent_frames(model.space(), 4), 2);
  // Two frames become one, which is an image.
  EXPECT_NE(error_of(ErrorKind::kShape,
                     [&] {
                       (void)model.encode(formula_values("x", {1, 3, 2, 8, 8})).mean;
                     })
                .find("clips of 2 frames do not become whole latent frames. Hint: 1 or 4 frames"),
            std::string::npos);
  VideoDcAeConfig config = small();
  config.attention_dim = 3;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { VideoDcAe odd(config); })
                .find("heads of 3 channels must divide 8"),
            std::string::npos);
}

}  // namespace video_dc_ae_test
}  // namespace kinora::models
