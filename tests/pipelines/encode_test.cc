#include "kinora/pipelines/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include "kinora/core/child_process.h"
#include "kinora/data/latent_cache.h"
#include "kinora/data/loader.h"
#include "kinora/data/ordered_reader.h"
#include "kinora/io/file_lock.h"
#include "kinora/io/safetensors.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/pipelines/cache_content.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::pipelines {
namespace encode_test {

using data::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

/// Options for generated pictures, or what else `data` says.
EncodeOptions options_for(const fs::path& out, int64_t count = 50) {
  EncodeOptions options;
  options.out = out;
  options.data.count = count;
  options.data.height = 16;
  options.data.width = 24;
  options.data.threads = 2;
  options.autoencoder = "patches";
  options.dtype = DType::kF32;
  options.block_seconds = 0.0;  // every batch is a block
  return options;
}

EncodeResult encode_with(const EncodeOptions& options, const comm::Group& world = {},
                         int64_t batch = 3, bool variational = true) {
  PatchAutoencoder autoencoder(variational);
  const LatentEncoder encoder(autoencoder, at::kCPU, batch);
  return encode(*data::open_source(options.data), encoder, options, world);
}

/// The first file of latents.
fs::path first_part(const fs::path& cache) {
  const auto manifest = data::read_manifest(cache);
  return cache / data::folder_of(manifest->key) / manifest->parts.front().file;
}

void damage(const fs::path& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(offset);
  file.put(byte);
}

/// What is said on standard error meanwhile.
template <typename Call>
std::string said_by(const Call& call) {
  testing::internal::CaptureStderr();
  call();
  return testing::internal::GetCapturedStderr();
}

TEST(EncodeTest, TheCacheHoldsWhatTheAutoencoderGives) {
  const TemporaryFolder folder;
  EncodeOptions options = options_for(folder.path());
  options.mirrored = true;
  const EncodeResult result = encode_with(options);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.samples, 50);
  EXPECT_EQ(result.left_out, 0);

  const auto source = data::open_source(options.data);
  const data::LatentCache cache(folder.path());
  EXPECT_EQ(cache.size(), 50);
  EXPECT_EQ(cache.class_names(), source->class_names());
  EXPECT_EQ(cache.latent_shape(), (data::SampleShape{3, 4, 6, 16, 24}));
  EXPECT_TRUE(cache.latent_parts().std);
  EXPECT_TRUE(cache.latent_parts().mirrored);
  PatchAutoencoder autoencoder;
  data::BadSamples bad(*source, /*limit=*/0);
  data::OrderedReader reader(*source, data::sample_size(options.data), 50, 1, bad, false);
  const at::Tensor pixels = reader.read(0, 50).batch.images.to(at::kFloat).div(127.5).sub(1.0);
  const models::LatentMoments plain = autoencoder.encode(pixels);
  const models::LatentMoments mirrored = autoencoder.encode(pixels.flip({-1}));
  data::Sample sample;
  data::Sample original;
  for (int64_t i = 0; i < cache.size(); ++i) {
    cache.read(i, sample);
    source->read(i, original);
    EXPECT_EQ(sample.label, original.label);
    EXPECT_EQ(sample.caption, original.caption);
    EXPECT_EQ(cache.sample_name(i), source->sample_name(i));
    const auto is = [&](const data::StoredValues& values, const at::Tensor& wanted) {
      const at::Tensor row = wanted[i].contiguous();
      return values.bytes.size() == row.nbytes() &&
             std::memcmp(values.bytes.data(), row.const_data_ptr(), row.nbytes()) == 0;
    };
    EXPECT_TRUE(is(sample.latent.mean, plain.mean)) << i;
    EXPECT_TRUE(is(sample.latent.std, plain.std)) << i;
    EXPECT_TRUE(is(sample.mirrored.mean, mirrored.mean)) << i;
    EXPECT_TRUE(is(sample.mirrored.std, mirrored.std)) << i;
  }
}

TEST(EncodeTest, OfAutoencodersWithoutDeviationsTheMeanIsKept) {
  const TemporaryFolder folder;
  EncodeOptions options = options_for(folder.path());
  options.dtype = DType::kBF16;
  (void)encode_with(options, {}, 8, /*variational=*/false);
  const data::LatentCache cache(folder.path());
  EXPECT_FALSE(cache.latent_parts().std);
  EXPECT_EQ(io::SafetensorsFile::open(first_part(folder.path())).find("moments")->shape,
            (std::vector<int64_t>{4, 1, 3, 4, 6}));
}

