#include "kinora/data/data_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace {

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
  EXPECT_THAT(error_of([&] { (void)parsed("data: {" + yaml + ", flip: true}"); }),
              testing::AllOf(HasSubstr("data.flip"), HasSubstr("test.yaml:1"),
                             HasSubstr("be false for data.source latents")));
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: latents}"); }),
              testing::AllOf(HasSubstr("data.path"), HasSubstr("at least one file")));
}

TEST(DataConfigTest, NamesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: folder}"); }), HasSubstr("data.path"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {path: [x]}"); }),
              HasSubstr("left out for shapes"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {source: shape}"); }), HasSubstr("shapes"));
  EXPECT_THAT(error_of([] { (void)parsed("data: {height: 0}"); }), HasSubstr("data.height"));
}

TEST(DataConfigTest, GivesTheLoaderItsOptions) {
  const LoaderOptions options = loader_options(
      parsed("data: {height: 48, width: 64, flip: true, threads: 3, queue: 5, max_bad: 7}"));
  EXPECT_EQ(options.height, 48);
  EXPECT_EQ(options.width, 64);
  EXPECT_TRUE(options.random_flip);
  EXPECT_EQ(options.num_threads, 3);
  EXPECT_EQ(options.queue_depth, 5);
  EXPECT_EQ(options.max_bad, 7);
}

}  // namespace
}  // namespace kinora::data
