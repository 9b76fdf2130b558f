#include "kinora/data/loader.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/class_folder.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/shapes.h"
#include "kinora/io/image_resize.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace loader_test {

using testing::AllOf;
using testing::HasSubstr;

// Sample i is filled with i (mod 256) but for its first pixel, which is 255 - i; its label is i.
class CountingSource : public Source {
 public:
  explicit CountingSource(int64_t size) : size_(size) {}

  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return "number " + std::to_string(index);
  }
  void read(int64_t index, Sample& out) const override {
    num_reads_.fetch_add(1);
    if (delay) {
      const uint32_t spread = random_index({1, static_cast<uint64_t>(index)}, 0, 400);
      std::this_thread::sleep_for(std::chrono::microseconds(spread));
    }
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
    if (bad.contains(index)) {
      throw Error(ErrorKind::kIo, "[test] " + sample_name(index) + " is bad");
    }
    const auto value = static_cast<uint8_t>(index % 256);
    out.image = grey_image(value, 4, 6);
    out.image.pixels[0] = static_cast<uint8_t>(255 - value);
    out.label = index;
  }

  [[nodiscard]] int64_t num_reads() const { return num_reads_.load(); }

  std::set<int64_t> bad;
  std::exception_ptr failure;
  bool delay = false;

 private:
  int64_t size_;
  mutable std::atomic<int64_t> num_reads_{0};
  std::vector<std::string> names_ = {"only"};
};

LoaderOptions options_for(int64_t batch) {
  LoaderOptions options;
  options.height = 4;
  options.width = 6;
  options.micro_batch = batch;
  options.global_batch = batch;
  options.seed = 21;
  options.num_threads = 3;
  return options;
}

// One sample as a batch holds it.
struct Drawn {
  int64_t position;
  int64_t label;
  std::vector<uint8_t> planes;

  bool operator==(const Drawn&) const = default;
};

std::vector<Drawn> drawn(const Batch& batch) {
  std::vector<Drawn> samples;
  const int64_t size = batch.images.size(0);
  const int64_t bytes = batch.images.numel() / size;
  for (int64_t i = 0; i < size; ++i) {
    const auto* planes = batch.images.const_data_ptr<uint8_t>() + i * bytes;
    samples.push_back({batch.sample_index.const_data_ptr<int64_t>()[i],
                       batch.labels.const_data_ptr<int64_t>()[i],
                       std::vector<uint8_t>(planes, planes + bytes)});
  }
  return samples;
}

std::vector<Drawn> draw(const Source& source, const LoaderOptions& options, int64_t num_batches) {
  Loader loader(source, options);
  std::vector<Drawn> samples;
  for (int64_t i = 0; i < num_batches; ++i) {
    const std::vector<Drawn> more = drawn(loader.next());
    samples.insert(samples.end(), more.begin(), more.end());
  }
  return samples;
}

TEST(LoaderTest, GivesThePlanesOfTheOrder) {
  const CountingSource source(50);
  const std::vector<Drawn> samples = draw(source, options_for(8), 20);
  EpochOrder order(50, 21);
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t index = order.at(static_cast<int64_t>(i));
    EXPECT_EQ(samples[i].position, static_cast<int64_t>(i));
    EXPECT_EQ(samples[i].label, index);
    std::vector<uint8_t> planes(size_t{3} * 4 * 6, static_cast<uint8_t>(index));
    planes[0] = static_cast<uint8_t>(255 - index);  // the red plane's first pixel
    EXPECT_EQ(samples[i].planes, planes);
  }
}