TEST(EncodeTest, MeanOnlyLeavesTheDeviationsOut) {
  const TemporaryFolder folder;
  EncodeOptions options = options_for(folder.path());
  options.std = false;
  (void)encode_with(options);
  EXPECT_FALSE(data::LatentCache(folder.path()).latent_parts().std);
}

TEST(EncodeTest, ClipsKeepTheirFramesAndFps) {
  const TemporaryFolder folder;
  EncodeOptions options = options_for(folder.path(), 20);
  options.data.source = data::SourceKind::kMovingShapes;
  options.data.frames = 4;
  options.data.fps = 6.0;
  (void)encode_with(options);
  const data::LatentCache cache(folder.path());
  EXPECT_TRUE(cache.is_video());
  data::Sample sample;
  cache.read(19, sample);
  EXPECT_EQ(sample.num_frames, 4);
  EXPECT_EQ(sample.fps, 6.0F);
  EXPECT_THAT(sample.caption, HasSubstr("moving"));
  data::DataConfig config;
  config.source = data::SourceKind::kLatents;
  config.path = {folder.path().string()};
  config.frames = 5;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)data::open_source(config); }),
              AllOf(HasSubstr("at least 5 frames"), HasSubstr("got 4")));
}

TEST(EncodeTest, ClipsOfAutoencodersThatCompressTimeStayWhole) {
  const TemporaryFolder folder;
  EncodeOptions options = options_for(folder.path(), 20);
  options.data.source = data::SourceKind::kMovingShapes;
  options.data.frames = 4;
  PatchAutoencoder autoencoder(true, /*frame_compression=*/4);
  (void)encode(*data::open_source(options.data), LatentEncoder(autoencoder, at::kCPU, 8), options,
               {});
  data::DataConfig config;
  config.source = data::SourceKind::kLatents;
  config.path = {folder.path().string()};
  config.frames = 3;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)data::open_source(config); }),
              HasSubstr("data.frames must be 4"));
  config.frames = 4;
  EXPECT_NO_THROW((void)data::open_source(config));
}

TEST(EncodeTest, TheSourceOfATrainingRunReadsTheFolder) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  data::DataConfig config;
  config.source = data::SourceKind::kLatents;
  config.path = {folder.path().string()};
  const auto source = data::open_source(config);
  data::LoaderOptions loading = data::loader_options(config);
  loading.micro_batch = 5;
  loading.global_batch = 5;
  data::Loader loader(*source, loading);
  const data::Batch batch = loader.next();
  EXPECT_EQ(batch.images.sizes(), (at::IntArrayRef{5, 3, 4, 6}));
  EXPECT_EQ(batch.latent_std.sizes(), (at::IntArrayRef{5, 3, 4, 6}));
  EXPECT_GT(batch.latent_std.min().item<float>(), 0.0F);
}

TEST(EncodeTest, ASecondCallFindsNothingToDo) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  const auto before = content_of(folder.path());
  const EncodeResult again = encode_with(options_for(folder.path()));
  EXPECT_EQ(again.computed, 0);
  EXPECT_EQ(again.samples, 50);
  EXPECT_EQ(content_of(folder.path()), before);
}

TEST(EncodeTest, AnotherKeyIsComputedAnewAndSaysWhy) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  const fs::path old = first_part(folder.path()).parent_path();
  EncodeOptions options = options_for(folder.path());
  options.autoencoder = "other patches";
  options.data.height = 32;
  const std::string said = said_by([&] { EXPECT_EQ(encode_with(options).computed, 50); });
  EXPECT_THAT(said,
              AllOf(HasSubstr("autoencoder was patches and is now other patches"),
                    HasSubstr("data.height was 16 and is now 32"), Not(HasSubstr("data.width"))));
  EXPECT_FALSE(fs::exists(old));
  EXPECT_EQ(data::LatentCache(folder.path()).latent_shape()->height, 8);
}

TEST(EncodeTest, WhatOnlyTrainingReadsIsNotInTheKey) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  EncodeOptions options = options_for(folder.path());
  options.data.threads = 1;
  options.data.validation = 8;
  options.data.flip = true;
  EXPECT_EQ(encode_with(options).computed, 0);
}

