#include "kinora/data/data_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace data_config_test {

using testing::HasSubstr;

DataConfig parsed(const std::string& yaml) {
  return parse_config<DataConfig>({yaml, "test.yaml"});
}

TEST(DataConfigTest, DefaultsAreGeneratedShapes) {
  const DataConfig config = parsed("{}");
  const std::unique_ptr<Source> source = open_source(config);
  EXPECT_EQ(source->size(), config.count);
  EXPECT_EQ(source->num_classes(), 16);
}

TEST(DataConfigTest, OpensFoldersAndArchives) {
  const TemporaryFolder folder;
  folder.write("set/a/1.png", grey_png(1));
  folder.write("set/b/2.png", grey_png(2));
  const auto archive = folder.write(
      "set.tar",
      tar({{"a/1.png", grey_png(1)}, {"a/2.png", grey_png(1)}, {"b/3.png", grey_png(2)}}));
  const DataConfig from_folder =
      parsed("data: {source: folder, path: [" + (folder.path() / "set").string() + "]}");
  EXPECT_EQ(open_source(from_folder)->size(), 2);
  const DataConfig from_tar = parsed("data: {source: tar, path: [" + archive.string() + "]}");
  EXPECT_EQ(open_source(from_tar)->size(), 3);
}

TEST(DataConfigTest, OpensLatents) {
  const TemporaryFolder folder;
  const std::vector<float> values(size_t{2} * 4 * 2 * 2);
  const std::vector<int64_t> labels = {0, 9};
  const auto path = folder.path() / "a.safetensors";
  io::write_safetensors(
      path, std::vector<io::SafetensorsTensor>{
                {"latents", DType::kF32, {2, 4, 2, 2}, std::as_bytes(std::span(values))},
                {"labels", DType::kI64, {2}, std::as_bytes(std::span(labels))}});
  const std::string yaml = "source: latents, path: [" + path.string() + "]";
  const std::unique_ptr<Source> source = open_source(parsed("data: {" + yaml + "}"));
  EXPECT_EQ(source->size(), 2);
  EXPECT_EQ(source->num_classes(), 10);
  EXPECT_EQ(source->latent_shape(), (SampleShape{4, 2, 2}));
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: latents}"); }),
              testing::AllOf(HasSubstr("data.path"), HasSubstr("at least one file")));
}

TEST(DataConfigTest, NamesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: folder}"); }), HasSubstr("data.path"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {path: [x]}"); }),
              HasSubstr("left out for generated sets"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: shape}"); }), HasSubstr("shapes"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {height: 0}"); }), HasSubstr("data.height"));
}

TEST(DataConfigTest, OpensGeneratedClips) {
  const std::string yaml = "source: moving_shapes, height: 16, width: 24, frames: 5, fps: 12";
  const std::unique_ptr<Source> source = open_source(parsed("data: {" + yaml + "}"));
  EXPECT_TRUE(source->is_video());
  EXPECT_FALSE(source->text_shape().has_value());
  Sample sample;
  source->read(1, sample);
  EXPECT_EQ(sample.num_frames, 5);
  EXPECT_EQ(sample.fps, 12.0F);
  EXPECT_EQ(sample.image.width, 5 * 24);
  const auto message = [&yaml](const std::string& more) {
    return error_of([&] { (void)parsed("data: {" + yaml + more + "}"); });
  };
  EXPECT_THAT(message(", flip: true"), HasSubstr("tell left from right"));
  EXPECT_THAT(message(", frame_stride: 2"), HasSubstr("data.frame_stride"));
  EXPECT_THAT(message(", frame_layout: strip"), HasSubstr("generated sets"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: moving_shapes}"); }),
              testing::AllOf(HasSubstr("data.frames"), HasSubstr("at least 2")));
}

TEST(DataConfigTest, OpensStripsWithTheirRate) {
  const TemporaryFolder folder;
  folder.write("set/a/1.png", grey_png(1, 8, 24));
  folder.write("set/a/2.png", grey_png(2, 8, 16));
  const std::string yaml = "source: folder, path: [" + (folder.path() / "set").string() + "]";
  EXPECT_FALSE(open_source(parsed("data: {" + yaml + "}"))->is_video());
  EXPECT_THAT(error_of([&] { (void)parsed("data: {" + yaml + ", frames: 2}"); }),
              testing::AllOf(HasSubstr("data.frames"), HasSubstr("strip")));
  const std::unique_ptr<Source> source = open_source(
      parsed("data: {" + yaml + ", frame_layout: strip, frames: 2, fps: 25, flip: true}"));
  EXPECT_TRUE(source->is_video());
  Sample sample;
  source->read(0, sample);
  EXPECT_EQ(sample.num_frames, 3);
  EXPECT_EQ(sample.fps, 25.0F);
}

