#include "kinora/checkpoint/checkpoint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/manifest.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/writer.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/safetensors.h"
#include "kinora/nn/conv.h"
#include "tests/checkpoint/testing.h"

namespace kinora::checkpoint {
namespace checkpoint_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

optim::ArenaOptions options(uint64_t seed, at::ScalarType type = at::kFloat, size_t averages = 1) {
  return {.device = at::kCPU,
          .compute_type = type,
          .seed = seed,
          .train = true,
          .ema_decays = std::vector<double>(averages, 0.9),
          .sharding = {}};
}

/// A model whose arrays all differ from each other.
struct Trained {
  explicit Trained(uint64_t seed, at::ScalarType type = at::kFloat, size_t averages = 1,
                   int64_t width = 6)
      : model(width),
        arena(model.named_parameters(), SmallModel::buckets(), options(seed, type, averages)) {
    double value = static_cast<double>(seed);
    for (const auto& [path, parameter] : model.named_parameters()) {
      for (const optim::Role role : arena.state_roles()) {
        arena.own_part(path, role).values.add_(value += 0.125);
      }
    }
    arena.refresh_compute();
  }

  [[nodiscard]] bool equals(const Trained& other) const {
    for (size_t b = 0; b < arena.buckets().size(); ++b) {
      for (const optim::Role role : arena.state_roles()) {
        if (!at::equal(arena.buckets()[b].tensor(role), other.arena.buckets()[b].tensor(role))) {
          return false;
        }
      }
      if (!at::equal(arena.buckets()[b].compute, other.arena.buckets()[b].compute)) {
        return false;
      }
    }
    return true;
  }

  SmallModel model;
  optim::Arena arena;
};

TrainingState state_at(int64_t step) {
  TrainingState state;
  state.step = step;
  state.position = 8 * step;
  state.optimizer.applied_steps = step;
  state.config = "some: config\n";
  return state;
}

class CheckpointTest : public testing::Test {
 protected:
  [[nodiscard]] const fs::path& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, LoadsEveryArrayAndTheState) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Trained saved(3, type, 2);
    TrainingState state = state_at(5 + static_cast<int64_t>(type));
    state.timestep_history = {0.1, 0.2};
    state.timestep_counts = {3};
    const fs::path path = save(folder(), saved.arena, state);
    EXPECT_EQ(path, step_folder(folder(), state.step));
    Trained loaded(4, type, 2);
    ASSERT_FALSE(saved.equals(loaded));
    const TrainingState got = load(path, loaded.arena);
    EXPECT_TRUE(saved.equals(loaded)) << type;
    EXPECT_EQ(got.step, state.step);
    EXPECT_EQ(got.position, state.position);
    EXPECT_EQ(got.optimizer, state.optimizer);
    EXPECT_EQ(got.timestep_history, state.timestep_history);
    EXPECT_EQ(got.timestep_counts, state.timestep_counts);
    EXPECT_EQ(load_state(path).config, "some: config\n");
  }
}

ops::Fp8State some_scales() {
  const auto ramp = [](at::IntArrayRef shape) {
    return (at::arange(8 * ops::kFp8History, at::kFloat) * 0.1F + 1.0F)
        .slice(0, 0, c10::multiply_integers(shape))
        .view(shape)
        .clone();
  };
  ops::Fp8State state = {ramp({4, 2}), ramp({4, 2, ops::kFp8History}), ramp({4, 2})};
  state.amax[0][1] = std::numeric_limits<float>::infinity();  // an overflow in the last step
  return state;
}

TEST_F(CheckpointTest, LoadsTheScalesOfFp8AndThePinnedAlgorithms) {
  const Trained saved(3);
  TrainingState state = state_at(1);
  state.fp8 = some_scales();
  state.pinned = {.versions = {{"cuDNN", "91300"}, {"the GPU", "NVIDIA H200"}},
                  .products = {"NVIDIA H200|130100|m=1|id=66|ns=0|", "another"}};
  const fs::path path = save(folder(), saved.arena, state);
  Trained loaded(4);
  const TrainingState got = load(path, loaded.arena);
  EXPECT_TRUE(saved.equals(loaded));
  ASSERT_TRUE(got.fp8.has_value());
  EXPECT_TRUE(at::equal(got.fp8->amax, state.fp8->amax));
  EXPECT_TRUE(at::equal(got.fp8->history, state.fp8->history));
  EXPECT_TRUE(at::equal(got.fp8->scale, state.fp8->scale));
  EXPECT_EQ(got.pinned, state.pinned);
  EXPECT_EQ(load_state(path).pinned, state.pinned);
  EXPECT_FALSE(load_state(path).fp8.has_value());

  // What was loaded is written as the same bytes again.
  TrainingState again = got;
  again.step = 2;
  const fs::path second = save(folder(), loaded.arena, again);
  EXPECT_EQ(read_text(path / "fp8.safetensors"), read_text(second / "fp8.safetensors"));
}