TEST(EncodeTest, DamageIsFoundAndMended) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  const auto whole = content_of(folder.path());
  const fs::path part = first_part(folder.path());
  damage(part, static_cast<int64_t>(fs::file_size(part)) - 5);  // in the second block of two
  const std::string said =
      said_by([&] { EXPECT_EQ(encode_with(options_for(folder.path())).computed, 1); });
  EXPECT_THAT(said, AllOf(HasSubstr(part.string()), HasSubstr("samples 3 to 3 is damaged")));
  EXPECT_EQ(content_of(folder.path()), whole);
  fs::resize_file(part, fs::file_size(part) - 1);
  EXPECT_EQ(encode_with(options_for(folder.path())).computed, 1);
  EXPECT_EQ(content_of(folder.path()), whole);
}

/// Class folders of grey pictures, one of which is none.
EncodeOptions options_with_a_bad_file(const TemporaryFolder& folder) {
  for (int i = 0; i < 20; ++i) {
    folder.write("data/class/" + std::to_string(10 + i) + ".png",
                 data::grey_png(static_cast<uint8_t>(10 * i)));
  }
  folder.write("data/class/15.png", "no picture");
  EncodeOptions options = options_for(folder.path() / "cache");
  options.data.source = data::SourceKind::kFolder;
  options.data.path = {(folder.path() / "data").string()};
  options.data.height = 8;
  options.data.width = 8;
  return options;
}

TEST(EncodeTest, BadFilesAreNamedAndLeftOut) {
  const TemporaryFolder folder;
  const EncodeOptions options = options_with_a_bad_file(folder);
  EncodeResult result;
  const std::string said = said_by([&] { result = encode_with(options); });
  EXPECT_THAT(said, HasSubstr("15.png"));
  EXPECT_EQ(result.samples, 19);
  EXPECT_EQ(result.left_out, 1);
  const data::LatentCache cache(options.out);
  data::Sample sample;
  const at::Tensor grey = at::full({1, 3, 8, 8}, 190.0).div(127.5).sub(1.0);
  const at::Tensor mean = PatchAutoencoder().encode(grey).mean.contiguous();
  cache.read(18, sample);  // paired by name, not by number: 18 is what was 19
  EXPECT_THAT(cache.sample_name(18), HasSubstr("29.png"));
  EXPECT_EQ(std::memcmp(sample.latent.mean.bytes.data(), mean.const_data_ptr(), mean.nbytes()), 0);
}

TEST(EncodeTest, TooManyBadFilesLeaveTheOldCache) {
  const TemporaryFolder folder;
  EncodeOptions options = options_with_a_bad_file(folder);
  (void)encode_with(options);
  const auto before = content_of(options.out);
  options.data.max_bad = 0;
  options.data.height = 16;
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { (void)encode_with(options); }),
              AllOf(HasSubstr("15.png"), HasSubstr("data.max_bad")));
  const auto after = content_of(options.out);
  for (const auto& [name, content] : before) {
    EXPECT_EQ(after.at(name), content) << name;
  }
  EXPECT_EQ(data::LatentCache(options.out).size(), 19);
}

TEST(EncodeTest, AFullDiskLeavesTheOldCacheAndWholeBlocks) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  EncodeOptions options = options_for(folder.path());
  options.data.height = 160;
  options.data.width = 240;
  // A file may not grow to two blocks: the system refuses as it does when the disk is full.
  const struct sigaction ignore = {{SIG_IGN}, {}, 0, nullptr};
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGXFSZ, &ignore, &before), 0);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {.rlim_cur = 200'000, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string said = error_of(ErrorKind::kIo, [&] { (void)encode_with(options); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_EQ(::sigaction(SIGXFSZ, &before, nullptr), 0);
  EXPECT_THAT(said, AllOf(HasSubstr("part-00000.safetensors"), HasSubstr("cannot write")));
  EXPECT_EQ(data::LatentCache(folder.path()).latent_shape()->height, 4);
  const EncodeResult result = encode_with(options);
  EXPECT_EQ(result.computed, 47);  // one block was kept
  EXPECT_EQ(data::LatentCache(folder.path()).latent_shape()->height, 40);
}

TEST(EncodeTest, OneProcessAtATime) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path());
  const auto lock = io::FileLock::take(folder.path() / ".lock");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { (void)encode_with(options_for(folder.path())); }),
              HasSubstr("another process encodes into"));
}

TEST(EncodeTest, LatentsAreNotEncodedAgain) {
  const TemporaryFolder folder;
  (void)encode_with(options_for(folder.path()));
  EncodeOptions options = options_for(folder.path() / "again");
  options.data.source = data::SourceKind::kLatents;
  options.data.path = {folder.path().string()};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)encode_with(options); }),
              HasSubstr("got latents"));
}

