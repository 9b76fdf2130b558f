// Clips from sources to batches: strips, the choice of frames, texts and frame rates.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/class_folder.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/loader.h"
#include "kinora/data/moving_shapes.h"
#include "kinora/data/strips.h"
#include "kinora/data/subset.h"
#include "kinora/io/image_resize.h"
#include "tests/data/files.h"
#include "tests/places.h"

namespace kinora::data {
namespace clips_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int64_t kHeight = 4;
constexpr int64_t kWidth = 6;

// Clip i has 10 + i % 5 frames; a pixel of its frame f at column c is (i, f, c).
class CountingClips : public Source {
 public:
  explicit CountingClips(int64_t size) : size_(size) {}

  [[nodiscard]] static int64_t num_frames(int64_t index) { return 10 + index % 5; }

  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] bool is_video() const override { return true; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return "clip " + std::to_string(index);
  }
  void read(int64_t index, Sample& out) const override {
    out.num_frames = num_frames(index);
    out.fps = 30.0F;
    out.label = 0;
    out.caption = "number " + std::to_string(index);
    out.image.height = kHeight;
    out.image.width = out.num_frames * kWidth;
    out.image.pixels.clear();
    for (int64_t i = 0; i < kHeight * out.image.width; ++i) {
      const int64_t column = i % out.image.width;
      for (const int64_t value : {index, column / kWidth, column % kWidth}) {
        out.image.pixels.push_back(static_cast<uint8_t>(value));
      }
    }
  }

 private:
  int64_t size_;
  std::vector<std::string> names_ = {"only"};
};

// The same clips from a source that does no more work than it must, as those of video files.
class ChoosingClips : public CountingClips {
 public:
  using CountingClips::CountingClips;

  void read(int64_t index, Sample& out) const override {
    const FrameChoice choice = out.choice.value();
    Sample whole;
    CountingClips::read(index, whole);
    KINORA_CHECK(choice.span(whole.fps) <= whole.num_frames, kIo, sample_name(index), " is short");
    out.num_frames = choice.count;
    out.fps = whole.fps;
    out.caption = whole.caption;
    out.label = whole.label;
    io::set_size(out.image, kHeight, choice.count * kWidth);
    const int64_t first = choice.first(whole.num_frames, whole.fps);
    for (int64_t row = 0; row < kHeight; ++row) {
      for (int64_t i = 0; i < choice.count; ++i) {
        const int64_t frame = first + i * choice.stride(whole.fps);
        std::copy_n(whole.image.pixels.data() + (row * whole.num_frames + frame) * kWidth * 3,
                    kWidth * 3, out.image.pixels.data() + (row * choice.count + i) * kWidth * 3);
      }
    }
    out.is_chosen = true;
  }
};

LoaderOptions options_for(int64_t batch, int64_t frames, int64_t stride) {
  LoaderOptions options;
  options.height = kHeight;
  options.width = kWidth;
  options.frames = frames;
  options.frame_stride = stride;
  options.micro_batch = batch;
  options.global_batch = batch;
  options.seed = 5;
  options.num_threads = 3;
  return options;
}

// One sample of a batch of CountingClips.
struct Drawn {
  int64_t position;
  std::vector<uint8_t> values;  // [3, T, H, W]
  std::vector<int64_t> tokens;
  float fps;

  bool operator==(const Drawn&) const = default;
};

template <typename Value>
std::vector<Value> row(const at::Tensor& tensor, int64_t i) {
  if (!tensor.defined()) {
    return {};
  }
  const int64_t size = tensor.numel() / tensor.size(0);
  const Value* values = tensor.const_data_ptr<Value>() + i * size;
  return {values, values + size};
}

std::vector<Drawn> draw(const Source& source, const LoaderOptions& options, int64_t num_batches) {
  Loader loader(source, options);
  std::vector<Drawn> samples;
  for (int64_t number = 0; number < num_batches; ++number) {
    const Batch batch = loader.next();
    for (int64_t i = 0; i < batch.images.size(0); ++i) {
      samples.push_back({batch.sample_index.const_data_ptr<int64_t>()[i],
                         row<uint8_t>(batch.images, i), row<int64_t>(batch.tokens, i),
                         row<float>(batch.fps, i).at(0)});
    }
  }
  return samples;
}