TEST(LoaderTest, StreamDependsOnNeitherThreadsNorQueueNorBatch) {
  CountingSource source(100);
  source.delay = true;
  source.bad = {3, 14, 15, 92};
  LoaderOptions options = options_for(12);
  options.random_flip = true;
  options.num_threads = 1;
  options.queue_depth = 1;
  const std::vector<Drawn> expected = draw(source, options, 20);
  for (const int64_t num_threads : {2, 7}) {
    for (const int64_t batch : {1, 8, 48}) {
      options.num_threads = num_threads;
      options.queue_depth = 3;
      options.micro_batch = batch;
      options.global_batch = batch;
      EXPECT_EQ(draw(source, options, 240 / batch), expected) << num_threads << ", " << batch;
    }
  }
}

TEST(LoaderTest, ResumesAnywhere) {
  const CountingSource source(30);
  LoaderOptions options = options_for(4);
  options.random_flip = true;
  const std::vector<Drawn> whole = draw(source, options, 20);
  for (const int64_t first : {1, 4, 29, 31, 63}) {
    options.first_position = first;
    const std::vector<Drawn> rest = draw(source, options, 4);
    EXPECT_EQ(rest, std::vector<Drawn>(whole.begin() + first, whole.begin() + first + 16)) << first;
  }
}

TEST(LoaderTest, RanksShareAGlobalBatch) {
  const CountingSource source(100);
  LoaderOptions options = options_for(24);
  options.random_flip = true;
  options.first_position = 5;
  const std::vector<Drawn> expected = draw(source, options, 3);
  std::vector<Drawn> joined(expected.size());
  options.num_ranks = 2;
  options.micro_batch = 4;  // 3 batches a step and rank
  for (const int64_t rank : {0, 1}) {
    options.rank = rank;
    for (Drawn& sample : draw(source, options, 9)) {
      const auto at = static_cast<size_t>(sample.position - 5);
      ASSERT_EQ(static_cast<int64_t>(at) % 24 / 12, rank);
      joined[at] = std::move(sample);
    }
  }
  EXPECT_EQ(joined, expected);
}

TEST(LoaderTest, FlipsHalfOfTheImages) {
  const CountingSource source(100);
  LoaderOptions options = options_for(50);
  options.random_flip = true;
  int64_t num_flipped = 0;
  for (const Drawn& sample : draw(source, options, 20)) {
    const auto marked = static_cast<uint8_t>(255 - sample.label);
    ASSERT_TRUE((sample.planes[0] == marked) != (sample.planes[5] == marked));
    num_flipped += sample.planes[5] == marked ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(num_flipped), 500.0, 60.0);  // 4 standard deviations
}

TEST(LoaderTest, CropsAsADM) {
  const ShapeSource source(3, 10, 40, 64);
  LoaderOptions options = options_for(1);
  options.height = 16;
  options.width = 16;
  Loader loader(source, options);
  const std::vector<Drawn> samples = drawn(loader.next());
  EpochOrder order(10, 21);
  Sample sample;
  source.read(order.at(0), sample);
  const io::Image cropped = io::center_crop(sample.image, 16, 16);
  for (size_t i = 0; i < samples[0].planes.size(); ++i) {
    ASSERT_EQ(samples[0].planes[i], cropped.pixels[(i % 256) * 3 + i / 256]) << i;
  }
}

TEST(LoaderTest, UsesItsBuffersAgain) {
  const CountingSource source(100);
  LoaderOptions options = options_for(8);
  options.queue_depth = 3;
  Loader loader(source, options);
  Batch batch;
  for (int i = 0; i < 200; ++i) {
    batch = loader.next();  // while the former one is held
  }
  constexpr int64_t kTensors = 4;  // images, labels, positions, sizes
  EXPECT_LE(loader.stats().num_buffers, kTensors * (3 + 2));
  EXPECT_EQ(loader.stats().num_batches, 200);
}

TEST(LoaderTest, NeverWritesIntoABatchThatIsHeld) {
  const CountingSource source(100);
  Loader loader(source, options_for(8));
  const at::Tensor image = loader.next().images[5];  // a view is enough
  const at::Tensor copy = image.clone();
  for (int i = 0; i < 50; ++i) {
    (void)loader.next();
  }
  EXPECT_TRUE(image.equal(copy));
}