// As every checkpoint was before there were these.
TEST_F(CheckpointTest, HasNeitherWhereTheRunHasNeither) {
  const Trained saved(3);
  const fs::path path = save(folder(), saved.arena, state_at(1));
  EXPECT_FALSE(fs::exists(path / "fp8.safetensors"));
  EXPECT_EQ(read_text(path / kManifestName).find("pinned"), std::string::npos);
  Trained loaded(4);
  const TrainingState got = load(path, loaded.arena);
  EXPECT_FALSE(got.fp8.has_value());
  EXPECT_FALSE(got.pinned.has_value());
}

TEST_F(CheckpointTest, HoldsPlainFilesThatOthersRead) {
  const Trained saved(3);
  const fs::path path = save(folder(), saved.arena, state_at(1));
  for (const char* role : {"master", "exp_avg", "exp_avg_sq", "ema.0"}) {
    const auto file = io::SafetensorsFile::open(path / (std::string(role) + ".safetensors"));
    ASSERT_EQ(file.tensors().size(), 2U);
    EXPECT_EQ(file.find("body")->dtype, DType::kF32);
    EXPECT_EQ(file.find("body")->shape, (std::vector<int64_t>{saved.arena.buckets()[0].numel}));
  }
  EXPECT_EQ(read_text(path / "config.yaml"), "some: config\n");
  // The manifest says where each parameter lies.
  const auto manifest = nlohmann::json::parse(read_text(path / kManifestName));
  EXPECT_EQ(manifest["buckets"][0]["tensors"][0]["name"], "first.weight");
  EXPECT_EQ(manifest["buckets"][0]["tensors"][0]["shape"], (std::vector<int64_t>{6, 4}));
}

// As version 1 wrote it: the files are the same, the manifest has one checksum for each.
TEST_F(CheckpointTest, LoadsTheOldFormat) {
  const Trained saved(3);
  const fs::path path = save(folder(), saved.arena, state_at(1));
  auto manifest = nlohmann::json::parse(read_text(path / kManifestName));
  manifest["version"] = 1;
  for (auto& shard : manifest["shards"]) {
    const std::string file = shard["file"];
    const io::MappedFile content(path / file);
    shard = {{"file", file},
             {"role", file.substr(0, file.rfind('.'))},
             {"bytes", content.bytes().size()},
             {"checksum", io::checksum(content.bytes())}};
  }
  write_text(path / kManifestName, manifest.dump());
  Trained loaded(4);
  EXPECT_EQ(load(path, loaded.arena).step, 1);
  EXPECT_TRUE(saved.equals(loaded));

  std::string damaged = read_text(path / "ema.0.safetensors");
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_text(path / "ema.0.safetensors", damaged);
  EXPECT_THAT(refusal(ErrorKind::kDamaged, [&] { (void)load(path, loaded.arena); }),
              AllOf(HasSubstr("ema.0.safetensors"), HasSubstr("checksum")));
}

/// A convolution whose weight lies in memory in one order or the other.
struct TrainedConv {
  explicit TrainedConv(uint64_t seed, bool channels_last)
      : conv({.in_channels = 3,
              .out_channels = 4,
              .kernel = {2, 5},
              .channels_last = channels_last}),
        arena(conv.named_parameters(), {{.name = "conv", .parameters = {"weight", "bias"}}},
              options(seed, at::kFloat, 1)) {}

  [[nodiscard]] at::Tensor weight(optim::Role role) const {
    return arena.export_parameter("weight", role);
  }

  nn::Conv conv;
  optim::Arena arena;
};

