// Latents of clips: LatentFiles of five dims, and the frames that batches take of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <span>

#include "kinora/data/data_config.h"
#include "kinora/data/latent_files.h"
#include "kinora/data/loader.h"
#include "kinora/data/subset.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace clip_latents_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kChannels = 2;
constexpr int64_t kPlane = 6;  // 2 x 3

// Value (channel, frame, place) of clip `number`; all are different and exact in fp32.
float value_of(int64_t number, int64_t channel, int64_t frame, int64_t place) {
  return static_cast<float>(((number * kChannels + channel) * 64 + frame) * kPlane + place);
}

io::SafetensorsTensor floats(const std::string& name, std::vector<int64_t> shape,
                             const std::vector<float>& values) {
  return {name, DType::kF32, std::move(shape), std::as_bytes(std::span(values))};
}

// Clips first, ..., first + count - 1 of `frames` frames, [n, 2, T, 2, 3], without labels.
fs::path write_clips(const fs::path& path, int64_t first, int64_t count, int64_t frames,
                     const std::map<std::string, std::string>& metadata = {}) {
  std::vector<float> values;
  for (int64_t number = first; number < first + count; ++number) {
    for (int64_t i = 0; i < kChannels * frames; ++i) {
      for (int64_t place = 0; place < kPlane; ++place) {
        values.push_back(value_of(number, i / frames, i % frames, place));
      }
    }
  }
  io::write_safetensors(path, std::vector{floats("latents", {count, 2, frames, 2, 3}, values)},
                        metadata);
  return path;
}

LoaderOptions options_for(int64_t batch, int64_t frames, int64_t stride) {
  LoaderOptions options;
  options.frames = frames;
  options.frame_stride = stride;
  options.micro_batch = batch;
  options.global_batch = batch;
  options.seed = 9;
  options.num_threads = 2;
  return options;
}

// Sample i of the batch: clip `number` from which frame on; expects every value of it.
int64_t start_of(const at::Tensor& latents, int64_t i, int64_t* number, int64_t stride) {
  const at::Tensor clip = latents[i].contiguous();  // [C, T, 2, 3]
  const auto* values = clip.const_data_ptr<float>();
  const auto first = static_cast<int64_t>(values[0]);
  *number = first / (kChannels * 64 * kPlane);
  const int64_t start = first / kPlane % 64;
  const int64_t frames = clip.size(1);
  for (int64_t j = 0; j < clip.numel(); ++j) {
    const int64_t channel = j / kPlane / frames;
    const int64_t frame = start + j / kPlane % frames * stride;
    EXPECT_EQ(values[j], value_of(*number, channel, frame, j % kPlane)) << j;
  }
  return start;
}

TEST(ClipLatentsTest, WindowsStartAtEveryPossibleFrame) {
  const TemporaryFolder folder;
  const LatentFiles source({write_clips(folder.path() / "a.safetensors", 0, 3, 9),
                            write_clips(folder.path() / "b.safetensors", 3, 2, 7)},
                           {.min_frames = 7, .fps = 24.0F, .needs_labels = false});
  EXPECT_TRUE(source.is_video());
  EXPECT_EQ(source.latent_shape(), (SampleShape{2, 2, 3}));
  EXPECT_EQ(source.size(), 5);
  EXPECT_EQ(source.num_classes(), 1);
  std::map<int64_t, std::set<int64_t>> starts;
  Loader loader(source, options_for(5, 4, 2));  // 7 frames from the first to the last
  for (int step = 0; step < 30; ++step) {
    const Batch batch = loader.next();
    ASSERT_EQ(batch.images.sizes(), at::IntArrayRef({5, 2, 4, 2, 3}));
    ASSERT_EQ(batch.images.scalar_type(), at::kFloat);
    for (int64_t i = 0; i < 5; ++i) {
      int64_t number = -1;
      const int64_t start = start_of(batch.images, i, &number, 2);
      starts[number].insert(start);
      EXPECT_EQ(batch.fps.const_data_ptr<float>()[i], 12.0F);
      EXPECT_EQ(batch.labels.const_data_ptr<int64_t>()[i], 0);
    }
  }
  const std::set<int64_t> of_nine = {0, 1, 2};
  const std::set<int64_t> of_seven = {0};
  EXPECT_EQ(starts, (std::map<int64_t, std::set<int64_t>>{
                        {0, of_nine}, {1, of_nine}, {2, of_nine}, {3, of_seven}, {4, of_seven}}));
}

TEST(ClipLatentsTest, TheStreamGoesOnWhereItStopped) {
  const TemporaryFolder folder;
  const LatentFiles source({write_clips(folder.path() / "a.safetensors", 0, 7, 16)},
                           {.needs_labels = false});
  LoaderOptions options = options_for(3, 4, 1);
  Loader whole(source, options);
  for (int step = 0; step < 5; ++step) {
    (void)whole.next();
  }
  options.first_position = 15;
  options.num_threads = 1;
  Loader resumed(source, options);
  for (int step = 0; step < 5; ++step) {
    EXPECT_TRUE(whole.next().images.equal(resumed.next().images)) << step;
  }
}

