// CLIP score against transformers' CLIPModel and CLIPImageProcessor
// (tools/reference/make_clip_fixtures.py).

#include "kinora/eval/clip_score.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kinora/eval/clip_network.h"
#include "kinora/inference/sample_metadata.h"
#include "kinora/io/picture_texts.h"
#include "tests/error_of.h"
#include "tests/eval/clip_folder.h"

namespace kinora::eval {
namespace clip_score_test {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

constexpr double kInFp32 = 1e-5;

class ClipScoreTest : public testing::Test {
 protected:
  ClipScoreTest() { write_clip_folder(clip()); }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path clip() const { return folder_ / "clip"; }
  [[nodiscard]] at::Tensor expected(const std::string& name) const {
    const io::SafetensorsTensor* const found = file_.find(name);
    EXPECT_NE(found, nullptr) << name;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] std::vector<std::string> prompts() const {
    return json::parse(file_.metadata().at("prompts"));
  }
  /// All pictures, uint8 [3, H, W].
  [[nodiscard]] std::vector<at::Tensor> pictures() const {
    std::vector<at::Tensor> all;
    for (const json& size : json::parse(file_.metadata().at("sizes"))) {
      all.push_back(clip_picture(std::ssize(all), size[0], size[1]).permute({2, 0, 1}));
    }
    return all;
  }
  static void expect_near(const at::Tensor& actual, const at::Tensor& want, double bound) {
    ASSERT_EQ(actual.sizes(), want.sizes());
    EXPECT_LT((actual - want).abs().max().item<double>(), bound);
  }
  /// A picture of noise with or without texts.
  void write_picture(const std::string& name, const std::vector<io::PictureText>& texts) const {
    io::Image image;
    io::set_size(image, 8, 8);
    const std::vector<std::byte> bytes = io::encode_png(image);
    fs::create_directories((folder_ / name).parent_path());
    io::write_file_atomic(folder_ / name, texts.empty() ? bytes : io::with_png_texts(bytes, texts));
  }
  static std::vector<io::PictureText> texts_of(const std::string& prompt) {
    inference::SampleMetadata metadata;
    metadata.prompt = prompt;
    return inference::texts_of(metadata);
  }
  void replace_in(const std::string& file, const std::string& from, const std::string& to) const {
    constexpr int64_t kMostBytes = 1 << 20;
    std::string text = io::read_text(clip() / file, kMostBytes);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    io::write_file_atomic(clip() / file, text.replace(at, from.size(), to));
  }
  [[nodiscard]] std::string refusal(ErrorKind kind) const {
    return error_of(kind, [&] { return ClipNetwork(clip(), at::kCPU).name(); });
  }

  fs::path folder_ = fs::temp_directory_path() / ("kinora-clip-" + std::to_string(::getpid()));
  io::SafetensorsFile file_ = io::SafetensorsFile::open(clip_fixture() / "expected.safetensors");
};

// What CLIPImageProcessor makes on Pillow: enlarged, shrunk, cropped upright and lying.
TEST_F(ClipScoreTest, PreprocessingEqualsTransformers) {
  const ClipNetwork network(clip(), at::kCPU);
  const std::vector<at::Tensor> all = pictures();
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(network.prepare(all[i]), expected("pixels." + std::to_string(i)), 1e-6);
  }
}

TEST_F(ClipScoreTest, PicturesThatWouldGrowWithoutBoundAreRefused) {
  const ClipNetwork network(clip(), at::kCPU);
  EXPECT_EQ(network.prepare(at::zeros({3, 1, 64}, at::kByte)).dim(), 3);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] {
                         return network.prepare(at::zeros({3, 65, 1}, at::kByte));
                       }),
              HasSubstr("at most 64 times the other, got 65 x 1"));
}

TEST_F(ClipScoreTest, BothTowersEqualTransformers) {
  const ClipNetwork network(clip(), at::kCPU);
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& picture : pictures()) {
    inputs.push_back(network.prepare(picture));
  }
  expect_near(network.forward(at::stack(inputs)).features, expected("images"), kInFp32);
  expect_near(network.embed(prompts()), expected("texts"), kInFp32);
}

TEST_F(ClipScoreTest, IsThePublishedFormula) {
  const at::Tensor images = expected("images");
  const at::Tensor texts = expected("texts");
  const std::vector<int64_t> own = {3, 0, 2, 1, 2};
  const at::Tensor cosines = at::matmul(images, texts.t());
  double mean = 0.0;
  double others = 0.0;
  int64_t nearest = 0;
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t mine = own[static_cast<size_t>(i)];
    const auto score = [&](int64_t j) {
      return 100.0 * std::max(cosines[i][j].item<double>(), 0.0);
    };
    mean += score(mine) / 5.0;
    bool is_nearest = true;
    for (int64_t j = 0; j < 4; ++j) {
      others += j == mine ? 0.0 : score(j) / 15.0;
      is_nearest = is_nearest && (j == mine || score(j) < score(mine));
    }
    nearest += is_nearest ? 1 : 0;
  }
  const ClipScore score = clip_score(images, texts, own);
  EXPECT_NEAR(score.score, mean, 1e-4);
  EXPECT_NEAR(score.score_of_others.value(), others, 1e-4);
  EXPECT_DOUBLE_EQ(score.own_is_nearest.value(), static_cast<double>(nearest) / 5.0);
  EXPECT_GT(nearest, 0);
  EXPECT_LT(nearest, 5);
  EXPECT_FALSE(clip_score(images, texts.narrow(0, 0, 1), {0, 0, 0, 0, 0}).score_of_others);
}