// Up to version 2 all weights were saved in C order.
TEST_F(CheckpointTest, WeightsInAnotherOrderAreTheSame) {
  for (const bool is_saved_channels_last : {false, true}) {
    TrainedConv saved(3, is_saved_channels_last);
    for (const optim::Role role : saved.arena.state_roles()) {
      const at::Tensor values = saved.arena.own_part("weight", role).values;
      at::Tensor(values).add_(at::arange(values.numel()));
    }
    const fs::path path = save(folder(), saved.arena, state_at(is_saved_channels_last ? 1 : 2));
    for (const bool is_loaded_channels_last : {false, true}) {
      TrainedConv loaded(4, is_loaded_channels_last);
      (void)load(path, loaded.arena);
      for (const optim::Role role : saved.arena.state_roles()) {
        EXPECT_TRUE(at::equal(loaded.weight(role), saved.weight(role))) << to_string(role);
      }
      const LateTensors late = checkpoint_weights(path, loaded.conv, optim::Role::average(0));
      EXPECT_TRUE(at::equal(late.at("weight").read_all(), saved.weight(optim::Role::average(0))));
    }
  }
}

TEST_F(CheckpointTest, SameStateSameBytes) {
  const Trained saved(3);
  const fs::path first = save(folder(), saved.arena, state_at(1));
  const fs::path second = save(folder(), saved.arena, state_at(2));
  for (const char* name : {"master.safetensors", "ema.0.safetensors"}) {
    EXPECT_EQ(read_text(first / name), read_text(second / name));
  }
}

TEST_F(CheckpointTest, ExistingStepIsKept) {
  const fs::path path = save(folder(), Trained(3).arena, state_at(1));
  const std::string before = read_text(path / "master.safetensors");
  save(folder(), Trained(4).arena, state_at(1));
  EXPECT_EQ(read_text(path / "master.safetensors"), before);
}

TEST_F(CheckpointTest, SamplingLoadsRawOrAveragedWeights) {
  const Trained saved(3, at::kBFloat16, 2);
  const fs::path path = save(folder(), saved.arena, state_at(1));
  for (const std::optional<size_t> ema :
       {std::optional<size_t>(), std::optional<size_t>(0), std::optional<size_t>(1)}) {
    SmallModel model;
    optim::ArenaOptions only_weights = options(9, at::kBFloat16, 0);
    only_weights.train = false;
    optim::Arena arena(model.named_parameters(), SmallModel::buckets(), only_weights);
    load_for_sampling(path, ema, model, arena);
    const optim::Role role = ema ? optim::Role::average(*ema) : optim::Role::master();
    for (const char* name : {"first.weight", "second.bias"}) {
      const at::Tensor expected = saved.arena.export_parameter(name, role);
      const at::Tensor got = arena.export_parameter(name, optim::Role::compute());
      EXPECT_TRUE(at::equal(got, expected.to(got.scalar_type()))) << name;
    }
  }
  SmallModel model;
  optim::ArenaOptions only_weights = options(9, at::kBFloat16, 0);
  only_weights.train = false;
  optim::Arena arena(model.named_parameters(), SmallModel::buckets(), only_weights);
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { load_for_sampling(path, 2, model, arena); }),
              HasSubstr("has no ema.2"));
}

// Sound files of a run whose weights are no numbers any more.
TEST_F(CheckpointTest, WeightsThatAreNotFiniteAreNamed) {
  const Trained saved(3);
  saved.arena.own_part("first.weight", optim::Role::master())
      .values.narrow(0, 5, 2)
      .fill_(std::nan(""));
  const fs::path path = save(folder(), saved.arena, state_at(1));
  SmallModel model;
  optim::ArenaOptions only_weights = options(9, at::kFloat, 0);
  only_weights.train = false;
  optim::Arena arena(model.named_parameters(), SmallModel::buckets(), only_weights);
  const auto named = HasSubstr("tensor first.weight holds 2 values that are not finite");
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { load_for_sampling(path, {}, model, arena); }), named);
  load_for_sampling(path, 0, model, arena);  // the average is sound
  Trained resumed(4);
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { (void)load(path, resumed.arena); }),
              testing::AllOf(named, HasSubstr("(first at 5)")));
}

