#include "kinora/data/caption_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "kinora/core/text.h"
#include "kinora/data/data_config.h"
#include "kinora/data/loader.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace caption_choice_test {

using testing::HasSubstr;
using testing::SizeIs;

constexpr const char* kThree = "a cat\n\n  a small cat \na small cat on a mat\n";

RandomStream stream(uint64_t position) {
  return {.seed = 5, .sample = position, .step = 1, .purpose = RandomPurpose::kAugment};
}

/// How often each caption comes in many samples.
std::map<std::string, int> counts(const std::string& caption, const CaptionChoice& choice,
                                  uint64_t samples = 6000) {
  std::map<std::string, int> result;
  for (uint64_t i = 0; i < samples; ++i) {
    ++result[chosen_caption(caption, choice, stream(i))];
  }
  return result;
}

TEST(CaptionChoiceTest, LinesAreDrawnByTheirWeights) {
  const auto equal = counts(kThree, {.lines = CaptionLines::kRandom, .weights = {}});
  ASSERT_THAT(equal, SizeIs(3));
  for (const auto& [caption, count] : equal) {
    EXPECT_NEAR(count, 2000, 200) << caption;
  }
  const auto weighted = counts(kThree, {.lines = CaptionLines::kRandom, .weights = {1, 3}});
  ASSERT_THAT(weighted, SizeIs(2));
  EXPECT_NEAR(weighted.at("a cat"), 1500, 180);
  EXPECT_NEAR(weighted.at("a small cat"), 4500, 180);
  EXPECT_THAT(counts("one", {.lines = CaptionLines::kRandom, .weights = {1, 3}}), SizeIs(1));
}

TEST(CaptionChoiceTest, WithoutDrawsTheFirstLineStands) {
  EXPECT_EQ(chosen_caption(
                kThree, {.lines = CaptionLines::kRandom, .weights = {}, .shuffles_tags = true}, {}),
            "a cat");
  EXPECT_EQ(chosen_caption(kThree, {.lines = CaptionLines::kFirst, .weights = {}}, stream(1)),
            "a cat");
  EXPECT_EQ(chosen_caption(kThree, {}, stream(1)), kThree);
  EXPECT_EQ(chosen_caption("\n \n", {.lines = CaptionLines::kFirst, .weights = {}}, stream(1)), "");
}

TEST(CaptionChoiceTest, TagsAreShuffledInEveryOrder) {
  const auto orders = counts("red, green,  blue", {.weights = {}, .shuffles_tags = true});
  ASSERT_THAT(orders, SizeIs(6));
  for (const auto& [caption, count] : orders) {
    EXPECT_NEAR(count, 1000, 150) << caption;
  }
}

TEST(CaptionChoiceTest, TagsAreDroppedButForOne) {
  const auto left = counts("red, green", {.weights = {}, .drop_tags = 0.25});
  ASSERT_THAT(left, SizeIs(3));
  EXPECT_NEAR(left.at("red, green"), 6000 * 0.5625, 180);
  EXPECT_NEAR(left.at("red"), 6000 * 0.1875, 150);
  EXPECT_NEAR(left.at("green"), 6000 * 0.25, 150);  // also where both would go
  EXPECT_THAT(counts("red, green", {.weights = {}, .drop_tags = 1.0}), SizeIs(1));
}

TEST(CaptionChoiceTest, SamplesAreTheSameWhateverThreadsAndWherever) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    const std::string number = std::to_string(i);
    (void)folder.write(number + ".png", grey_png(static_cast<uint8_t>(i)));
    lines += R"({"path": ")" + number + R"(.png", "text": ["one )" + number + R"(, tag", "two )" +
             number + R"(, tag, more", "three"]})" + "\n";
  }
  const std::string path = folder.write("set.jsonl", lines).string();
  const auto config = parse_config<DataConfig>(
      {"data: {source: manifest, path: [" + path +
           "], height: 8, width: 8, text: tokens, captions: random, shuffle_tags: true, "
           "drop_tags: 0.3}",
       "test.yaml"});
  const CaptionTokens tokens = shipped_tokens(16);
  const auto source = open_source(config, &tokens);
  const auto loaded = [&](int64_t threads, int64_t first) {
    LoaderOptions options = loader_options(config);
    options.micro_batch = 4;
    options.global_batch = 4;
    options.first_position = first;
    options.num_threads = threads;
    Loader loader(*source, options);
    std::vector<at::Tensor> texts;
    while (first + 4 * std::ssize(texts) < 64) {
      texts.push_back(loader.next().tokens);
    }
    return texts;
  };
  const std::vector<at::Tensor> one = loaded(1, 0);
  const std::vector<at::Tensor> many = loaded(4, 0);
  const std::vector<at::Tensor> resumed = loaded(2, 32);
  int64_t differ = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(one[i].equal(many[i])) << i;
    EXPECT_TRUE(i < 8 || one[i].equal(resumed[i - 8])) << i;
    differ += one[i].equal(one[i % 2]) ? 0 : 1;
  }
  EXPECT_GT(differ, 10);
}

TEST(CaptionChoiceTest, AllThatMayBeDrawnIsKnown) {
  using testing::ElementsAre;
  EXPECT_THAT(possible_captions(kThree, CaptionLines::kRandom),
              ElementsAre("a cat", "a small cat", "a small cat on a mat"));
  EXPECT_THAT(possible_captions(kThree, CaptionLines::kFirst), ElementsAre("a cat"));
  EXPECT_THAT(possible_captions(kThree, CaptionLines::kWhole), ElementsAre(kThree));
}

TEST(CaptionChoiceTest, AFileOfEmbeddingsHasCaptionsAsTheyAre) {
  const auto refused = [](const std::string& more) {
    return error_of([&] {
      (void)parse_config<DataConfig>(
          {"data: {text: file, text_embeddings: a.safetensors, " + more + "}", "test.yaml"});
    });
  };
  EXPECT_EQ(refused("captions: random"), "");  // the file tells when it is opened
  EXPECT_THAT(refused("shuffle_tags: true"), HasSubstr("data.text file"));
  EXPECT_THAT(refused("drop_tags: 0.5"), HasSubstr("be 0 for data.text file"));
  EXPECT_EQ(refused("captions: first"), "");
  EXPECT_THAT(error_of([] {
                (void)parse_config<DataConfig>({"data: {caption_weights: [0, 1]}", "test.yaml"});
              }),
              HasSubstr("begin with a number above 0"));
}

}  // namespace caption_choice_test
}  // namespace kinora::data