// The first frame's cosine is below 0 and counts as 0.
TEST_F(ClipScoreTest, AClipIsTheMeanOfItsFrames) {
  const ClipNetwork network(clip(), at::kCPU);
  const at::Tensor frame = pictures()[0];  // 24 x 24
  const at::Tensor other = frame.flip({1});
  const at::Tensor clip_of_both = at::stack({frame, other}, 1);  // [3, T, H, W]
  const at::Tensor text = expected("texts").narrow(0, 3, 1);
  const auto score = [&](const at::Tensor& sample) {
    const at::Tensor input = network.prepare(sample).unsqueeze(0);
    return clip_score(network.forward(input).features, text, {0}).score;
  };
  EXPECT_GT(score(frame), 1.0);
  EXPECT_NE(score(frame), score(other));
  EXPECT_NEAR(score(clip_of_both), (score(frame) + score(other)) / 2.0, 1e-4);
}

TEST_F(ClipScoreTest, PromptsComeFromFilesThemselvesOrAFile) {
  write_picture("a/one.png", texts_of("a red circle"));
  write_picture("a/two.png", texts_of("two stars"));
  const SampleSet set = SampleSet::open(folder_ / "a", {});
  EXPECT_THAT(prompts_of(set, ""), ElementsAre("a red circle", "two stars"));
  io::write_file_atomic(folder_ / "lines.txt", "  first \n\nsecond\n");
  EXPECT_THAT(prompts_of(set, folder_ / "lines.txt"), ElementsAre("first", "second"));
  io::write_file_atomic(folder_ / "line.txt", "same");
  EXPECT_THAT(prompts_of(set, folder_ / "line.txt"), ElementsAre("same", "same"));
  io::write_file_atomic(folder_ / "names.json", R"({"two.png": "b", "one.png": "a"})");
  EXPECT_THAT(prompts_of(set, folder_ / "names.json"), ElementsAre("a", "b"));
}

TEST_F(ClipScoreTest, CaptionsBesidePicturesAreTheirPrompts) {
  write_picture("b/one.png", {});
  write_picture("b/two.png", {});
  io::write_file_atomic(folder_ / "b/one.txt", "a cross");
  io::write_file_atomic(folder_ / "b/two.txt", "a star");
  EXPECT_THAT(prompts_of(SampleSet::open(folder_ / "b", {}), ""), ElementsAre("a cross", "a star"));
}

TEST_F(ClipScoreTest, MissingPromptsAreNamed) {
  write_picture("c/one.png", texts_of("a red circle"));
  write_picture("c/two.png", {});
  const SampleSet set = SampleSet::open(folder_ / "c", {});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return prompts_of(set, ""); }),
              AllOf(HasSubstr("two.png"), HasSubstr("--prompts")));
  io::write_file_atomic(folder_ / "three.txt", "a\nb\nc\n");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return prompts_of(set, folder_ / "three.txt"); }),
              AllOf(HasSubstr("got 3"), HasSubstr("2 samples")));
  io::write_file_atomic(folder_ / "names.json", R"({"one.png": "a"})");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return prompts_of(set, folder_ / "names.json"); }),
              HasSubstr("two.png"));
  io::write_file_atomic(folder_ / "names.json", R"({"one.png": 3})");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts_of(set, folder_ / "names.json"); }),
              HasSubstr("got 3"));
  io::write_file_atomic(folder_ / "names.json", "[1]");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts_of(set, folder_ / "names.json"); }),
              HasSubstr("JSON object"));
}

TEST_F(ClipScoreTest, AnotherPreprocessingIsRefused) {
  struct Row {
    const char* from;
    const char* to;
    const char* said;
  };
  for (const Row& row : {Row{"\"do_resize\": true", "\"do_resize\": false", "do_resize"},
                         Row{"\"resample\": 3", "\"resample\": 2", "got 2"},
                         Row{"\"shortest_edge\": 24", "\"height\": 24", "shortest_edge"},
                         Row{"\"shortest_edge\": 24", "\"shortest_edge\": 20", "at most"},
                         Row{"0.00392156862745098", "1.0", "rescale_factor"},
                         Row{"0.26862954", "0.0", "image_std"}}) {
    SCOPED_TRACE(row.to);
    fs::remove_all(clip());
    write_clip_folder(clip());
    replace_in("preprocessor_config.json", row.from, row.to);
    EXPECT_THAT(refusal(ErrorKind::kConfig), HasSubstr(row.said));
  }
  fs::remove(clip() / "preprocessor_config.json");
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("preprocessor_config.json"));
  io::write_file_atomic(clip() / "preprocessor_config.json", "[]");
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("not a JSON object"));
}

TEST_F(ClipScoreTest, PartsThatDoNotFitAreNamed) {
  replace_in("config.json", "\"image_size\": 24", "\"image_size\": 28");
  EXPECT_THAT(refusal(ErrorKind::kIo),
              AllOf(HasSubstr("image tower"), HasSubstr("position_embedding")));
  fs::remove_all(clip());
  write_clip_folder(clip());
  replace_in("config.json", "\"model_type\": \"clip\"", "\"model_type\": \"t5\"");
  EXPECT_THAT(refusal(ErrorKind::kConfig), AllOf(HasSubstr("must be clip"), HasSubstr("t5")));
  fs::remove_all(clip());
  write_clip_folder(clip());
  replace_in("preprocessor_config.json", "\"height\": 24,\n    \"width\": 24",
             "\"height\": 20,\n    \"width\": 20");
  EXPECT_THAT(refusal(ErrorKind::kConfig), AllOf(HasSubstr("24 pixels"), HasSubstr("makes 20")));
}

}  // namespace clip_score_test
}  // namespace kinora::eval