TEST_F(CheckpointTest, BuffersAreAsTheyWere) {
  Trained saved(3);
  saved.model.table = at::arange(3, at::kFloat).view({1, 3}).div(7);
  TrainingState state = state_at(1);
  state.buffers = buffers_of(saved.model);
  const at::Tensor table = saved.model.table.clone();
  saved.model.table.zero_();
  const fs::path path = save(folder(), saved.arena, state);
  const auto fresh_table = [] { return at::full({1, 3}, 5.0, at::kDouble); };

  Trained loaded(4);
  loaded.model.table = fresh_table();
  const TrainingState got = load(path, loaded.arena);
  restore_buffers(got.buffers, loaded.model);
  EXPECT_TRUE(at::equal(loaded.model.table, table.to(at::kDouble))) << "the model has the type";
  EXPECT_TRUE(load_state(path).buffers.empty());

  Trained sampled(4);
  sampled.model.table = fresh_table();
  load_for_sampling(path, 0, sampled.model, sampled.arena);
  EXPECT_TRUE(at::equal(sampled.model.table, table.to(at::kDouble)));

  Trained other(4);
  other.model.table = at::zeros({1, 2});
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { restore_buffers(got.buffers, other.model); }),
              AllOf(HasSubstr("table must have shape [1, 2], got [1, 3]"), HasSubstr("Hint")));

  std::string damaged = read_text(path / "buffers.safetensors");
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_text(path / "buffers.safetensors", damaged);
  EXPECT_THAT(refusal(ErrorKind::kDamaged, [&] { (void)load(path, other.arena); }),
              AllOf(HasSubstr("buffers.safetensors"), HasSubstr("checksum")));
}

// Whatever is wrong with a file: nothing of the arena has changed.
class DamageTest : public CheckpointTest {
 protected:
  DamageTest() : saved_(3), path_(save(folder(), saved_.arena, state_at(1))) {}

  std::string load_refusal(ErrorKind kind = ErrorKind::kDamaged) const {
    Trained loaded(4);
    const Trained untouched(4);
    std::string message = refusal(kind, [&] { (void)load(path_, loaded.arena); });
    EXPECT_TRUE(loaded.equals(untouched)) << "a refused checkpoint has changed the arena";
    return message;
  }

  const Trained saved_;
  const fs::path path_;
};

TEST_F(DamageTest, FlippedBitInAnyFileIsFound) {
  for (const char* name : {"master.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors",
                           "ema.0.safetensors"}) {
    const std::string whole = read_text(path_ / name);
    for (const size_t at : {size_t{0}, size_t{20}, whole.size() / 2, whole.size() - 1}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      write_text(path_ / name, damaged);
      const std::string message = load_refusal();
      EXPECT_THAT(message, HasSubstr(name));
      EXPECT_THAT(message, HasSubstr("checksum"));
      EXPECT_THAT(message, HasSubstr("Hint"));
    }
    write_text(path_ / name, whole);
  }
  Trained loaded(4);
  (void)load(path_, loaded.arena);  // mended
}

