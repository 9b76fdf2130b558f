// Captions longer than a CLIP's positions, beside Compel (tools/reference/make_clip_fixtures.py).

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "kinora/inference/conditions.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/families.h"
#include "kinora/tokenizers/pieces.h"
#include "tests/error_of.h"
#include "tests/eval/clip_folder.h"

namespace kinora::inference {
namespace clip_pieces_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

constexpr int64_t kPiece = 77;

class ClipPiecesTest : public testing::Test {
 protected:
  ClipPiecesTest() { eval::write_clip_folder(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] ModelRecipe recipe(const std::string& architecture, int64_t max_length) const {
    ModelRecipe recipe;
    recipe.model.architecture = architecture;
    recipe.model.frames = architecture == "pixart" ? 1 : 2;
    recipe.model.height = 16;
    recipe.model.width = 16;
    recipe.model.text_channels = architecture == "pixart" ? 24 : 6;
    recipe.model.text_tokens = 3 * kPiece;
    recipe.text.encoder = folder_.string();
    recipe.text.precision = Precision::kFp32;
    recipe.text.max_length = max_length;
    recipe.text.clean = ops::Switch::kOff;
    return recipe;
  }
  [[nodiscard]] at::Tensor expected(size_t number) const {
    const io::SafetensorsTensor* const found = file_.find("long." + std::to_string(number));
    EXPECT_NE(found, nullptr) << number;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] std::vector<std::string> captions() const {
    return nlohmann::json::parse(file_.metadata().at("long_prompts"));
  }
  [[nodiscard]] tokenizers::Tokenizer tokenizer() const {
    return tokenizers::Tokenizer::load(folder_);
  }

  fs::path folder_ = fs::temp_directory_path() / ("kinora-pieces-" + std::to_string(::getpid()));
  io::SafetensorsFile file_ =
      io::SafetensorsFile::open(eval::clip_fixture() / "expected.safetensors");
};

// 160 tokens of the last one are 77, 77 and 12 with their own special ones.
TEST_F(ClipPiecesTest, StatesOfLongCaptionsEqualCompels) {
  const std::vector<std::string> all = captions();
  const Prompts prompts = prompts_of_encoder(all, recipe("pixart", 3 * kPiece), at::kCPU);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const at::Tensor want = expected(i);
    const data::Text& text = prompts.all[i].text;
    ASSERT_EQ(text.length, want.size(0));
    const at::Tensor rows =
        at::tensor(text.tokens, at::kFloat).view({3 * kPiece, 24}).narrow(0, 0, text.length);
    EXPECT_LT(((rows - want).norm() / want.norm()).item<double>(), 1e-5);
  }
  EXPECT_EQ(prompts.all[2].text.length, 2 * kPiece + 12);
}

TEST_F(ClipPiecesTest, WithoutMaxLengthTheyAreCutOffAtTheTokenizersLimit) {
  const Prompts prompts = prompts_of_encoder({captions()[2]}, recipe("pixart", 0), at::kCPU);
  EXPECT_EQ(prompts.all[0].text.length, kPiece);
}

TEST_F(ClipPiecesTest, LengthsCountEveryPiecesSpecialTokens) {
  const auto encode = [&, its = tokenizer()](const std::string& text, int64_t most) {
    return tokenizers::encode_in_pieces(its, text, {.max_length = most, .piece = 5});
  };
  const auto whole = tokenizer().encode("a red circle a red circle").ids;
  ASSERT_EQ(whole.size(), 8U);
  const int64_t bos = whole.front();
  const int64_t eos = whole.back();
  EXPECT_THAT(encode("a red circle", 20).ids, ElementsAre(bos, whole[1], whole[2], whole[3], eos));
  EXPECT_THAT(
      encode("a red circle a red circle", 20).ids,
      ElementsAre(bos, whole[1], whole[2], whole[3], eos, bos, whole[4], whole[5], whole[6], eos));
  const tokenizers::Tokens cut = encode("a red circle a red circle", 8);
  EXPECT_THAT(cut.ids, ElementsAre(bos, whole[1], whole[2], whole[3], eos, bos, whole[4], eos));
  EXPECT_EQ(cut.num_cut, 2);
  EXPECT_THAT(cut.cut, HasSubstr("red circle"));
  // No room for a token beside the second piece's special ones.
  EXPECT_EQ(encode("a red circle a red circle", 7).ids.size(), 5U);
  EXPECT_EQ(encode("a red circle a red circle", 5).ids.size(), 5U);
}

TEST_F(ClipPiecesTest, PaddingFillsTheLastPieceUp) {
  const auto encode = [&, its = tokenizer()](const std::string& text, int64_t most,
                                             std::optional<int64_t> piece) {
    return tokenizers::encode_in_pieces(its, text,
                                        {.max_length = most, .piece = piece, .pads = true});
  };
  const auto whole = tokenizer().encode("a red circle a red circle").ids;
  const int64_t bos = whole.front();
  const int64_t eos = whole.back();
  const int64_t pad = tokenizer().pad_id().value();
  EXPECT_THAT(encode("", 10, 5).ids, ElementsAre(bos, eos, pad, pad, pad));
  EXPECT_THAT(encode("a red", 10, 5).ids, ElementsAre(bos, whole[1], whole[2], eos, pad));
  EXPECT_THAT(encode("a red circle", 10, 5).ids,
              ElementsAre(bos, whole[1], whole[2], whole[3], eos));
  EXPECT_THAT(encode("a red circle a", 10, 5).ids,
              ElementsAre(bos, whole[1], whole[2], whole[3], eos, bos, whole[4], eos, pad, pad));
  EXPECT_THAT(encode("a red circle a", 9, 5).ids,
              ElementsAre(bos, whole[1], whole[2], whole[3], eos, bos, whole[4], eos, pad));
  EXPECT_THAT(encode("a", 6, std::nullopt).ids, ElementsAre(bos, whole[1], eos, pad, pad, pad));
  const tokenizers::Tokens cut = encode("a red circle a red circle", 5, 5);
  EXPECT_THAT(cut.ids, ElementsAre(bos, whole[1], whole[2], whole[3], eos));
  EXPECT_EQ(cut.num_cut, 3);
}

TEST_F(ClipPiecesTest, CaptionsOfAUnetArePaddedAndAsTheyAreWritten) {
  ModelRecipe of_clip = recipe("unet", 2 * kPiece);
  of_clip.text.clean = ops::Switch::kAuto;
  const data::CaptionTokens tokens = caption_tokens(of_clip).value();
  EXPECT_TRUE(tokens.pads);
  EXPECT_FALSE(tokens.cleans);
  EXPECT_EQ(data::encode(tokens, "A Red circle").ids.size(), size_t{kPiece});
  EXPECT_EQ(data::encode(tokens, captions()[2]).ids.size(), size_t{2 * kPiece});
  ModelRecipe with_own = recipe("unet", 0);
  with_own.model.text_encoder.width = 24;
  with_own.model.text_encoder.layers = 1;
  with_own.model.text_encoder.heads = 2;
  EXPECT_FALSE(models::pads_captions(with_own.model));
  EXPECT_TRUE(cleans_captions(with_own.model));
  EXPECT_FALSE(caption_tokens(recipe("pixart", 0))->pads);
}

TEST_F(ClipPiecesTest, AModelOfOneVectorATextTakesOnePiece) {
  EXPECT_EQ(caption_tokens(recipe("vdit", 0))->max_length, kPiece);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return caption_tokens(recipe("vdit", 100)); }),
              AllOf(HasSubstr("at most 77"), HasSubstr("got 100")));
}

TEST_F(ClipPiecesTest, TextsOfAnEncoderThatTrainsAreTokensWithinItsLength) {
  models::ModelConfig model = recipe("pixart", 0).model;
  model.text_encoder.width = 24;
  model.text_encoder.layers = 1;
  model.text_encoder.heads = 2;
  model.text_encoder.vocab = 100;
  ASSERT_TRUE(model.text_encoder.any());
  EXPECT_NO_THROW(check_texts({.length = 3 * kPiece}, model));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         check_texts({.length = 3 * kPiece + 1}, model);
                         return 0;
                       }),
              AllOf(HasSubstr("up to 231"), HasSubstr("got 232")));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         check_texts({.length = 8, .channels = 24}, model);
                         return 0;
                       }),
              HasSubstr("got none"));
}

}  // namespace clip_pieces_test
}  // namespace kinora::inference
