// Caches of latents with what lies beside samples: pictures before they were changed, masks,
// references and control pictures. They hold, batch for batch, what a run on the pictures encodes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>

#include <fstream>
#include <span>
#include <vector>

#include "kinora/data/data_config.h"
#include "kinora/data/latent_cache.h"
#include "kinora/data/loader.h"
#include "kinora/data/normalise.h"
#include "kinora/io/image.h"
#include "kinora/io/safetensors.h"
#include "kinora/pipelines/encode.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/pipelines/cache_content.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::pipelines {
namespace cached_pictures_test {

namespace fs = std::filesystem;
using data::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kPictures = 21;
constexpr int64_t kReferences = 2;

/// A picture that differs from its mirror and from those of other numbers.
void write_picture(const fs::path& path, int64_t number, int64_t height, int64_t width) {
  io::Image image;
  io::set_size(image, height, width);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] =
        static_cast<uint8_t>((i * 7 + static_cast<size_t>(number) * 31 + i / 50) % 256);
  }
  io::write_png(path, image);
}

/// A mask with some of each grey.
void write_mask(const fs::path& path, int64_t number, int64_t height, int64_t width) {
  io::Image image;
  io::set_size(image, height, width);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = static_cast<uint8_t>((i / 3 + static_cast<size_t>(number) * 20) % 256);
  }
  io::write_png(path, image);
}

/// Pictures of three shapes with one before each, a mask, a control picture, and 0, 1 or 2
/// references of other sizes.
class CachedPicturesTest : public testing::Test {
 protected:
  CachedPicturesTest() {
    const fs::path set = folder_.path() / "set";
    fs::create_directories(set);
    for (int64_t i = 0; i < kPictures; ++i) {
      const int64_t height = i % 3 == 0 ? 18 : 34;
      const int64_t width = i % 3 == 1 ? 52 : 36;
      const std::string name = std::to_string(100 + i);
      write_picture(set / (name + ".png"), i, height, width);
      write_picture(set / (name + ".before.png"), i + 40, height, width);
      write_mask(set / (name + ".mask.png"), i, height, width);
      write_picture(set / (name + ".control.png"), i + 60, height, width);
      for (int64_t k = 1; k <= i % 3; ++k) {
        write_picture(set / (name + ".reference" + (k > 1 ? std::to_string(k) : "") + ".png"),
                      i + 80 + k, 20 + i, 30);
      }
    }
    options_.out = folder_.path() / "cache";
    options_.data.source = data::SourceKind::kCaptions;
    options_.data.path = {set.string()};
    options_.data.height = 16;
    options_.data.width = 24;
    options_.data.threads = 2;
    options_.data.control = true;
    options_.data.before = true;
    options_.data.mask = data::MaskKind::kFile;
    options_.data.references = kReferences;
    options_.autoencoder = "patches";
    options_.dtype = DType::kF32;
    options_.block_seconds = 0.0;  // every batch is a block
  }

  EncodeResult encode() {
    return pipelines::encode(*data::open_source(options_.data), encoder_, options_, {});
  }
  /// As a run on the cache is told.
  [[nodiscard]] data::DataConfig cached() const {
    data::DataConfig config = options_.data;
    config.source = data::SourceKind::kLatents;
    config.path = {options_.out.string()};
    return config;
  }
  [[nodiscard]] std::string refusal(ErrorKind kind, const data::DataConfig& config) const {
    return error_of(kind, [&] { (void)data::open_source(config); });
  }
  /// The file of the cache whose name has that end.
  [[nodiscard]] fs::path file(const std::string& end) const {
    for (const auto& entry : fs::recursive_directory_iterator(options_.out)) {
      if (entry.path().string().ends_with(end)) {
        return entry.path();
      }
    }
    return {};
  }