// What a pixel of the sample says: channel 0 the clip, 1 the frame, 2 the column.
uint8_t pixel(const Drawn& sample, int64_t frames, int64_t channel, int64_t t, int64_t place) {
  return sample.values[static_cast<size_t>((channel * frames + t) * kHeight * kWidth + place)];
}

TEST(ClipsTest, BatchesHoldFramesOfOneClipInOrder) {
  const CountingClips source(40);
  constexpr int64_t kFrames = 3;
  Loader loader(source, options_for(5, kFrames, 2));
  const Batch batch = loader.next();
  EXPECT_EQ(batch.images.sizes(), at::IntArrayRef({5, 3, kFrames, kHeight, kWidth}));
  EXPECT_EQ(batch.images.scalar_type(), at::kByte);
  EXPECT_EQ(batch.fps.sizes(), at::IntArrayRef({5}));
  EXPECT_FALSE(batch.text.defined());
  EXPECT_FALSE(batch.text_lengths.defined());
  EXPECT_FALSE(batch.pooled.defined());

  std::set<std::pair<int64_t, int64_t>> starts;  // with the clip's number of frames
  for (const Drawn& sample : draw(source, options_for(40, kFrames, 2), 25)) {
    EXPECT_EQ(sample.fps, 15.0F);
    const int64_t clip = pixel(sample, kFrames, 0, 0, 0);
    const int64_t start = pixel(sample, kFrames, 1, 0, 0);
    starts.emplace(CountingClips::num_frames(clip), start);
    for (int64_t t = 0; t < kFrames; ++t) {
      for (int64_t place = 0; place < kHeight * kWidth; ++place) {
        ASSERT_EQ(pixel(sample, kFrames, 0, t, place), clip);
        ASSERT_EQ(pixel(sample, kFrames, 1, t, place), start + 2 * t);
        ASSERT_EQ(pixel(sample, kFrames, 2, t, place), place % kWidth);
      }
    }
  }
  // Every possible start of every length occurs, and no other: 6 of 10 frames, ..., 10 of 14.
  EXPECT_EQ(starts.size(), 6U + 7U + 8U + 9U + 10U);
  for (const auto& [num_frames, start] : starts) {
    EXPECT_LE(start + 4, num_frames - 1);
  }
}

TEST(ClipsTest, StreamDependsOnSeedAndPositionOnly) {
  const TokenSource source(std::make_unique<CountingClips>(30), shipped_tokens(4));
  LoaderOptions options = options_for(8, 4, 1);
  options.random_flip = true;
  options.num_threads = 1;
  const std::vector<Drawn> expected = draw(source, options, 12);
  EXPECT_EQ(std::ssize(expected.front().tokens), 4);
  options.num_threads = 7;
  options.queue_depth = 2;
  EXPECT_EQ(draw(source, options, 12), expected);

  LoaderOptions resumed = options;  // after 5 batches, across the end of an epoch
  resumed.first_position = 40;
  EXPECT_EQ(draw(source, resumed, 7), std::vector<Drawn>(expected.begin() + 40, expected.end()));

  std::vector<Drawn> joined(expected.size());
  options.num_ranks = 2;
  options.micro_batch = 2;
  for (const int64_t rank : {0, 1}) {
    options.rank = rank;
    for (Drawn& sample : draw(source, options, 24)) {
      const auto place = static_cast<size_t>(sample.position);
      joined[place] = std::move(sample);
    }
  }
  EXPECT_EQ(joined, expected);

  options = options_for(8, 4, 1);
  options.seed = 6;
  EXPECT_NE(draw(source, options, 12), expected);
}

TEST(ClipsTest, SourcesMayGiveTheChosenFramesOnly) {
  for (const auto& [frames, stride, max_fps] :
       {std::tuple{1, 1, 0.0}, {3, 2, 0.0}, {4, 1, 15.0}, {10, 1, 0.0}, {3, 2, 8.0}}) {
    LoaderOptions options = options_for(8, frames, stride);
    options.max_fps = max_fps;
    options.random_flip = true;
    const auto images = [&](const Source& source) {
      std::vector<std::vector<uint8_t>> all;
      Loader loader(source, options);
      for (int64_t number = 0; number < 12; ++number) {
        all.push_back(row<uint8_t>(loader.next().images.unsqueeze(0), 0));
      }
      return all;
    };
    EXPECT_EQ(images(ChoosingClips(30)), images(CountingClips(30))) << frames << " of " << stride;
  }
}

