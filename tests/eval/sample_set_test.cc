// Sets of samples, their features, and statistics as files.

#include "kinora/eval/sample_set.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "kinora/device/host_bytes.h"
#include "kinora/eval/extract.h"
#include "kinora/eval/image_pairs.h"
#include "kinora/eval/statistics_file.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/io/npz.h"
#include "tests/error_of.h"
#include "tests/eval/network_files.h"
#include "tests/places.h"

namespace kinora::eval {
namespace sample_set_test {

using testing::HasSubstr;

namespace fs = std::filesystem;

class SampleSetTest : public testing::Test {
 protected:
  SampleSetTest() { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  /// An image of one grey, which is also returned as its pixels.
  void write_image(const std::string& name, int grey, int64_t height = 12,
                   int64_t width = 16) const {
    io::Image image;
    io::set_size(image, height, width);
    std::fill(image.pixels.begin(), image.pixels.end(), static_cast<uint8_t>(grey));
    fs::create_directories((folder_ / name).parent_path());
    io::write_png(folder_ / name, image);
  }
  [[nodiscard]] SampleSet open(const std::string& name,
                               const SampleSetOptions& options = {}) const {
    return SampleSet::open(folder_ / name, options);
  }
  [[nodiscard]] static std::vector<int64_t> labels_of(const SampleSet& set) {
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < set.size(); ++i) {
      labels.push_back(set.read(i).label);
    }
    return labels;
  }

  fs::path folder_ = fs::temp_directory_path() / ("kinora-sets-" + std::to_string(::getpid()));
};

TEST_F(SampleSetTest, ReadsWhatKinoraSampleWrites) {
  write_image("out/image-00000_class-3.png", 30);
  write_image("out/image-00001_class-12.png", 31);
  write_image("out/image-00002.png", 32);
  write_image("out/grid.png", 99);
  const SampleSet set = open("out");
  ASSERT_EQ(set.size(), 3);
  EXPECT_EQ(labels_of(set), (std::vector<int64_t>{3, 12, -1}));
  EXPECT_EQ(set.read(1).pixels.sizes(), at::IntArrayRef({3, 12, 16}));
  EXPECT_EQ(set.read(1).pixels[2][11][15].item<int>(), 31);
  EXPECT_EQ(open("out", {.limit = 2}).size(), 2);
  io::write_file_atomic(folder_ / "labels.json", R"({"image-00002.png": 7})");
  EXPECT_EQ(labels_of(open("out", {.labels = folder_ / "labels.json"})),
            (std::vector<int64_t>{3, 12, 7}));
  io::write_file_atomic(folder_ / "labels.json", R"({"image-00002.png": "cat"})");
  EXPECT_THAT(
      error_of(ErrorKind::kIo, [&] { return open("out", {.labels = folder_ / "labels.json"}); }),
      HasSubstr("a label must be a number"));
}

TEST_F(SampleSetTest, ClassFoldersSayClasses) {
  write_image("set/cat/0.png", 1);
  write_image("set/dog/0.png", 2);
  write_image("set/dog/1.png", 3);
  EXPECT_EQ(labels_of(open("set")), (std::vector<int64_t>{0, 1, 1}));
}

TEST_F(SampleSetTest, DamagedImagesAreNamed) {
  write_image("set/0.png", 1);
  io::write_file_atomic(folder_ / "set/1.png", "no picture");
  const SampleSet set = open("set");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return set.read(1); }), HasSubstr("set/1.png"));
}

TEST_F(SampleSetTest, ReadsImagesOfAdm) {
  const at::Tensor images = formula_pixels("adm", {5, 6, 7, 3});
  const std::array<int64_t, 5> labels = {4, 3, 2, 1, 0};
  const std::vector<io::NpzMember> members = {
      {"arr_0", DType::kU8, {5, 6, 7, 3}, device::bytes_of(images)},
      {"arr_1", DType::kI64, {5}, std::as_bytes(std::span(labels))}};
  io::write_npz(folder_ / "adm.npz", members);
  const SampleSet set = open("adm.npz");
  ASSERT_EQ(set.size(), 5);
  EXPECT_TRUE(set.read(3).pixels.equal(images[3].permute({2, 0, 1})));
  EXPECT_EQ(labels_of(set), (std::vector<int64_t>{4, 3, 2, 1, 0}));
  const std::vector<io::NpzMember> grey = {
      {"arr_0", DType::kU8, {15, 6, 7}, device::bytes_of(images)}};
  io::write_npz(folder_ / "adm.npz", grey);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return open("adm.npz"); }),
              HasSubstr("uint8 [N, H, W, 3], got U8 of 3 dims"));
}