  [[nodiscard]] at::Tensor stored(const at::Tensor& latents) const {
    const at::ScalarType type = options_.dtype == DType::kF32   ? at::kFloat
                                : options_.dtype == DType::kF16 ? at::kHalf
                                                                : at::kBFloat16;
    return latents.to(type).to(at::kFloat);
  }

  /// Whether batches of the cache are those of the pictures, encoded.
  void expect_same_batches(int64_t batches) {
    const auto pictures = data::open_source(options_.data);
    const auto latents = data::open_source(cached());
    data::LoaderOptions loading = data::loader_options(options_.data);
    loading.micro_batch = 5;
    loading.global_batch = 5;
    loading.seed = 3;
    data::Loader of_pictures(*pictures, loading);
    data::Loader of_latents(*latents, loading);
    for (int64_t i = 0; i < batches; ++i) {
      const data::Batch wanted = of_pictures.next();
      const data::Batch got = of_latents.next();
      ASSERT_TRUE(at::equal(got.sample_index, wanted.sample_index));
      EXPECT_TRUE(at::equal(got.images, stored(encoder_.encode(wanted.images).mean))) << i;
      ASSERT_EQ(got.control.defined(), wanted.control.defined());
      EXPECT_TRUE(!got.control.defined() || at::equal(got.control, wanted.control)) << i;
      ASSERT_EQ(got.before.defined(), wanted.before.defined());
      EXPECT_TRUE(!got.before.defined() ||
                  at::equal(got.before, stored(encoder_.encode(wanted.before).mean)))
          << i;
      ASSERT_EQ(got.mask.defined(), wanted.mask.defined());
      if (got.mask.defined()) {
        EXPECT_TRUE(at::equal(got.mask, wanted.mask)) << i;
        const at::Tensor left =
            data::to_float(wanted.images, at::kCPU) * (1.0 - data::to_mask(wanted.mask, at::kCPU));
        EXPECT_TRUE(at::equal(got.masked, stored(encoder_.encode(left).mean))) << i;
      }
      EXPECT_TRUE(at::equal(got.num_references, wanted.num_references)) << i;
      ASSERT_EQ(got.references.size(2), wanted.references.size(2));
      for (int64_t b = 0; b < wanted.labels.numel(); ++b) {
        const int64_t count = wanted.num_references[b].item<int64_t>();
        if (count > 0) {
          const at::Tensor own = wanted.references[b].narrow(1, 0, count).transpose(0, 1);
          EXPECT_TRUE(at::equal(got.references[b].narrow(1, 0, count).transpose(0, 1),
                                stored(encoder_.encode(own).mean)))
              << i;
        }
      }
    }
  }

  TemporaryFolder folder_;
  PatchAutoencoder autoencoder_;
  const LatentEncoder encoder_{autoencoder_, at::kCPU, 3};
  EncodeOptions options_;
};

TEST_F(CachedPicturesTest, HoldWhatTheAutoencoderGivesInEachTypeAndMirrored) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool mirrored : {false, true}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (mirrored ? " mirrored" : ""));
      options_.dtype = dtype;
      options_.mirrored = mirrored;
      options_.data.flip = mirrored;
      EXPECT_EQ(encode().samples, kPictures);
      expect_same_batches(12);
    }
  }
}

TEST_F(CachedPicturesTest, OfBucketsHaveTheSizeOfTheirSample) {
  options_.mirrored = true;
  options_.data.flip = true;
  options_.data.max_bad = 0;
  options_.data.buckets = {{"32px", 1, {0.5, 4.0}}, {"16px", 1, {1.0, 3.0}}};
  options_.data.bucket_ratios = data::AspectRatios::kOpenSora2;
  options_.data.bucket_multiple = 8;
  options_.data.bucket_batches = 2;
  EXPECT_TRUE(encode().complete);
  EXPECT_GT(data::LatentCache(options_.out).manifest().sizes.size(), 2U);
  expect_same_batches(24);
}