TEST(EncodeTest, RanksMakeTheFilesOfOne) {
  for (const int64_t ranks : {2, 3}) {
    comm::run_on_ranks(ranks, [](const comm::Group& world) {
      const fs::path folder =
          fs::temp_directory_path() / (std::string("kinora-encode-") + std::getenv("MASTER_PORT"));
      const EncodeResult result = encode_with(options_for(folder / "shared"), world);
      EXPECT_TRUE(result.complete);
      EXPECT_GT(result.computed, 0);
      EXPECT_LT(result.computed, 50);
      if (world.rank() == 0) {
        (void)encode_with(options_for(folder / "alone"));
        EXPECT_EQ(content_of(folder / "shared"), content_of(folder / "alone"));
        fs::remove_all(folder);
      }
      world.barrier();
    });
  }
}

constexpr const char* kFolderVariable = "KINORA_TEST_ENCODE_FOLDER";

/// Blocks of the cache that is being made.
int64_t blocks_in(const fs::path& cache) {
  int64_t lines = 0;
  for (const auto& entry : fs::recursive_directory_iterator(cache)) {
    if (entry.path().extension() == ".jsonl") {
      std::ifstream file(entry.path());
      lines += std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    }
  }
  return lines;
}

TEST(EncodeTest, EveryKillLeavesWholeBlocks) {
  constexpr int64_t kCount = 500;
  if (const char* folder = std::getenv(kFolderVariable); folder != nullptr) {
    (void)encode_with(options_for(folder, kCount));
    return;
  }
  const TemporaryFolder folder;
  const fs::path killed = folder.path() / "killed";
  fs::create_directories(killed);
  std::mt19937 random(20261122);
  std::uniform_int_distribution<int> more_blocks(1, 25);
  std::uniform_int_distribution<int> moment(0, 3);
  int kills = 0;
  int64_t blocks = 0;
  for (bool done = false; !done;) {
    ASSERT_LT(kills, 1000) << "no progress";
    const OpenDescriptor output(memfd_create("output", MFD_CLOEXEC));
    ChildProcess process(
        {"/proc/self/exe", "--gtest_filter=EncodeTest.EveryKillLeavesWholeBlocks",
         "--gtest_output="},
        {std::string(kFolderVariable) + "=" + killed.string(), "OMP_NUM_THREADS=1"}, output,
        output);
    // Until it has gone on for some blocks, which every machine takes some kills for, then at any
    // moment of one.
    const int64_t last = blocks + more_blocks(random);
    pollfd end = {process.descriptor(), POLLIN, 0};
    while (::poll(&end, 1, 1) == 0 && blocks_in(killed) < last) {
    }
    if (::poll(&end, 1, moment(random)) == 0) {
      process.send(SIGKILL);
      ++kills;
    }
    const ProcessEnd ended = process.reap();
    done = ended.signal == 0;
    ASSERT_TRUE(!done || ended.exit_code == 0);
    ASSERT_GE(blocks_in(killed), blocks) << "whole blocks were lost";
    blocks = blocks_in(killed);
    // A kill may also come behind the last file, before the end of the process.
    EXPECT_TRUE(!done || fs::exists(killed / "manifest.json"));
  }
  std::cout << kills << " kills, " << blocks << " blocks\n";
  EXPECT_GE(kills, 5);
  (void)encode_with(options_for(folder.path() / "whole", kCount));
  EXPECT_EQ(content_of(killed), content_of(folder.path() / "whole"));
}

TEST(DrawLatentsTest, TheNoiseBelongsToThePlaceInTheStream) {
  PatchAutoencoder autoencoder;
  const at::Tensor pixels = at::zeros({3, 3, 8, 8}, at::kByte);
  const LatentEncoder encoder(autoencoder, at::kCPU, 2);
  const models::LatentMoments moments = encoder.encode(pixels);
  const auto drawn = [&](const std::vector<int64_t>& places, uint64_t seed) {
    return draw_latents(moments, at::tensor(places, at::kLong), seed);
  };
  const at::Tensor first = drawn({5, 6, 7}, 1);
  EXPECT_TRUE(at::equal(first, drawn({5, 6, 7}, 1)));
  EXPECT_TRUE(at::equal(first[1], drawn({6, 5, 5}, 1)[0]));  // all pictures are the same
  EXPECT_FALSE(at::equal(first, drawn({5, 6, 7}, 2)));
  const at::Tensor noise = (first - moments.mean) / moments.std;
  EXPECT_LT(noise.mean().abs().item<double>(), 0.5);
  EXPECT_NEAR(noise.std().item<double>(), 1.0, 0.4);
}

}  // namespace encode_test
}  // namespace kinora::pipelines