TEST_F(SampleSetTest, ClipsAreFoldersOfFrames) {
  for (int i = 0; i < 6; ++i) {
    write_image("out/clip-00000/frame_000" + std::to_string(i) + ".png", 10 + i);
    write_image("out/clip-00001/frame_000" + std::to_string(i) + ".png", 20 + i);
  }
  write_image("out/grid.png", 99);
  const SampleSet set = open("out", {.frames = 4});
  ASSERT_EQ(set.size(), 2);
  const at::Tensor clip = set.read(1).pixels;
  ASSERT_EQ(clip.sizes(), at::IntArrayRef({3, 4, 12, 16}));
  for (int64_t t = 0; t < 4; ++t) {  // the middle four of six
    EXPECT_EQ(clip[0][t][0][0].item<int>(), 21 + t);
    EXPECT_EQ(clip[2][t][11][15].item<int>(), 21 + t);
  }
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return open("out", {.frames = 7}).read(0); }),
              HasSubstr("clip-00000 must have at least 7 frames, got 6"));
}

TEST_F(SampleSetTest, FeaturesAreInTheSetsOrder) {
  for (int i = 0; i < 7; ++i) {
    write_image("set/" + std::to_string(i) + ".png", 10 * i);
  }
  const auto network = open_network({.script = source_path("tests/eval/data/script.pt")}, at::kCPU);
  std::vector<int64_t> progress;
  const FeatureTable table =
      extract(open("set"), *network, comm::Group(),
              {.batch = 3, .progress = [&](int64_t done, int64_t) { progress.push_back(done); }});
  EXPECT_EQ(progress, (std::vector<int64_t>{0, 3, 6, 7}));
  EXPECT_TRUE(table.features.select(1, 0).allclose(at::arange(7, at::kFloat) * 10.0));
  EXPECT_TRUE(table.logits.select(1, 2).allclose(at::arange(7, at::kFloat) * 10.0));
  // Added up batch by batch, the same in every bit as of the whole table.
  FeatureStatistics whole(table.features.size(1));
  whole.add(table.features);
  const Gaussian kept = whole.gaussian();
  const Gaussian added = extract_gaussian(open("set"), *network, comm::Group(), {.batch = 3});
  EXPECT_TRUE(at::equal(added.mean, kept.mean));
  EXPECT_TRUE(at::equal(added.covariance, kept.covariance));
  EXPECT_EQ(added.count, 7);
  write_image("set/8.png", 1, 12, 20);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] { return extract(open("set"), *network, comm::Group(), {}); }),
              HasSubstr("8.png"));
}

TEST_F(SampleSetTest, PairsAreFoundByName) {
  write_image("a/x/0.png", 100);
  write_image("b/x/0.png", 110);
  write_image("a/1.png", 50);
  write_image("b/1.png", 50);
  write_image("a/grid.png", 9);  // is none
  const PairScores scores = score_pairs(folder_ / "a", folder_ / "b");
  EXPECT_EQ(scores.num_pairs, 2);
  EXPECT_EQ(scores.num_equal, 1);
  EXPECT_NEAR(scores.psnr, 28.1308036, 1e-6);  // 20 log10(255 / 10)
  const auto refusal = [&](ErrorKind kind) {
    return error_of(kind, [&] { return score_pairs(folder_ / "a", folder_ / "b"); });
  };
  write_image("b/2.png", 50);
  EXPECT_THAT(refusal(ErrorKind::kConfig), HasSubstr("b/2.png must have a partner"));
  write_image("a/2.png", 50, 20, 20);
  EXPECT_THAT(refusal(ErrorKind::kShape), HasSubstr("a/2.png"));
}

TEST_F(SampleSetTest, StatisticsGoThroughFiles) {
  const Gaussian gaussian{
      .mean = at::arange(3, at::kDouble), .covariance = at::eye(3, at::kDouble) * 2.0, .count = 17};
  write_statistics(folder_ / "stats.npz", gaussian, "some network");
  const auto read = read_statistics(io::NpzFile::open(folder_ / "stats.npz"));
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->gaussian.mean.equal(gaussian.mean));
  EXPECT_TRUE(read->gaussian.covariance.equal(gaussian.covariance));
  EXPECT_EQ(read->gaussian.count, 17);
  EXPECT_EQ(read->network, "some network");
  EXPECT_FALSE(read->spatial.has_value());
  const at::Tensor mean = at::arange(2, at::kDouble);
  const at::Tensor covariance = at::eye(3, at::kDouble);
  const std::vector<io::NpzMember> wrong = {
      {"mu", DType::kF64, {2}, device::bytes_of(mean)},
      {"sigma", DType::kF64, {3, 3}, device::bytes_of(covariance)}};
  io::write_npz(folder_ / "wrong.npz", wrong);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] { return read_statistics(io::NpzFile::open(folder_ / "wrong.npz")); }),
              HasSubstr("got [2] and [3, 3]"));
}

}  // namespace sample_set_test
}  // namespace kinora::eval