TEST_F(CachedPicturesTest, OfClipsAreThoseOfPictures) {
  options_.data.source = data::SourceKind::kMovingShapes;
  options_.data.path.clear();
  options_.data.control = false;
  options_.data.before = false;
  options_.data.mask = data::MaskKind::kNone;
  options_.data.count = 20;
  options_.data.frames = 4;
  encode();
  expect_same_batches(8);
  EXPECT_EQ(io::SafetensorsFile::open(file("part-00000.beside.safetensors")).find("beside")->shape,
            (std::vector<int64_t>{2, 2, 3, 4, 6}));
}

TEST_F(CachedPicturesTest, GoOnWhereTheyWereStoppedAndMendWhatIsDamaged) {
  encode();
  const auto whole = content_of(options_.out);
  const auto expect_mended = [&](const std::string& what) {
    SCOPED_TRACE(what);
    fs::remove(options_.out / "manifest.json");
    const int64_t computed = encode().computed;
    EXPECT_GT(computed, 0);
    EXPECT_LT(computed, kPictures);
    EXPECT_EQ(content_of(options_.out), whole);
  };
  for (const char* const end : {"part-00000.beside.safetensors", "part-00000.masks.safetensors",
                                "part-00000.control.safetensors"}) {
    SCOPED_TRACE(end);
    const fs::path beside = file(end);
    fs::resize_file(beside, fs::file_size(beside) - 1);
    expect_mended("cut off");
    fs::remove(beside);
    expect_mended("lost");
    std::fstream bytes(beside, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-3, std::ios::end);
    bytes.put('\x7f');
    bytes.close();
    testing::internal::CaptureStderr();
    expect_mended("damaged");
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(beside.string()), HasSubstr("is damaged")));
    EXPECT_EQ(encode().computed, 0);
  }
}

TEST_F(CachedPicturesTest, OtherPicturesBesideAreComputedAnew) {
  encode();
  options_.data.before = false;
  options_.data.mask = data::MaskKind::kNone;
  testing::internal::CaptureStderr();
  EXPECT_EQ(encode().computed, kPictures);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("beside was means of before, masked, 2 references and is now means of 2 "
                        "references"));
  expect_same_batches(4);
}

// Caches of before control pictures were kept: data.control=true changed their key alone.
TEST_F(CachedPicturesTest, ACacheOfBeforeLacksControlPicturesAndIsMadeAnew) {
  data::DataConfig without = options_.data;
  without.control = false;
  (void)pipelines::encode(*data::open_source(without), encoder_, options_, {});
  EXPECT_TRUE(file(".control.safetensors").empty());
  EXPECT_THAT(refusal(ErrorKind::kConfig, cached()),
              AllOf(HasSubstr("holds no control pictures (data.control)"),
                    HasSubstr("kinora data encode with data.control=true")));
  testing::internal::CaptureStderr();
  EXPECT_EQ(encode().computed, kPictures);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("control is new"));
  expect_same_batches(4);
}

TEST_F(CachedPicturesTest, WhatACacheLacksIsSaidAndWhatNobodyReadsIsNot) {
  options_.data.control = false;
  options_.data.before = false;
  options_.data.mask = data::MaskKind::kNone;
  encode();
  data::DataConfig config = cached();
  config.control = true;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config),
              AllOf(HasSubstr("holds no control pictures (data.control)"),
                    HasSubstr("kinora data encode with data.control=true")));
  config = cached();
  config.mask = data::MaskKind::kFile;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config),
              AllOf(HasSubstr("holds no masks (data.mask)"),
                    HasSubstr("kinora data encode with data.mask=true")));
  config = cached();
  config.before = true;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config),
              AllOf(HasSubstr("holds no latents of pictures before they were changed"),
                    HasSubstr("kinora data encode with data.before=true")));
  config = cached();
  config.references = 3;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config),
              AllOf(HasSubstr("up to 2 references a sample, and data.references is 3"),
                    HasSubstr("kinora data encode with data.references=3")));
  config.references = 0;
  const auto plain = data::open_source(config);
  EXPECT_FALSE(data::load_samples(*plain, std::vector<int64_t>{0}, {.height = 16, .width = 24}, 0)
                   .references.defined());

  options_.data.references = 0;  // as caches were before they held such
  encode();
  EXPECT_TRUE(file(".beside.safetensors").empty());
  config.references = 1;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config), HasSubstr("holds latents of no references"));

  config.references = 0;
  config.path = {file("part-00000.safetensors").string()};
  for (bool data::DataConfig::*const asked :
       {&data::DataConfig::before, &data::DataConfig::control}) {
    config.*asked = true;
    EXPECT_THAT(refusal(ErrorKind::kConfig, config),
                HasSubstr("files of latents hold no pictures beside these"));
    config.*asked = false;
  }
}

