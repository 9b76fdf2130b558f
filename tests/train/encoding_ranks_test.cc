// Ranks that have the same samples and encode them together, each some rows, against one rank.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/data/run_data.h"
#include "kinora/io/file.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/run.h"
#include "kinora/train/step_supply.h"
#include "kinora/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/models/formula_file.h"
#include "tests/train/run_lines.h"
#include "tests/train/shared_path.h"

namespace kinora::train {
namespace encoding_ranks_test {

namespace fs = std::filesystem;

/// Latents have a quarter of the sides.
models::AutoencoderKlConfig small_autoencoder() {
  return {.block_out_channels = {4, 8, 8}, .layers_per_block = 1, .norm_num_groups = 2};
}

void write_autoencoder(const fs::path& folder) {
  fs::create_directories(folder);
  io::write_file_atomic(
      folder / "config.json",
      std::string_view(R"({"_class_name": "AutoencoderKL", "block_out_channels": [4, 8, 8],
                           "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 2})"));
  models::AutoencoderKl model(small_autoencoder());
  models::write_tensors(folder / "diffusion_pytorch_model.safetensors",
                        models::formula_weights(model));
}

/// Two steps on generated pictures of so many rows.
RunConfig pixels(int64_t rows, int64_t ranks = 1) {
  RunConfig config;
  config.data.count = 40;
  config.data.height = rows;
  config.data.width = 24;
  config.data.threads = 1;
  config.train.global_batch = 6;
  config.train.micro_batch = 3;
  config.parallel.sp_size = ranks;
  return config;
}

int64_t exchanges(const comm::Group& ranks) {
  return ranks.traffic(comm::Operation::kExchange).calls;
}

class EncodingRanksTest : public testing::Test {
 protected:
  EncodingRanksTest() {
    auto model = std::make_unique<models::AutoencoderKl>(small_autoencoder());
    models::set_formula_weights(*model);
    const pipelines::LatentEncoder encoder(*model, at::kCPU, 2);
    frozen_ = std::make_unique<FrozenEncoder>(FrozenEncoder{std::move(model), encoder});
  }

  [[nodiscard]] EncodeStage stage(const comm::Group& ranks) const {
    return {5, at::kCPU, {.encoder = &frozen_->encoder, .ranks = ranks}};
  }

  /// The latents of two steps.
  [[nodiscard]] static std::vector<at::Tensor> latents(const RunConfig& config,
                                                       const EncodeStage& stage) {
    const data::RunData data = open_data(config.data);
    StepSupply supply(StepLoader(config, {.data = data.train.get()}, {}, {}, /*pinned=*/false),
                      stage);
    std::vector<at::Tensor> all;
    for (int64_t left = 2; left > 0; --left) {
      supply.fetch(left);
      for (const data::Batch& batch : supply.take().batches) {
        all.push_back(batch.images);
      }
    }
    return all;
  }

  std::unique_ptr<FrozenEncoder> frozen_;
};

TEST_F(EncodingRanksTest, DrawnLatentsAreThoseOfOneRank) {
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    for (const int64_t rows : {32, 36, 28}) {  // 28: too few
      SCOPED_TRACE(rows);
      const RunConfig config = pixels(rows);
      const std::vector<at::Tensor> want = latents(config, stage({}));
      world.reset_traffic();
      const std::vector<at::Tensor> got = latents(config, stage(world));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].size(2), rows / 4);
        EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-5))
            << (got[i] - want[i]).abs().max().item<double>();
      }
      EXPECT_EQ(exchanges(world) > 0, rows != 28);
    }
    EXPECT_EQ(frozen_->autoencoder->limits().ranks.size(), 1) << "for those who show samples";
  });
}

TEST_F(EncodingRanksTest, RanksOfASampleEncodeWhatTheyCanDivide) {
  comm::run_on_ranks(4, [&](const comm::Group& world) {
    const auto count = [&](RunConfig config) {
      const parallel::Mesh mesh(world, config.parallel.mesh());
      return encoding_ranks(config, frozen_.get(), mesh).size();
    };
    EXPECT_EQ(count(pixels(64, 4)), 4);
    EXPECT_EQ(count(pixels(60, 4)), 1);
    EXPECT_EQ(count(pixels(60, 2)), 2);
    EXPECT_EQ(count(pixels(64, 1)), 1);
    RunConfig stages = pixels(64, 2);
    stages.parallel.pp_size = 2;
    EXPECT_EQ(count(stages), 4);
    RunConfig tensor = pixels(64);
    tensor.parallel.tp_size = 4;
    EXPECT_EQ(count(tensor), 4);
    RunConfig buckets = pixels(28, 2);
    buckets.data.buckets =
        parse_config<RunConfig>(
            {R"({run: {dir: none}, data: {buckets: {"256px": {1: [1.0, 1]}}}})", "the test"}, {})
            .data.buckets;
    EXPECT_EQ(count(buckets), 2);
    buckets.dynamic_sequence = true;
    EXPECT_EQ(count(buckets), 1);
    RunConfig cached = pixels(64, 4);
    cached.data.source = data::SourceKind::kLatents;
    EXPECT_EQ(count(cached), 1);
  });
}