TEST(DataConfigTest, OpensTexts) {
  const CaptionTokens tokens = shipped_tokens(7);
  const std::unique_ptr<Source> source = open_source(parsed("data: {text: tokens}"), &tokens);
  EXPECT_EQ(source->text_shape(), (TextShape{.length = 7}));
  EXPECT_THAT(error_of([] { (void)parsed("data: {text: tokens, flip: true}"); }),
              HasSubstr("tell left from right"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {text: file}"); }),
              testing::AllOf(HasSubstr("data.text_embeddings"), HasSubstr("name a file")));
  EXPECT_THAT(error_of([] { (void)parsed("data: {text_embeddings: a.safetensors}"); }),
              HasSubstr("left out otherwise"));

  const TemporaryFolder folder;
  const std::vector<float> values(size_t{16} * 3 * 2);
  const std::vector<int64_t> lengths(16, 3);
  const auto path = folder.path() / "t.safetensors";
  io::write_safetensors(
      path, std::vector<io::SafetensorsTensor>{
                {"embeddings", DType::kF32, {16, 3, 2}, std::as_bytes(std::span(values))},
                {"lengths", DType::kI64, {16}, std::as_bytes(std::span(lengths))}});
  EXPECT_EQ(open_source(parsed("data: {text: file, text_embeddings: " + path.string() + "}"))
                ->text_shape(),
            (TextShape{.length = 3, .channels = 2, .pooled_channels = 0}));
}

// Recipes of earlier versions, and checkpoints, which hold every key.
TEST(DataConfigTest, RandomWordVectorsAreNoMore) {
  EXPECT_THAT(error_of([] { (void)parsed("data: {text: builtin}"); }),
              testing::AllOf(HasSubstr("data.text can be builtin no more"),
                             HasSubstr("data.text=tokens text.tokenizer=")));
  EXPECT_EQ(parsed("data: {text: tokens, text_length: 16, text_channels: 64}").text,
            TextKind::kTokens);
  EXPECT_THAT(error_of([] { (void)parsed("data: {text_length: 8}"); }),
              testing::AllOf(HasSubstr("data.text_length is no more"), HasSubstr("leave it out")));
  EXPECT_THAT(error_of([] { (void)parsed("data: {text: built}"); }),
              testing::Not(HasSubstr("builtin")));
}

TEST(DataConfigTest, GivesTheLoaderItsOptions) {
  const LoaderOptions options = loader_options(
      parsed("data: {source: tar, path: [a.tar], frame_layout: strip, frames: 9, frame_stride: 2, "
             "max_fps: 24, height: 48, width: 64, flip: true, threads: 3, queue: 5, max_bad: 7}"));
  EXPECT_EQ(options.frames, 9);
  EXPECT_EQ(options.frame_stride, 2);
  EXPECT_EQ(options.max_fps, 24.0);
  EXPECT_EQ(options.height, 48);
  EXPECT_EQ(options.width, 64);
  EXPECT_TRUE(options.random_flip);
  EXPECT_EQ(options.num_threads, 3);
  EXPECT_EQ(options.queue_depth, 5);
  EXPECT_EQ(options.max_bad, 7);
}

TEST(DataConfigTest, RowsOfBucketsAsYamlAreReadBack) {
  const ConfigTable rows = {{"256px", 1, {1.0, 64.0}},
                            {"256px", 16, {0.1, 0.25, 8.0}},
                            {"480p", 1, {0.0, 1000000.0}},
                            {"1024", 51, {1e-7, 1.0}}};
  const std::string yaml = "data:\n  buckets:\n" + bucket_yaml(rows, 4);
  EXPECT_EQ(parsed(yaml).buckets, rows);
  EXPECT_EQ(bucket_yaml({rows.begin(), rows.begin() + 3}, 2),
            "  \"256px\": {1: [1.0, 64], 16: [[0.1, 0.25], 8]}\n"
            "  \"480p\": {1: [0.0, 1000000]}\n");
  EXPECT_EQ(bucket_yaml({}, 4), "");
}

}  // namespace data_config_test
}  // namespace kinora::data