TEST_F(CachedPicturesTest, PixelsThatNobodyAsksForAreNotRead) {
  encode();
  for (const auto& entry : fs::recursive_directory_iterator(options_.out)) {
    const std::string name = entry.path().string();
    if (name.ends_with(".control.safetensors") || name.ends_with(".masks.safetensors")) {
      fs::resize_file(entry.path(), 5);
    }
  }
  data::DataConfig config = cached();
  EXPECT_THAT(refusal(ErrorKind::kIo, config), HasSubstr("part-00000.masks.safetensors"));
  config.mask = data::MaskKind::kNone;
  EXPECT_THAT(refusal(ErrorKind::kIo, config), HasSubstr("part-00000.control.safetensors"));
  config.control = false;
  const auto source = data::open_source(config);
  const data::Batch batch =
      data::load_samples(*source, std::vector<int64_t>{0, 1}, data::sample_size(config), 0);
  EXPECT_FALSE(batch.control.defined() || batch.mask.defined());
  EXPECT_TRUE(batch.before.defined());
}

TEST_F(CachedPicturesTest, PixelsAreOfTheSizeOfTheCache) {
  encode();
  data::DataConfig config = cached();
  config.width = 32;
  config.control = false;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config),
              HasSubstr("holds masks of 16 x 24 pixels, and data.height and width are 16 x 32"));
  config.control = true;
  config.mask = data::MaskKind::kNone;
  EXPECT_THAT(refusal(ErrorKind::kConfig, config),
              HasSubstr("holds control pictures of 16 x 24 pixels, and data.height and width are "
                        "16 x 32"));
}