/// Of which all or none can be read.
class Black : public data::Source {
 public:
  explicit Black(bool is_there) : is_there_(is_there) {}
  [[nodiscard]] int64_t size() const override { return 1000; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return std::to_string(index);
  }
  void read(int64_t /*index*/, data::Sample& sample) const override {
    KINORA_CHECK(is_there_, kIo, "the disk is gone");
    set_size(sample.image, 32, 24);
    sample.image.pixels.assign(sample.image.pixels.size(), 0);
  }

 private:
  bool is_there_;
  std::vector<std::string> names_ = {"black"};
};

TEST_F(EncodingRanksTest, NobodyWaitsForARankWithoutSamples) {
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    const Black source(/*is_there=*/world.rank() == 0);
    const EncodeStage together = stage(world);
    StepSupply supply(StepLoader(pixels(32), {.data = &source}, {}, {}, /*pinned=*/false),
                      together);
    supply.fetch(10);
    EXPECT_EQ(supply.error() == nullptr, world.rank() == 0);
    EXPECT_EQ(exchanges(world), 0);
  });
}

TEST(EncodingRanksTrainingTest, RunsOnPixelsEqualOneRank) {
  const data::TemporaryFolder own;
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    const fs::path folder = shared_path(own.path(), world);
    const auto config = [&](const std::string& name, const std::vector<std::string>& more) {
      std::vector<std::string> overrides = {"run.dir=" + (folder / name).string(),
                                            "autoencoder.path=" + (folder / "vae").string(),
                                            "autoencoder.precision=fp32",
                                            "data.count=40",
                                            "data.validation=4",
                                            "data.height=32",
                                            "data.width=32",
                                            "data.threads=1",
                                            "model.in_channels=4",
                                            "model.depth=2",
                                            "model.hidden=16",
                                            "model.heads=2",
                                            "model.patch=2",
                                            "optim.eps=1e-2",
                                            "lr.value=1e-2",
                                            "train.steps=3",
                                            "train.global_batch=4",
                                            "train.device=cpu",
                                            "train.threads=1",
                                            "train.precision=fp32",
                                            "validation.every=3",
                                            "checkpoint.every=3",
                                            "sample.every=3",
                                            "sample.count=2",
                                            "sample.steps=2"};
      overrides.insert(overrides.end(), more.begin(), more.end());
      return parse_config<RunConfig>({"{}", "the test"}, overrides);
    };
    if (world.rank() == 0) {
      write_autoencoder(folder / "vae");
      Trainer(config("one", {}), {}).run();
    }
    world.barrier();
    for (const std::string axis : {"sequence", "tensor", "pipeline"}) {
      SCOPED_TRACE(axis);
      const std::string divided = "parallel." + axis + "=2";
      EXPECT_EQ(train::Run(config("of-" + axis, {divided}), {}, world).stage->num_ranks(), 2);
      EXPECT_TRUE(Trainer(config(axis, {divided}), {}, world).run().complete);
      if (world.rank() > 0) {
        continue;
      }
      const std::vector<nlohmann::json> want = run_lines(folder / "one");
      const std::vector<nlohmann::json> got = run_lines(folder / axis);
      ASSERT_EQ(got.size(), want.size());
      ASSERT_GE(want.size(), 3U);
      for (size_t i = 0; i < want.size(); ++i) {
        for (const char* key : {"loss", "grad_norm", "validation_raw"}) {
          ASSERT_EQ(got[i].contains(key), want[i].contains(key)) << key;
          if (want[i].contains(key)) {
            EXPECT_NEAR(got[i].at(key), want[i].at(key), 1e-4 * want[i].at(key).get<double>())
                << key << " of line " << i;
          }
        }
      }
    }
  });
}

}  // namespace encoding_ranks_test
}  // namespace kinora::train