TEST(LoaderTest, BoundsTheWorkAhead) {
  const CountingSource source(100);
  LoaderOptions options = options_for(5);
  options.queue_depth = 2;
  Loader loader(source, options);
  (void)loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(source.num_reads(), 3 * 5);
}

TEST(LoaderTest, StopsAtOnceWhateverItsState) {
  CountingSource source(100);
  source.delay = true;
  for (int i = 0; i < 20; ++i) {
    Loader loader(source, options_for(16));  // unread, half read, queue full
    for (int j = 0; j < i % 3; ++j) {
      (void)loader.next();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 * i));
  }
}

TEST(LoaderTest, ReplacesBadSamplesByTheNextOfTheOrder) {
  CountingSource source(40);
  source.bad = {7, 20};
  LoaderOptions options = options_for(20);
  Loader loader(source, options);
  EpochOrder order(40, 21);
  int64_t num_replaced = 0;
  for (int i = 0; i < 4; ++i) {  // two epochs
    for (const Drawn& sample : drawn(loader.next())) {
      const int64_t planned = order.at(sample.position);
      if (!source.bad.contains(planned)) {
        EXPECT_EQ(sample.label, planned);
        continue;
      }
      ++num_replaced;
      int64_t attempt = 1;
      while (source.bad.contains(order.replacement(sample.position, attempt))) {
        ++attempt;
      }
      EXPECT_EQ(sample.label, order.replacement(sample.position, attempt));
    }
  }
  EXPECT_EQ(num_replaced, 4);
  EXPECT_EQ(loader.stats().num_bad, 2);  // each is counted once
}

TEST(LoaderTest, StopsAboveTheLimitOfBadSamples) {
  CountingSource source(40);
  source.bad = {1, 2, 3, 4};
  LoaderOptions options = options_for(40);
  options.max_bad = 4;
  EXPECT_EQ(draw(source, options, 2).size(), 80U);
  options.max_bad = 3;
  const std::string message = error_of([&] { (void)draw(source, options, 2); });
  EXPECT_THAT(message, AllOf(HasSubstr("at most 3 of 40"), HasSubstr("got 4"), HasSubstr("is bad"),
                             HasSubstr("data.max_bad")));
  options.max_bad = -1;  // 1 %, at least 10
  EXPECT_EQ(draw(source, options, 2).size(), 80U);
}

TEST(LoaderTest, StopsWhenNothingCanBeRead) {
  CountingSource source(6);
  for (int64_t i = 0; i < 6; ++i) {
    source.bad.insert(i);
  }
  for (const int64_t num_threads : {1, 8}) {
    LoaderOptions options = options_for(6);
    options.num_threads = num_threads;
    Loader loader(source, options);
    EXPECT_THAT(error_of([&] { (void)loader.next(); }), HasSubstr("number"));
    EXPECT_THAT(error_of([&] { (void)loader.next(); }), HasSubstr("number"));  // again
  }
}

TEST(LoaderTest, ErrorsOfThreadsSurface) {
  CountingSource source(6);
  source.failure = std::make_exception_ptr(std::runtime_error("out of luck"));
  EXPECT_THAT(error_of([&] { (void)draw(source, options_for(2), 1); }), HasSubstr("out of luck"));
  source.failure = std::make_exception_ptr(Error(ErrorKind::kInternal, "a bug"));
  EXPECT_THAT(error_of([&] { (void)draw(source, options_for(2), 1); }), HasSubstr("a bug"));
}