TEST_F(CachedPicturesTest, DamagedFilesAreRefused) {
  encode();
  const fs::path beside = file("part-00000.beside.safetensors");
  const auto shape = io::SafetensorsFile::open(beside).find("beside")->shape;
  EXPECT_EQ(shape, (std::vector<int64_t>{2, 4, 3, 4, 6}));
  const std::vector<float> values(static_cast<size_t>(2 * 4 * 3 * 4 * 6));
  const auto write = [&](const std::string& name, const std::vector<int64_t>& as) {
    io::write_safetensors(beside, std::vector<io::SafetensorsTensor>{
                                      {name, DType::kF32, as, std::as_bytes(std::span(values))}});
  };
  const auto expect_refused = [&](const auto& message) {
    EXPECT_THAT(refusal(ErrorKind::kIo, cached()), message);
  };
  write("beside", {2, 4, 3, 6, 4});
  expect_refused(AllOf(HasSubstr("must hold beside F32 [2, 4, 3, 4, 6] as the manifest says"),
                       HasSubstr("got [2, 4, 3, 6, 4]")));
  write("beside", {1, 4, 3, 8, 6});
  expect_refused(HasSubstr("got [1, 4, 3, 8, 6]"));
  write("other", shape);
  expect_refused(HasSubstr("got none"));
  fs::remove(beside);
  expect_refused(HasSubstr("part-00000.beside.safetensors"));
  write("beside", shape);
  EXPECT_NO_THROW((void)data::open_source(cached()));

  for (const auto& [name, channels] : {std::pair{"masks", 1}, {"control", 3}}) {
    SCOPED_TRACE(name);
    const fs::path pixels = file("part-00000." + std::string(name) + ".safetensors");
    const auto write_pixels = [&](const std::string& tensor, DType dtype,
                                  const std::vector<int64_t>& as) {
      auto bytes = static_cast<int64_t>(size_of(dtype));
      for (const int64_t dim : as) {
        bytes *= dim;
      }
      const std::vector<std::byte> zeros(static_cast<size_t>(bytes));
      io::write_safetensors(pixels, std::vector<io::SafetensorsTensor>{{tensor, dtype, as, zeros}});
    };
    const std::string wanted = "must hold " + std::string(name) + " U8 [2, " +
                               std::to_string(channels) + ", 16, 24] as the manifest says";
    write_pixels(name, DType::kU8, {2, channels, 24, 16});
    expect_refused(
        AllOf(HasSubstr(wanted), HasSubstr("got [2, " + std::to_string(channels) + ", 24, 16]")));
    write_pixels(name, DType::kU8, {2, 4 - channels, 16, 24});
    expect_refused(HasSubstr(wanted));
    write_pixels(name, DType::kU8, {1, channels, 16, 24});
    expect_refused(HasSubstr(wanted));
    write_pixels(name, DType::kF32, {2, channels, 16, 24});
    expect_refused(HasSubstr(wanted));
    write_pixels("other", DType::kU8, {2, channels, 16, 24});
    expect_refused(AllOf(HasSubstr(wanted), HasSubstr("got none")));
    write_pixels(name, DType::kU8, {2, channels, 16, 24});
    EXPECT_NO_THROW((void)data::open_source(cached()));
    fs::resize_file(pixels, fs::file_size(pixels) - 1);
    expect_refused(HasSubstr(pixels.string()));
    write_pixels(name, DType::kU8, {2, channels, 16, 24});
  }

  std::vector<data::CachedSample> samples(kPictures);
  data::write_samples(file("samples.safetensors"), samples);
  expect_refused(HasSubstr("must hold num_references I64 [21]"));
  samples[4].num_references = kReferences + 1;
  data::write_samples(file("samples.safetensors"), samples, /*with_references=*/true);
  expect_refused(HasSubstr("num_references must be from 0 to 2, got 3 at 4"));
  samples[4].num_references = -1;
  data::write_samples(file("samples.safetensors"), samples, /*with_references=*/true);
  expect_refused(HasSubstr("got -1 at 4"));

  std::string manifest = content_of(options_.out).at("manifest.json");
  const auto with = [&](const std::string& references) {
    std::string text = manifest;
    text.replace(text.find("\"references\": 2"), 15, "\"references\": " + references);
    std::ofstream(options_.out / "manifest.json") << text;
  };
  with("17");
  expect_refused(HasSubstr("references must be from 0 to 16, got 17"));
  with("\"two\"");
  expect_refused(HasSubstr("manifest.json"));
  with("2, \"control\": 1");
  expect_refused(HasSubstr("manifest.json"));
}

TEST_F(CachedPicturesTest, SamplesWithBrokenPicturesBesideAreLeftOut) {
  folder_.write("set/105.reference.png", std::string("no picture"));
  for (const char* const name : {"set/102.before.png", "set/103.before.png"}) {
    folder_.write(name, std::string("no picture"));  // the whole of a part
  }
  folder_.write("set/107.control.png", std::string("no picture"));
  const EncodeResult result = encode();
  EXPECT_EQ(result.samples, kPictures - 4);
  EXPECT_EQ(result.left_out, 4);
  EXPECT_EQ(encode().computed, 0);
}

}  // namespace cached_pictures_test
}  // namespace kinora::pipelines
