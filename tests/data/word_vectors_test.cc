#include "kinora/data/word_vectors.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/class_folder.h"
#include "kinora/data/moving_shapes.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace word_vectors_test {

using testing::Each;
using testing::HasSubstr;

constexpr TextShape kShape{.length = 8, .channels = 48, .pooled_channels = 48};

Text embedded(std::string_view caption, const TextShape& shape = kShape) {
  Text text;
  embed_words(caption, shape, text);
  return text;
}

std::vector<double> token(const Text& text, int64_t place) {
  const auto first = text.tokens.begin() + static_cast<std::ptrdiff_t>(place * kShape.channels);
  return {first, first + static_cast<std::ptrdiff_t>(kShape.channels)};
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double both = 0.0;
  double of_a = 0.0;
  double of_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    both += a[i] * b[i];
    of_a += a[i] * a[i];
    of_b += b[i] * b[i];
  }
  return both / std::sqrt(of_a * of_b);
}

TEST(WordVectorsTest, SameTextSameVectors) {
  Text text = embedded("three other words");  // other contents before
  embed_words("a red circle", kShape, text);
  EXPECT_EQ(text.tokens, embedded("a red circle").tokens);
  EXPECT_EQ(text.pooled, embedded("a red circle").pooled);
  EXPECT_EQ(text.length, 3);
  EXPECT_EQ(text.tokens, embedded("A_Red, circle!").tokens);
  EXPECT_NE(text.tokens, embedded("a blue circle").tokens);
  EXPECT_NE(text.tokens, embedded("red a circle").tokens);  // the order counts
}

// Vectors are part of what a trained model knows: they must never change. The numbers come from
// Philox and Box-Muller written anew in Python, in double precision.
TEST(WordVectorsTest, VectorsStayAsTheyWere) {
  const Text text = embedded("red");
  EXPECT_NEAR(text.tokens[0], 0.7898187, 1e-5);
  EXPECT_NEAR(text.tokens[47], 1.1630651, 1e-5);
}

TEST(WordVectorsTest, ValuesAreAboutOneAndWordsNearlyAtRightAngles) {
  const TextShape wide{.length = 8, .channels = 4096, .pooled_channels = 0};
  const Text text = embedded("a red circle moving to the left", wide);
  EXPECT_TRUE(text.pooled.empty());
  ASSERT_EQ(text.length, 7);
  for (size_t i = 0; i < 7; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double product = 0.0;
      for (size_t channel = 0; channel < 4096; ++channel) {
        product += text.tokens[i * 4096 + channel] * text.tokens[j * 4096 + channel];
      }
      // 4 standard deviations of the cosine of two random directions
      EXPECT_NEAR(product / 4096.0, i == j ? 1.0 : 0.0, 4.0 / 64.0) << i << " " << j;
    }
  }
}

TEST(WordVectorsTest, AWordIsHalfOfItsTokenWhereverItStands) {
  EXPECT_GT(cosine(token(embedded("left a"), 0), token(embedded("a left"), 1)), 0.2);
  EXPECT_LT(std::abs(cosine(token(embedded("right a"), 0), token(embedded("a left"), 1))), 0.45);
}

TEST(WordVectorsTest, PooledIsTheMeanAndTheRestIsZero) {
  const Text text = embedded("up down");
  const std::vector<double> first = token(text, 0);
  const std::vector<double> second = token(text, 1);
  for (size_t i = 0; i < 48; ++i) {
    EXPECT_NEAR(text.pooled[i], 0.5 * (first[i] + second[i]), 1e-6);
  }
  EXPECT_THAT(std::vector<float>(text.tokens.begin() + 96, text.tokens.end()), Each(0.0F));
}

TEST(WordVectorsTest, CutsLongTextsAndKnowsEmptyOnes) {
  const Text cut = embedded("1 2 3 4 5 6 7 8 9 10");
  EXPECT_EQ(cut.length, 8);
  EXPECT_EQ(cut.tokens, embedded("1 2 3 4 5 6 7 8").tokens);
  const Text none = embedded(" ...");
  EXPECT_EQ(none.length, 0);
  EXPECT_THAT(none.tokens, Each(0.0F));
  EXPECT_THAT(none.pooled, Each(0.0F));
}

TEST(WordVectorSourceTest, GivesCaptionsOrClassNames) {
  const WordVectorSource shapes(std::make_unique<MovingShapeSource>(1, 32, 2, 8.0F, 16, 16), 8, 48);
  EXPECT_EQ(shapes.text_shape(), kShape);
  EXPECT_TRUE(shapes.is_video());
  Sample sample;
  shapes.read(5, sample);
  EXPECT_EQ(sample.text.tokens, embedded(moving_caption(1, 5)).tokens);

  const TemporaryFolder folder;
  folder.write("jumping_jack/1.png", grey_png(1));
  folder.write("---/2.png", grey_png(2));
  const WordVectorSource images(std::make_unique<ClassFolder>(folder.path()), 8, 48);
  Sample image;
  images.read(1, image);
  EXPECT_EQ(image.text.tokens, embedded("jumping jack").tokens);
  EXPECT_EQ(image.text.pooled, embedded("jumping jack").pooled);
  EXPECT_THAT(error_of([&] { images.read(0, image); }), HasSubstr("2.png"));
}

}  // namespace word_vectors_test
}  // namespace kinora::data