// The strides of Open-Sora's map_target_fps(fps, max_fps).
TEST(ClipsTest, FasterClipsAreThinnedToTheHighestRate) {
  const auto stride = [](double fps, double max_fps, int64_t min_stride = 1) {
    return FrameChoice{.count = 2, .min_stride = min_stride, .max_fps = max_fps}.stride(fps);
  };
  EXPECT_EQ(stride(30.0, 24.0), 2);
  EXPECT_EQ(stride(60.0, 24.0), 3);
  EXPECT_EQ(stride(24.0, 24.0), 1);
  EXPECT_EQ(stride(23.976, 24.0), 1);
  EXPECT_EQ(stride(50.0, 25.0), 2);
  EXPECT_EQ(stride(8.0, 16.0), 1);
  EXPECT_EQ(stride(30.05, 30.0), 1);  // as files say it that were made at 30
  EXPECT_EQ(stride(60.0, 24.0, 4), 4);
  EXPECT_EQ(stride(60.0, 0.0, 2), 2);
  EXPECT_EQ(stride(0.0, 24.0, 2), 2);

  LoaderOptions options = options_for(4, 3, 1);
  options.max_fps = 10.0;
  const CountingClips source(20);  // of 30 frames a second
  for (const Drawn& sample : draw(source, options, 5)) {
    EXPECT_EQ(sample.fps, 10.0F);
    EXPECT_EQ(pixel(sample, 3, 1, 2, 0) - pixel(sample, 3, 1, 0, 0), 6);
  }
  options.frames = 6;  // 16 of at most 14
  EXPECT_THAT(error_of([&] { (void)draw(source, options, 1); }),
              AllOf(HasSubstr("at least 16 frames"), HasSubstr("data.max_fps 10 at 30")));
}

