// Caches of latents of several sizes hold, batch for batch, what a run on the pictures encodes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <tuple>

#include "kinora/data/epoch_order.h"
#include "kinora/data/latent_cache.h"
#include "kinora/data/loader.h"
#include "kinora/data/subset.h"
#include "kinora/pipelines/encode.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/data/sized_source.h"
#include "tests/error_of.h"
#include "tests/pipelines/cache_content.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::pipelines {
namespace sized_cache_test {

namespace fs = std::filesystem;
using data::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kValidation = 6;

EncodeOptions options_for(const fs::path& out, double keep_large = 0.5) {
  const data::BucketOptions table = data::small_table(keep_large);
  EncodeOptions options;
  options.out = out;
  options.data.height = 16;
  options.data.width = 24;
  options.data.frames = 1;
  options.data.threads = 2;
  options.data.max_bad = 10;
  options.data.validation = kValidation;
  options.data.buckets = table.rows;
  options.data.bucket_ratios = table.ratios;
  options.data.bucket_multiple = table.multiple;
  options.autoencoder = "patches";
  options.dtype = DType::kF32;
  options.block_seconds = 0.0;
  return options;
}

/// All samples are of the only class.
class OneClassSource : public data::SizedSource {
 public:
  using data::SizedSource::SizedSource;
  void read(int64_t index, data::Sample& out) const override {
    data::SizedSource::read(index, out);
    out.label = 0;
  }
};

/// Pictures and clips of several shapes, one that no bucket takes, and two that cannot be read.
class SizedCacheTest : public testing::Test {
 protected:
  SizedCacheTest()
      : source_(data::repeat({{data::sized(34, 40), 12},
                              {data::sized(36, 33, 4), 14},
                              {data::sized(20, 24), 9},
                              {data::sized(18, 16, 4), 9},
                              {data::sized(6, 6), 1},
                              {data::sized(48, 24), 9}})) {
    source_.bad = {4, 30};
    source_.unreadable = {30};
  }

  EncodeResult encode_to(const fs::path& cache, const comm::Group& world = {},
                         double keep_large = 0.5) {
    PatchAutoencoder autoencoder;
    const LatentEncoder encoder(autoencoder, at::kCPU, 3);
    return encode(source_, encoder, options_for(cache, keep_large), world);
  }
  static data::Split parts() { return data::split(54, kValidation, 0); }

  TemporaryFolder folder_;
  OneClassSource source_;
};

TEST_F(SizedCacheTest, GivesTheBatchesOfThePicturesOnAnyRanksFromAnywhere) {
  const EncodeResult result = encode_to(folder_.path() / "cache");
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.left_out, 2);  // number 4, at two sizes
  const data::LatentCache cache(folder_.path() / "cache");
  EXPECT_EQ(cache.size(), source_.size());
  EXPECT_TRUE(cache.has_several_sizes());
  const data::SubsetSource of_pictures(source_, parts().train);
  const data::SubsetSource of_latents(cache, parts().train);
  PatchAutoencoder autoencoder;
  const LatentEncoder encoder(autoencoder, at::kCPU, 3);
  data::LoaderOptions options = data::loader_options(options_for("").data);
  options.bucket_batches = 2;
  options.seed = 3;
  std::set<std::vector<int64_t>> shapes;
  for (const auto& [ranks, rank, first] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 0, 0}, {2, 0, 0}, {2, 1, 0}, {2, 1, -1}}) {
    options.num_ranks = ranks;
    options.rank = rank;
    // Where a run that was stopped goes on: behind the first three steps.
    if (first < 0) {
      options.first_position = 0;
      data::LoaderOptions whole = options;
      whole.num_ranks = 1;
      whole.rank = 0;
      data::Loader steps(of_pictures, whole);
      for (int i = 0; i < 6; ++i) {
        options.first_position += steps.next().labels.numel();
      }
    }
    data::Loader pictures(of_pictures, options);
    data::Loader latents(of_latents, options);
    for (int i = 0; i < 40; ++i) {
      const data::Batch wanted = pictures.next();
      const data::Batch got = latents.next();
      const models::LatentMoments moments = encoder.encode(wanted.images);
      shapes.insert(moments.mean.sizes().slice(1).vec());
      ASSERT_EQ(got.images.sizes(), moments.mean.sizes());
      EXPECT_TRUE(at::equal(got.images, moments.mean)) << i;
      EXPECT_TRUE(at::equal(got.latent_std, moments.std)) << i;
      EXPECT_TRUE(at::equal(got.labels, wanted.labels)) << i;
      EXPECT_TRUE(at::equal(got.sample_index, wanted.sample_index)) << i;
      ASSERT_EQ(got.fps.defined(), wanted.fps.defined());
      EXPECT_TRUE(!got.fps.defined() || at::equal(got.fps, wanted.fps)) << i;
    }
  }
  EXPECT_GE(shapes.size(), 6U);
}

