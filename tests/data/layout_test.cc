#include "kinora/data/layout.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "kinora/data/caption_tokens.h"
#include "kinora/data/data_config.h"
#include "kinora/data/scenes.h"
#include "kinora/tokenizers/tokenizer_files.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::data {
namespace layout_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& text) {
  return error_of(ErrorKind::kConfig, [&] { return parse_layout(text); });
}

CaptionTokens layout_tokens(int64_t max_length) {
  CaptionTokens tokens;
  tokens.tokenizer = std::make_shared<const tokenizers::Tokenizer>(
      tokenizers::TokenizerFiles::read(source_path("configs/captions/spiece.model")));
  tokens.max_length = max_length;
  tokens.layout_grid = 33;
  return tokens;
}

TEST(LayoutTest, TextsParseBack) {
  const Layout layout = {{.phrase = "a cat", .box = {0.1, 0.25, 0.5, 1.0}},
                         {.phrase = "a \"dog\"", .box = {0.0, 0.0, 1.0, 0.33333}}};
  const Layout again = parse_layout(to_text(layout));
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].phrase, "a cat");
  EXPECT_EQ(again[0].box, layout[0].box);
  EXPECT_EQ(again[1].phrase, "a \"dog\"");
  EXPECT_EQ(again[1].box.bottom, 0.3333);
  EXPECT_EQ(to_text(layout).find('\n'), std::string::npos);
}

// Numbers are those of taming-transformers' ObjectsBoundingBoxConditionalBuilder.
TEST(LayoutTest, BoxTokensAreThoseOfTheirAuthors) {
  const Layout layout = {{.phrase = "Dog", .box = {0.1, 0.25, 0.5, 0.9}},
                         {.phrase = "Tree", .box = {0.5, 0.0, 1.0, 0.5}}};
  const BoxTokens rules{.classes = {"Tree", "Person", "Dog"}, .vocabulary = 200, .places = 11};
  EXPECT_THAT(box_tokens(layout, rules), ElementsAre(2, 43, 174, 0, 6, 97, 199, 199, 199, 0, 195));
  EXPECT_THAT(
      box_tokens({{.phrase = "198", .box = {}}}, {.classes = {}, .vocabulary = 200, .places = 5}),
      ElementsAre(198, 0, 195, 0, 195));
  const auto refused = [&rules](const Layout& its) {
    return error_of(ErrorKind::kConfig, [&] { return box_tokens(its, rules); });
  };
  EXPECT_THAT(refused({{.phrase = "199", .box = {}}}),
              HasSubstr("one of 3 classes or a number from 0 to 198, got \"199\""));
  EXPECT_THAT(refused(Layout(4, layout.front())), HasSubstr("reads 3 objects at most, got 4"));
}

TEST(LayoutTest, BoxesOutsideOfThePictureAreNamed) {
  for (const char* box : {"[-0.1,0.2,0.5,0.9]", "[0.1,0.2,1.5,0.9]", "[0.5,0.2,0.5,0.9]",
                          "[0.1,0.9,0.5,0.2]", "[10,20,50,90]"}) {
    EXPECT_THAT(refusal(R"([{"phrase": "a cat", "box": )" + std::string(box) + "}]"),
                AllOf(HasSubstr("\"a cat\" must lie in the picture"), HasSubstr(box)))
        << box;
  }
  EXPECT_THAT(refusal("a red circle"), HasSubstr("\"a red circle\""));
  EXPECT_THAT(refusal("[]"), HasSubstr("an object or more"));
  EXPECT_THAT(refusal(R"([{"box": [0, 0, 1, 1]}])"), HasSubstr("must have a phrase"));
  EXPECT_THAT(refusal(R"([{"phrase": "a cat"}])"), HasSubstr("got none"));
  EXPECT_THAT(refusal(R"([{"phrase": "a cat", "box": [0, 0, "1", 1]}])"), HasSubstr("\"1\""));
  EXPECT_THAT(refusal(R"([{"phrase": "a cat", "box": [0, 0, 1, 1], "class": 3}])"),
              HasSubstr("got \"class\""));
}