TEST(ClipsTest, FlipMirrorsEveryFrameAndKeepsTheirOrder) {
  const CountingClips source(40);
  LoaderOptions options = options_for(40, 4, 1);
  options.random_flip = true;
  int64_t num_flipped = 0;
  for (const Drawn& sample : draw(source, options, 5)) {
    const bool flipped = pixel(sample, 4, 2, 0, 0) != 0;
    num_flipped += flipped ? 1 : 0;
    for (int64_t t = 0; t < 4; ++t) {
      ASSERT_EQ(pixel(sample, 4, 1, t, 0), pixel(sample, 4, 1, 0, 0) + t);
      for (int64_t place = 0; place < kHeight * kWidth; ++place) {
        const int64_t column = place % kWidth;
        ASSERT_EQ(pixel(sample, 4, 2, t, place), flipped ? kWidth - 1 - column : column);
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(num_flipped), 100.0, 28.0);  // 4 standard deviations
}

TEST(ClipsTest, OneFrameMakesAnImage) {
  const CountingClips source(20);
  Loader loader(source, options_for(4, 1, 1));
  const Batch batch = loader.next();
  EXPECT_EQ(batch.images.sizes(), at::IntArrayRef({4, 3, kHeight, kWidth}));
  EXPECT_FALSE(batch.fps.defined());
}

TEST(ClipsTest, ShortClipsAreNamedAndReplaced) {
  const CountingClips source(40);                 // 8 each of 10 to 14 frames
  LoaderOptions options = options_for(40, 7, 2);  // 13 frames
  options.max_bad = 24;
  for (const Drawn& sample : draw(source, options, 2)) {
    EXPECT_GE(CountingClips::num_frames(pixel(sample, 7, 0, 0, 0)), 13);
  }
  options.max_bad = 23;
  EXPECT_THAT(error_of([&] { (void)draw(source, options, 2); }),
              AllOf(HasSubstr("clip "), HasSubstr("at least 13 frames"),
                    HasSubstr("data.frame_stride 2"), HasSubstr("got 1")));
}

TEST(ClipsTest, FramesAreCroppedOneByOne) {
  const MovingShapeSource source(3, 10, 3, 8.0F, 40, 64);
  const Batch batch = load_samples(source, {{7}}, {.height = 16, .width = 24, .frames = 3});
  for (int64_t t = 0; t < 3; ++t) {
    io::Image frame;
    render(scene_at(moving_scene(3, 7), static_cast<float>(t) / 2.0F), 40, 64, frame);
    const io::Image cropped = io::center_crop(frame, 16, 24);
    constexpr int64_t kPlane = int64_t{16} * 24;
    for (int64_t i = 0; i < 3 * kPlane; ++i) {
      const int64_t channel = i / kPlane;
      const int64_t place = i % kPlane;
      ASSERT_EQ(batch.images.const_data_ptr<uint8_t>()[(channel * 3 + t) * kPlane + place],
                cropped.pixels[static_cast<size_t>(place * 3 + channel)]);
    }
  }
}

TEST(ClipsTest, FixedSetsTakeTheMiddleFrames) {
  const CountingClips source(20);
  const Batch batch =
      load_samples(source, {{0, 4}}, {.height = kHeight, .width = kWidth, .frames = 4});
  EXPECT_EQ(row<uint8_t>(batch.images.select(1, 1).contiguous(), 0)[0], 3);  // of 0 to 6
  EXPECT_EQ(row<uint8_t>(batch.images.select(1, 1).contiguous(), 1)[0], 5);  // of 0 to 10
  EXPECT_THAT(row<float>(batch.fps.view({1, 2}), 0), Each(30.0F));
}

TEST(ClipsTest, TextsLieBesideTheirClips) {
  const CaptionTokens tokens = shipped_tokens(16);
  const TokenSource whole(std::make_unique<MovingShapeSource>(1, 64, 3, 8.0F, 16, 16), tokens);
  const SubsetSource source(whole, {60, 3, 17, 40});
  LoaderOptions options = options_for(4, 3, 1);
  options.height = 16;
  options.width = 16;
  Loader loader(source, options);
  std::set<int64_t> labels;
  const Batch batch = loader.next();
  EXPECT_EQ(batch.tokens.sizes(), at::IntArrayRef({4, 16}));
  EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
  EXPECT_EQ(batch.text_lengths.scalar_type(), at::kLong);
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t label = batch.labels.const_data_ptr<int64_t>()[i];
    for (const int64_t index : {60, 3, 17, 40}) {
      if (index % kNumMovingClasses == label) {
        std::vector<int64_t> ids = encode(tokens, moving_caption(1, index)).ids;
        EXPECT_EQ(batch.text_lengths.const_data_ptr<int64_t>()[i], std::ssize(ids));
        ids.resize(16, 0);
        EXPECT_EQ(row<int64_t>(batch.tokens, i), ids);
        labels.insert(label);
      }
    }
  }
  EXPECT_EQ(labels, (std::set<int64_t>{60 % 16, 3, 1, 40 % 16}));
}

TEST(ClipsTest, BuffersAreUsedAgainButNotWhileHeld) {
  const TokenSource source(std::make_unique<CountingClips>(50), shipped_tokens(4));
  LoaderOptions options = options_for(6, 5, 1);
  options.queue_depth = 3;
  Loader loader(source, options);
  const at::Tensor clip = loader.next().images[2];  // views are enough
  const at::Tensor held = clip.clone();
  const at::Tensor text = loader.next().tokens[3];
  const at::Tensor held_text = text.clone();
  std::set<const void*> texts;
  for (int i = 0; i < 100; ++i) {
    texts.insert(loader.next().tokens.const_data_ptr());
  }
  EXPECT_TRUE(clip.equal(held));
  EXPECT_TRUE(text.equal(held_text));
  constexpr int64_t kTensors = 6;  // images, labels, positions, rates, texts and their lengths
  EXPECT_LE(loader.stats().num_buffers, kTensors * (3 + 2));
  EXPECT_LE(texts.size(), 3U + 2U);
}

TEST(ClipsTest, RefusesClipsOfImagesAndNoFrames) {
  const ShapeSource images(0, 10, 16, 16);
  EXPECT_THAT(error_of([&] { Loader loader(images, options_for(2, 4, 1)); }),
              AllOf(HasSubstr("clips of 4 frames"), HasSubstr("data.frame_layout")));
  const CountingClips clips(10);
  EXPECT_THAT(error_of([&] { Loader loader(clips, options_for(2, 0, 1)); }),
              HasSubstr("got 0 and 1"));
  EXPECT_THAT(error_of([&] { Loader loader(clips, options_for(2, 2, 0)); }),
              HasSubstr("got 2 and 0"));
}

// A strip of frames 8 x 8, frame f grey with 10 f + first.
std::vector<std::byte> strip_png(int64_t num_frames, int64_t first) {
  io::Image strip{8, 8 * num_frames, 3, {}};
  for (int64_t i = 0; i < 8 * strip.width; ++i) {
    const auto grey = static_cast<uint8_t>(first + 10 * (i % strip.width / 8));
    strip.pixels.insert(strip.pixels.end(), 3, grey);
  }
  return io::encode_png(strip);
}

TEST(StripsTest, AreClipsOfSquareFrames) {
  const TemporaryFolder folder;
  folder.write("walk/1.png", strip_png(5, 1));
  folder.write("walk/2.png", strip_png(3, 2));
  const StripSource source(std::make_unique<ClassFolder>(folder.path()), 12.0F);
  EXPECT_TRUE(source.is_video());
  EXPECT_EQ(source.class_names(), std::vector<std::string>{"walk"});
  const Batch batch =
      load_samples(source, {{0, 1}}, {.height = 8, .width = 8, .frames = 2, .frame_stride = 2});
  EXPECT_EQ(batch.images.sizes(), at::IntArrayRef({2, 3, 2, 8, 8}));
  EXPECT_THAT(row<uint8_t>(batch.images.select(2, 0).contiguous(), 0), Each(11));  // of 3 starts
  EXPECT_THAT(row<uint8_t>(batch.images.select(2, 1).contiguous(), 0), Each(31));
  EXPECT_THAT(row<uint8_t>(batch.images.select(2, 1).contiguous(), 1), Each(22));
  EXPECT_THAT(row<float>(batch.fps, 1), Each(6.0F));
}

TEST(StripsTest, BadStripsAreNamed) {
  const TemporaryFolder folder;
  const std::vector<std::byte> whole = strip_png(4, 0);
  folder.write("a/cut.png", std::span(whole).first(whole.size() - 20));
  folder.write("a/good.png", whole);
  folder.write("a/odd.png", grey_png(1, 8, 30));
  folder.write("a/short.png", strip_png(2, 0));
  const StripSource source(std::make_unique<ClassFolder>(folder.path()), 8.0F);
  const SampleSize size{.height = 8, .width = 8, .frames = 3};
  EXPECT_EQ(load_samples(source, {{0, 1, 2, 3}}, size).images.size(0), 1);
  const auto message = [&](int64_t index) {
    return error_of([&] { (void)load_samples(source, {{index}}, size, 0); });
  };
  EXPECT_THAT(message(0), HasSubstr("cut.png"));
  EXPECT_THAT(message(2), HasSubstr("odd.png must be a strip of square frames"));
  EXPECT_THAT(message(3), HasSubstr("short.png must have at least 3 frames"));
}

TEST(StripsTest, ReadsWeizmann) {
  const char* folder = std::getenv("KINORA_DATA");
  const fs::path path =
      (folder != nullptr ? fs::path(folder) : source_path("../shared/data")) / "weizmann/train.tar";
  if (!fs::exists(path)) {
    GTEST_SKIP() << "no real data: " << path.string() << " is absent (set KINORA_DATA)";
  }
  const StripSource source(std::make_unique<ClassTar>(std::vector<fs::path>{path}), 25.0F);
  EXPECT_EQ(source.size(), 57);
  EXPECT_THAT(source.class_names(),
              testing::ElementsAre("bend", "jumping_jack", "wave_one_hand", "wave_two_hands"));
  int64_t least = 1000;
  int64_t most = 0;
  Sample sample;
  for (int64_t index = 0; index < source.size(); ++index) {
    source.read(index, sample);
    EXPECT_EQ(sample.image.height, 64);
    least = std::min(least, sample.num_frames);
    most = std::max(most, sample.num_frames);
  }
  EXPECT_EQ(least, 51);
  EXPECT_EQ(most, 146);
  LoaderOptions options = options_for(4, 16, 2);
  options.height = 32;
  options.width = 32;
  Loader loader(source, options);
  EXPECT_EQ(loader.next().images.sizes(), at::IntArrayRef({4, 3, 16, 32, 32}));
  EXPECT_EQ(loader.stats().num_bad, 0);
}

}  // namespace clips_test
}  // namespace kinora::data