TEST(ClipLatentsTest, FixedSetsTakeTheMiddleAndOneFrameMakesAnImage) {
  const TemporaryFolder folder;
  const LatentFiles whole({write_clips(folder.path() / "a.safetensors", 0, 4, 10)},
                          {.needs_labels = false});
  const SubsetSource source(whole, {3, 1});
  const Batch clips = load_samples(source, {{0, 1}}, {.frames = 4});
  int64_t number = -1;
  EXPECT_EQ(start_of(clips.images, 0, &number, 1), 3);  // of 0 to 6
  EXPECT_EQ(number, 3);
  EXPECT_EQ(start_of(clips.images, 1, &number, 1), 3);
  EXPECT_EQ(number, 1);
  const Batch images = load_samples(source, {{1}}, SampleSize{});
  ASSERT_EQ(images.images.sizes(), at::IntArrayRef({1, 2, 2, 3}));
  EXPECT_EQ(start_of(images.images.unsqueeze(2), 0, &number, 1), 5);  // of 0 to 9
  EXPECT_FALSE(images.fps.defined());
}

TEST(ClipLatentsTest, MetadataSayRateAndSize) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::map<std::string, std::string>& more) {
    return write_clips(folder.path() / name, 0, 1, 4, more);
  };
  const std::map<std::string, std::string> size = {{"height", "16"}, {"width", "24"}};
  std::map<std::string, std::string> with_fps = size;
  with_fps["fps"] = "29.97";
  const fs::path a = write("a.safetensors", with_fps);
  const fs::path b = write("b.safetensors", size);
  const LatentFilesOptions options{.fps = 5.0F, .needs_labels = false};
  const LatentFiles source({a, b}, options);
  EXPECT_EQ(source.latent_shape(), (SampleShape{2, 2, 3, 16, 24}));
  Sample sample;
  source.read(0, sample);
  EXPECT_EQ(sample.fps, 29.97F);
  EXPECT_EQ(sample.num_frames, 4);
  source.read(1, sample);
  EXPECT_EQ(sample.fps, 5.0F);

  const auto error = [&](const std::map<std::string, std::string>& more) {
    const fs::path path = write("bad.safetensors", more);
    return error_of([&] { LatentFiles bad({path, path}, options); });
  };
  for (const char* wrong : {"", "fast", "0", "-1", "nan", "inf", "1001", "24 ", "24fps"}) {
    EXPECT_THAT(error({{"fps", wrong}}),
                AllOf(HasSubstr("bad.safetensors: the metadata fps must be a number above 0, at "
                                "most 1000"),
                      HasSubstr(wrong)));
  }
  EXPECT_THAT(error({{"height", "16"}}), HasSubstr("height and width or neither"));
  EXPECT_THAT(error({{"height", "16"}, {"width", "1e9"}}), HasSubstr("the metadata width"));
  const fs::path other = write("other.safetensors", {{"height", "16"}, {"width", "25"}});
  EXPECT_THAT(error_of([&] {
                LatentFiles bad({b, other}, options);
              }),
              AllOf(HasSubstr("b.safetensors are 2 x 2 x 3 (16 x 24 pixels) of clips"),
                    HasSubstr("got 2 x 2 x 3 (16 x 25 pixels) of clips in " + other.string())));
}

TEST(ClipLatentsTest, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const fs::path clips = write_clips(folder.path() / "clips.safetensors", 0, 2, 6);
  const fs::path images = folder.path() / "images.safetensors";
  const std::vector<float> values(24);
  io::write_safetensors(images, std::vector{floats("latents", {2, 2, 2, 3}, values)});
  EXPECT_THAT(error_of([&] { LatentFiles source({clips}); }),
              AllOf(HasSubstr("clips.safetensors"), HasSubstr("there is no labels")));
  EXPECT_THAT(error_of([&] {
                LatentFiles source({clips, images}, {.needs_labels = false});
              }),
              HasSubstr("2 x 2 x 3 of clips, got 2 x 2 x 3 of images in " + images.string()));

  const auto message = [](const fs::path& path, const std::string& more) {
    const auto config = parse_config<DataConfig>(
        {"data: {source: latents, text: file, text_embeddings: none, path: [" + path.string() +
             "], " + more + "}",
         "test.yaml"});
    return error_of([&] { (void)open_source(config); });
  };
  EXPECT_THAT(message(images, "frames: 2"),
              AllOf(HasSubstr("images.safetensors: latents must be of clips of at least 2 frames"),
                    HasSubstr("got [2, 2, 2, 3]")));
  EXPECT_THAT(message(clips, "frames: 4, frame_stride: 2"),
              AllOf(HasSubstr("clips of at least 7 frames for data.frames"),
                    HasSubstr("got [2, 2, 6, 2, 3]")));
  EXPECT_THAT(message(clips, "frames: 3, frame_stride: 2"), HasSubstr("none"));  // the texts' file
  io::write_safetensors(images, std::vector{floats("latents", {2, 2, 0, 2, 3}, {})});
  EXPECT_THAT(message(images, "frames: 1"), HasSubstr("at least 1, got [2, 2, 0, 2, 3]"));
}

}  // namespace clip_latents_test
}  // namespace kinora::data