TEST(LayoutTest, OverlapIsOfAreas) {
  const Box box{0.2, 0.2, 0.6, 0.6};
  EXPECT_DOUBLE_EQ(intersection_over_union(box, box), 1.0);
  EXPECT_NEAR(intersection_over_union(box, {0.4, 0.2, 0.8, 0.6}), 1.0 / 3.0, 1e-12);
  EXPECT_EQ(intersection_over_union(box, {0.6, 0.2, 0.8, 0.6}), 0.0);
}

TEST(LayoutTest, ObjectsBecomeTheirPhraseAndTwoCorners) {
  const CaptionTokens tokens = layout_tokens(12);
  const int64_t vocab = tokens.tokenizer->vocab_size();
  const auto phrase = tokens.tokenizer->encode("small red circle", {.special_tokens = false}).ids;
  const auto ids = encode(tokens, R"([{"phrase": "small red circle", "box": [0, 0.5, 1, 1]}])").ids;
  ASSERT_EQ(ids.size(), phrase.size() + 2);
  EXPECT_TRUE(std::equal(phrase.begin(), phrase.end(), ids.begin()));
  // On 33 points a side: (0, 16) and (32, 32).
  EXPECT_EQ(ids[phrase.size()], vocab + 16 * 33);
  EXPECT_EQ(ids[phrase.size() + 1], vocab + 33 * 33 - 1);
  const Layout many(4, {.phrase = "small red circle", .box = {}});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return encode(tokens, to_text(many)); }),
              HasSubstr("must have 12 tokens at most"));
}

TEST(LayoutTest, ScenesSayWhereTheirObjectsLie) {
  DataConfig config;
  config.source = SourceKind::kScenes;
  config.text = TextKind::kTokens;
  config.layout_grid = 33;
  config.count = 300;
  const CaptionTokens tokens = layout_tokens(24);
  const auto source = open_source(config, &tokens);
  Sample sample;
  for (int64_t i = 0; i < 60; ++i) {
    source->read(i, sample);
    const Layout layout = parse_layout(sample.caption);
    const Scene shown = scene(0, i);
    ASSERT_EQ(std::ssize(layout), 1 + i % 3);
    for (size_t object = 0; object < layout.size(); ++object) {
      EXPECT_EQ(kind_of(layout[object].phrase), shown.content.objects[object]);
      EXPECT_NEAR(0.5 * (layout[object].box.left + layout[object].box.right),
                  shown.places[object].x, 1e-3);
    }
    EXPECT_EQ(std::ssize(sample.text.ids), 24);
    EXPECT_EQ(sample.text.length % std::ssize(layout), 0);
  }
}

TEST(LayoutTest, BoxesOfScenesAreThoseOfTheirPixels) {
  constexpr int64_t kSide = 128;
  for (int64_t i = 0; i < 24; i += 3) {  // of one object
    const Scene shown = scene(7, i);
    io::Image image;
    render(shown, kSide, image);
    Box seen{1.0, 1.0, 0.0, 0.0};
    for (int64_t row = 0; row < kSide; ++row) {
      for (int64_t column = 0; column < kSide; ++column) {
        const uint8_t* pixel = image.pixels.data() + (row * kSide + column) * 3;
        if (std::max({pixel[0], pixel[1], pixel[2]}) > 128) {
          const auto x = static_cast<double>(column) / kSide;
          const auto y = static_cast<double>(row) / kSide;
          seen = {std::min(seen.left, x), std::min(seen.top, y),
                  std::max(seen.right, x + 1.0 / kSide), std::max(seen.bottom, y + 1.0 / kSide)};
        }
      }
    }
    const Box said = layout_of(shown)[0].box;
    for (const auto side : {&Box::left, &Box::top, &Box::right, &Box::bottom}) {
      EXPECT_NEAR(said.*side, seen.*side, 2.5 / kSide) << i;  // vertices are blurred
    }
  }
}

TEST(LayoutTest, NamesOfKindsParseBack) {
  const ObjectKind kind{ObjectSize::kLarge, Colour::kBlue, Shape::kCross};
  EXPECT_EQ(name_of(kind), "large blue cross");
  EXPECT_EQ(kind_of("large blue cross"), kind);
  EXPECT_EQ(kind_of("blue cross"), std::nullopt);
}

}  // namespace layout_test
}  // namespace kinora::data