TEST_F(DamageTest, ShortLongAndMissingFilesAreFound) {
  const fs::path file = path_ / "exp_avg_sq.safetensors";
  const std::string whole = read_text(file);
  write_text(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(load_refusal(), HasSubstr("bytes, got"));
  write_text(file, whole + "x");
  EXPECT_THAT(load_refusal(), HasSubstr("bytes, got"));
  write_text(file, "");
  EXPECT_THAT(load_refusal(), HasSubstr("bytes, got 0"));
  fs::remove(file);
  EXPECT_THAT(load_refusal(), HasSubstr("exp_avg_sq.safetensors"));
}

// A file that a hostile manifest vouches for.
TEST_F(DamageTest, WellSummedFileWithOtherTensorsIsFound) {
  const fs::path file = path_ / "master.safetensors";
  const std::vector<std::byte> zeros(64);
  const std::vector<io::SafetensorsTensor> others = {
      {.name = "body", .dtype = DType::kF32, .shape = {16}, .data = zeros}};
  const io::SafetensorsSummary summary = io::write_safetensors(file, others);
  auto manifest = nlohmann::json::parse(read_text(path_ / kManifestName));
  auto& shard = manifest["shards"][0];
  shard["bytes"] = summary.num_bytes;
  shard["chunk_bytes"] = summary.num_bytes;
  shard["checksums"] = {summary.checksum};
  write_text(path_ / kManifestName, manifest.dump());
  EXPECT_THAT(load_refusal(), HasSubstr("must hold bucket body, F32 ["));
}

class Fp8DamageTest : public CheckpointTest {
 protected:
  Fp8DamageTest() {
    TrainingState state = state_at(1);
    state.fp8 = some_scales();
    path_ = save(folder(), Trained(3).arena, state);
  }

  [[nodiscard]] std::string load_refusal(ErrorKind kind = ErrorKind::kDamaged) const {
    Trained loaded(4);
    const Trained untouched(4);
    std::string message = refusal(kind, [&] { (void)load(path_, loaded.arena); });
    EXPECT_TRUE(loaded.equals(untouched)) << "a refused checkpoint has changed the arena";
    return message;
  }

  /// What is said of a file with these arrays that the manifest vouches for.
  [[nodiscard]] std::string refusal_of(
      const std::vector<std::pair<std::string, at::Tensor>>& arrays) const {
    std::vector<io::SafetensorsTensor> tensors;
    tensors.reserve(arrays.size());
    for (const auto& [name, array] : arrays) {
      tensors.push_back({.name = name,
                         .dtype = DType::kF32,
                         .shape = array.sizes().vec(),
                         .data = device::bytes_of(array)});
    }
    const io::SafetensorsSummary summary =
        io::write_safetensors(path_ / "fp8.safetensors", tensors);
    auto manifest = nlohmann::json::parse(read_text(path_ / kManifestName));
    auto& shard = manifest["shards"].back();
    EXPECT_EQ(shard["role"], kFp8Role);
    shard["bytes"] = summary.num_bytes;
    shard["chunk_bytes"] = summary.num_bytes;
    shard["checksums"] = {summary.checksum};
    write_text(path_ / kManifestName, manifest.dump());
    return load_refusal(ErrorKind::kIo);
  }

  fs::path path_;
};

TEST_F(Fp8DamageTest, FlippedBitsAndMissingFilesAreFound) {
  const fs::path file = path_ / "fp8.safetensors";
  const std::string whole = read_text(file);
  for (const size_t at : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    write_text(file, damaged);
    EXPECT_THAT(load_refusal(), AllOf(HasSubstr("fp8.safetensors"), HasSubstr("checksum")));
  }
  write_text(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(load_refusal(), HasSubstr("bytes, got"));
  fs::remove(file);
  EXPECT_THAT(load_refusal(), HasSubstr("fp8.safetensors"));
}

TEST_F(Fp8DamageTest, OtherArraysAndNumbersAreFound) {
  const ops::Fp8State sound = some_scales();
  EXPECT_THAT(refusal_of({{"amax", sound.amax}, {"history", sound.history}}),
              AllOf(HasSubstr("fp8.safetensors"), HasSubstr("scale must be F32 [4, 2]"),
                    HasSubstr("Hint")));
  EXPECT_THAT(refusal_of({{"amax", sound.amax}, {"history", sound.amax}, {"scale", sound.scale}}),
              HasSubstr("history must be F32 [4, 2, 16]"));
  const at::Tensor scale = sound.scale.clone();
  scale[1][1] = 0.0F;
  EXPECT_THAT(refusal_of({{"amax", sound.amax}, {"history", sound.history}, {"scale", scale}}),
              HasSubstr("scale must be finite and positive, got 0 at 3"));
}

TEST_F(DamageTest, OtherModelsAreRefused) {
  Trained wider(4, at::kFloat, 1, 7);
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { (void)load(path_, wider.arena); }),
              HasSubstr("is of another model: first.weight has another shape"));
}

TEST_F(DamageTest, OtherBucketsAreNoOtherModel) {
  SmallModel model;
  const std::vector<nn::BucketSpec> buckets = {
      {.name = "biases", .parameters = {"second.bias"}, .fp32_island = true},
      {.name = "body", .parameters = {"first.bias", "first.weight"}, .fp32_island = false},
      {.name = "weight", .parameters = {"second.weight"}, .fp32_island = true}};
  optim::Arena arena(model.named_parameters(), buckets, options(4));
  (void)load(path_, arena);
  for (const auto& [path, parameter] : model.named_parameters()) {
    for (const optim::Role role : arena.state_roles()) {
      EXPECT_TRUE(
          at::equal(arena.export_parameter(path, role), saved_.arena.export_parameter(path, role)))
          << path;
    }
  }
}

TEST_F(CheckpointTest, FailedSaveLeavesNothing) {
  const Trained saved(3);
  const fs::path nowhere = folder() / "nowhere";
  EXPECT_THROW(save(nowhere, saved.arena, state_at(1)), std::exception);
  fs::create_directory(folder() / "full");
  TrainingState state = state_at(1);
  state.config = std::string("\xFF");  // no JSON text, found after the shards are written
  EXPECT_THROW(save(folder() / "full", saved.arena, state), std::exception);
  EXPECT_TRUE(fs::is_empty(folder() / "full"));
}

}  // namespace checkpoint_test
}  // namespace kinora::checkpoint