TEST_F(SizedCacheTest, GoesOnWhereItWasStopped) {
  const fs::path cache = folder_.path() / "cache";
  const int64_t all = encode_to(cache).computed;
  const auto whole = content_of(cache);
  fs::remove(cache / "manifest.json");
  int part = 0;
  for (const auto& [name, content] : whole) {  // a third of the parts is cut, a third is lost
    if (name.find("part-") == std::string::npos) {
      continue;
    }
    if (part % 3 == 0) {
      fs::resize_file(cache / name, content.size() / 2);
    } else if (part % 3 == 1) {
      fs::remove(cache / name);
    }
    ++part;
  }
  ASSERT_GT(part, 6);
  const int64_t again = encode_to(cache).computed;
  EXPECT_GT(again, 0);
  EXPECT_LT(again, all);
  EXPECT_EQ(content_of(cache), whole);
}

TEST_F(SizedCacheTest, HeldOutSamplesHaveTheSizeOfValidation) {
  (void)encode_to(folder_.path() / "cache");
  const data::LatentCache cache(folder_.path() / "cache");
  const data::SampleSize size = data::sample_size(options_for("").data);
  const std::vector<int64_t> held_out = parts().validation;
  const data::Batch wanted = data::load_samples(source_, held_out, size, 10);
  const data::Batch got = data::load_samples(cache, held_out, size, 10);
  PatchAutoencoder autoencoder;
  const LatentEncoder encoder(autoencoder, at::kCPU, 3);
  EXPECT_TRUE(at::equal(got.images, encoder.encode(wanted.images).mean));
  EXPECT_TRUE(at::equal(got.sample_index, wanted.sample_index));
  EXPECT_EQ(cache.latent_shape(), (data::SampleShape{3, 4, 6, 16, 24}));
}

TEST_F(SizedCacheTest, RanksMakeTheFilesOfOne) {
  comm::run_on_ranks(2, [this](const comm::Group& world) {
    const fs::path folder =
        fs::temp_directory_path() / (std::string("kinora-sized-") + std::getenv("MASTER_PORT"));
    EXPECT_TRUE(encode_to(folder / "shared", world).complete);
    if (world.rank() == 0) {
      EXPECT_TRUE(encode_to(folder / "alone").complete);
      const auto alone = content_of(folder / "alone");
      EXPECT_EQ(content_of(folder / "shared"), alone);
      EXPECT_EQ(encode_to(folder / "alone").computed, 0);  // it is whole
      EXPECT_EQ(content_of(folder / "alone"), alone);
      fs::remove_all(folder);
    }
    world.barrier();
  });
}

TEST_F(SizedCacheTest, ABucketThatWasNotEncodedIsNamed) {
  (void)encode_to(folder_.path() / "cache", {},
                  /*keep_large=*/1.0);  // so large ones have no smaller latents
  const data::LatentCache cache(folder_.path() / "cache");
  const data::SubsetSource train(cache, parts().train);
  const auto refusal = [&](double keep_large) {
    const data::LoaderOptions options = data::loader_options(options_for("", keep_large).data);
    return error_of(ErrorKind::kConfig, [&] { data::Loader loader(train, options); });
  };
  EXPECT_THAT(refusal(0.5), AllOf(HasSubstr("were not encoded"), HasSubstr("16px"),
                                  HasSubstr("kinora data encode")));
  data::LoaderOptions other = data::loader_options(options_for("", 1.0).data);
  other.bucket_batches = 2;
  EXPECT_NO_THROW(data::Loader(train, other));  // another step, the same sizes
}

TEST_F(SizedCacheTest, DamagedListsAreRefused) {
  (void)encode_to(folder_.path() / "cache");
  const auto manifest = data::read_manifest(folder_.path() / "cache");
  const fs::path samples =
      folder_.path() / "cache" / data::folder_of(manifest->key) / data::kCachedSamplesFile;
  std::vector<data::CachedSample> all(2);
  std::vector<data::SizedSample> sized(2);
  sized[1].latents = {{.size = 99, .row = 0}};
  data::write_samples(samples, all, sized);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { data::LatentCache cache(folder_.path() / "cache"); }),
              HasSubstr("latent 0 must be one of a size's, got row 0 of size 99"));
  sized[1].latents = {{.size = 1, .row = 1 << 20}};
  data::write_samples(samples, all, sized);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { data::LatentCache cache(folder_.path() / "cache"); }),
              HasSubstr("got row 1048576 of size 1"));
}

}  // namespace sized_cache_test
}  // namespace kinora::pipelines