TEST(LoaderTest, TrainsOnAFolderWithBadFiles) {
  const TemporaryFolder folder;
  const std::vector<std::byte> jpeg = fixture("photo.jpg");
  const std::vector<std::byte> png = grey_png(5, 64, 64);
  folder.write("a/cut.jpg", std::span(jpeg).first(jpeg.size() / 2));
  folder.write("a/cut.png", std::span(png).first(png.size() - 20));
  folder.write("a/good.jpg", jpeg);
  folder.write("a/text.png", "this is no image");
  folder.write("b/empty.webp", "");
  folder.write("b/good.webp", fixture("photo.webp"));
  const ClassFolder source(folder.path());
  Loader loader(source, options_for(6));
  for (int i = 0; i < 3; ++i) {
    for (const Drawn& sample : drawn(loader.next())) {
      EXPECT_THAT(sample.label, testing::AnyOf(0, 1));
      EXPECT_GT(sample.planes[10], 0);
    }
  }
  EXPECT_EQ(loader.stats().num_bad, 4);
}

TEST(LoaderTest, ImageWithoutPixelsIsABadSample) {
  class EmptyImages : public CountingSource {
   public:
    EmptyImages() : CountingSource(4) {}
    void read(int64_t /*index*/, Sample& out) const override { out.image = {0, 5, 3, {}}; }
  };
  const EmptyImages source;
  EXPECT_THAT(error_of([&] { (void)draw(source, options_for(2), 1); }),
              AllOf(HasSubstr("must have pixels"), HasSubstr("got 0 x 5"), HasSubstr("number")));
}

TEST(LoaderTest, StatisticsNameTheSlowestSample) {
  class OneSlow : public CountingSource {
   public:
    OneSlow() : CountingSource(20) {}
    void read(int64_t index, Sample& out) const override {
      if (index == 13) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      CountingSource::read(index, out);
    }
  };
  const OneSlow source;
  Loader loader(source, options_for(20));
  (void)loader.next();
  const LoaderStats stats = loader.stats();
  EXPECT_EQ(stats.slowest.name, "number 13");
  EXPECT_GE(stats.slowest.seconds, 0.1);
  EXPECT_GE(stats.wait_seconds, 0.05);
}

TEST(LoaderTest, RefusesOptionsThatDoNotFit) {
  const CountingSource source(10);
  const auto message = [&source](const auto& change) {
    LoaderOptions options = options_for(2);
    change(options);
    return error_of([&] { Loader loader(source, options); });
  };
  EXPECT_THAT(message([](LoaderOptions& o) { o.height = 0; }), HasSubstr("got 0 x 6"));
  EXPECT_THAT(message([](LoaderOptions& o) { o.global_batch = 3; }), HasSubstr("got 3"));
  EXPECT_THAT(message([](LoaderOptions& o) { o.micro_batch = 0; }), HasSubstr("micro batch (0)"));
  EXPECT_THAT(message([](LoaderOptions& o) { o.rank = 1; }), HasSubstr("got 1"));
  EXPECT_THAT(message([](LoaderOptions& o) { o.first_position = -1; }), HasSubstr("got -1"));
  EXPECT_THAT(message([](LoaderOptions& o) { o.queue_depth = 0; }), HasSubstr("got 0"));
  EXPECT_THAT(message([](LoaderOptions& o) { o.num_threads = -1; }), HasSubstr("got -1"));
  const CountingSource one(1);
  EXPECT_THAT(error_of([&] { Loader loader(one, options_for(1)); }), HasSubstr("at least 2"));
}

TEST(LoadSamplesTest, ReadsThoseAskedFor) {
  CountingSource source(20);
  source.bad = {4};
  const std::vector<int64_t> indices = {9, 4, 2};
  const std::vector<Drawn> samples = drawn(load_samples(source, indices, 4, 6));
  ASSERT_EQ(samples.size(), 2U);  // the bad one is left out
  EXPECT_EQ(samples[0].position, 9);
  EXPECT_EQ(samples[0].label, 9);
  EXPECT_EQ(samples[1].position, 2);
  EXPECT_EQ(samples[1].planes[1], 2);
  EXPECT_THAT(error_of([&] { (void)load_samples(source, indices, 4, 6, 0); }),
              HasSubstr("number 4 is bad"));
}

}  // namespace loader_test
}  // namespace kinora::data
