#include "kinora/train/finetune.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/config.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/trained_model.h"
#include "kinora/inference/updates.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/models/transformers/dit.h"
#include "kinora/nn/linear.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/train/trainable.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::train {
namespace finetune_test {

namespace fs = std::filesystem;
using checkpoint::LateTensors;
using checkpoint::WeightsFile;
using testing::HasSubstr;

const fs::path kData = source_path("tests/train/data");
const fs::path kDit = kData / "diffusers_dit";

RunConfig tiny() {
  RunConfig config;
  config.model.transformer.depth = 3;
  config.model.transformer.hidden = 16;
  config.model.transformer.heads = 2;
  config.model.transformer.patch = 4;
  config.model.in_channels = 3;
  config.model.height = 16;
  config.model.width = 16;
  config.model.num_classes = 4;
  config.model.time_scale = 1.0;
  config.model = models::resolved(config.model);
  config.train.device = DeviceChoice::kCpu;
  config.ema_decays = {0.5};
  return config;
}

/// A prepared model with all that training needs.
struct Prepared {
  explicit Prepared(const RunConfig& config, uint64_t seed = 3)
      : trainable(config, parallel::Mesh({}, {}), at::kCPU, seed) {}

  nn::Parameter& operator[](const std::string& path) {
    for (const auto& [name, parameter] : trainable.model().named_parameters()) {
      if (name == path) {
        return *parameter;
      }
    }
    throw_error(ErrorKind::kInternal, "no parameter ", path);
  }
  [[nodiscard]] at::Tensor master(const std::string& path) const {
    return trainable.arena().export_parameter(path, optim::Role::master());
  }

  Trainable trainable;
};

std::string refusal(const RunConfig& config) {
  return error_of(ErrorKind::kConfig, [&] { return Prepared(config).trainable.kernels(); });
}

// ---- what is trained ----

TEST(FreezeTest, PatternsSayWhatIsTrained) {
  RunConfig config = tiny();
  config.finetune.train = {"blocks.*", "y_embedder.*"};
  config.finetune.freeze = {"*.bias", "blocks.1.*"};
  Prepared prepared(config);
  EXPECT_FALSE(prepared["blocks.0.attn.qkv.weight"].frozen);
  EXPECT_FALSE(prepared["y_embedder.embedding_table.weight"].frozen);
  EXPECT_TRUE(prepared["blocks.0.attn.qkv.bias"].frozen);
  EXPECT_TRUE(prepared["blocks.1.mlp.fc1.weight"].frozen);
  EXPECT_TRUE(prepared["final_layer.linear.weight"].frozen) << "finetune.train does not name it";
  EXPECT_THAT(describe_finetuning(config, prepared.trainable.model(), prepared.trainable.arena()),
              ::testing::EndsWith("parameters are trained"));
}

TEST(FreezeTest, MistakesAreRefused) {
  RunConfig config = tiny();
  config.finetune.freeze = {"blocks.*.atn.*"};
  EXPECT_THAT(refusal(config), HasSubstr("finetune.freeze: nothing is called"));
  config = tiny();
  config.finetune.train = {"y_embeder.*"};
  EXPECT_THAT(refusal(config), HasSubstr("y_embedder.embedding_table.weight"));
  config = tiny();
  config.finetune.freeze = {"*"};
  EXPECT_THAT(refusal(config), HasSubstr("nothing to train"));
  config = tiny();
  config.finetune.lora.targets = {"*.qkv"};
  config.finetune.lora.dora = true;
  config.path = inference::Path::kFast;
  EXPECT_THAT(refusal(config), HasSubstr("which only the plain path computes"));
  config = tiny();
  config.finetune.fresh = {"y_embedder.*"};
  config.finetune.freeze = {"y_embedder.*"};
  EXPECT_THAT(refusal(config), HasSubstr("is frozen, so that it would never learn"));
  config.finetune.freeze = {};
  config.finetune.fresh = {"z_embedder.*"};
  EXPECT_THAT(refusal(config), HasSubstr("finetune.fresh: nothing is called"));
}

TEST(LayerDecayTest, FactorsAreBeits) {
  RunConfig config = tiny();
  config.lr_factors.layer_decay = 0.5;
  config.lr_factors.patterns = {"blocks.1.mlp.*=10", "blocks.1.*=3"};
  Prepared prepared(config);
  // get_layer_id_for_vit and LayerDecayValueAssigner of BEiT: decay^(depth + 1 - id).
  EXPECT_EQ(prepared["x_embedder.proj.weight"].lr_factor, std::pow(0.5, 4));
  EXPECT_EQ(prepared["y_embedder.embedding_table.weight"].lr_factor, std::pow(0.5, 4));
  EXPECT_EQ(prepared["blocks.0.attn.qkv.weight"].lr_factor, std::pow(0.5, 3));
  EXPECT_EQ(prepared["blocks.2.attn.qkv.weight"].lr_factor, 0.5);
  EXPECT_EQ(prepared["final_layer.linear.bias"].lr_factor, 1.0);
  EXPECT_EQ(prepared["blocks.1.mlp.fc1.weight"].lr_factor, 10 * std::pow(0.5, 2))
      << "the first pattern counts";
  EXPECT_EQ(prepared["blocks.1.attn.qkv.weight"].lr_factor, 3 * std::pow(0.5, 2));
}

TEST(LayerDecayTest, MistakesAreRefused) {
  for (const char* text : {"y_embedder.*", "y_embedder.*=", "=2", "y*=-1", "y*=x", "y*=inf"}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return parse_lr_factor(text).factor; }),
                HasSubstr("PATTERN=FACTOR"))
        << text;
  }
  RunConfig config = tiny();
  config.lr_factors.patterns = {"bloks.*=2"};
  EXPECT_THAT(refusal(config), HasSubstr("lr.factors: nothing is called"));
}

// ---- low-rank updates ----

RunConfig with_lora() {
  RunConfig config = tiny();
  config.finetune.lora.targets = {"blocks.*.attn.*", "final_layer.linear"};
  config.finetune.lora.rank = 2;
  config.finetune.lora.alpha = 6.0;
  return config;
}

TEST(LoraTest, UpdatesAreTrainedInTheirLinearsBucket) {
  RunConfig config = with_lora();
  config.finetune.train = {"y_embedder.*"};
  Prepared prepared(config);
  std::vector<std::string> trained;
  for (const auto& [path, parameter] : inference::trained_parameters(prepared.trainable.model())) {
    trained.push_back(path);
  }
  EXPECT_EQ(trained.size(), 2U * (2U * 3U + 1U) + 1U);
  EXPECT_THAT(trained, testing::Contains("blocks.2.attn.proj.lora_B.weight"));
  EXPECT_THAT(trained, testing::Contains("y_embedder.embedding_table.weight"));
  for (const optim::Bucket& bucket : prepared.trainable.arena().buckets()) {
    for (const optim::Slot& slot : bucket.slots) {
      if (slot.path.starts_with("blocks.")) {
        EXPECT_EQ(bucket.name, slot.path.substr(0, 8));
      }
    }
  }
  EXPECT_THAT(describe_finetuning(config, prepared.trainable.model(), prepared.trainable.arena()),
              HasSubstr("LoRA of rank 2 on 7 linears"));
}

TEST(LoraTest, MistakesAreRefused) {
  RunConfig config = with_lora();
  config.finetune.lora.targets = {"blocks.*.attn.kqv"};
  EXPECT_THAT(refusal(config), HasSubstr("finetune.lora.targets: nothing is called"));
  EXPECT_THAT(refusal(config), HasSubstr("blocks.*.attn.qkv"));
  config = with_lora();
  config.finetune.train = {"blocks.0.attn.qkv.*"};
  EXPECT_THAT(refusal(config), HasSubstr("which has a low-rank update and is frozen"));
  config = with_lora();
  config.finetune.fresh = {"y_embedder.*"};
  EXPECT_THAT(refusal(config), HasSubstr("Hint: name it in finetune.train"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] {
                         return parse_config<RunConfig>(
                                    {.text = "run: {dir: r}\nfinetune: {lora: {targets: [a]}}",
                                     .origin = "test"})
                             .run_dir;
                       }),
              HasSubstr("checkpoint.init_from must be given for finetune.lora"));
}

// ---- where weights come from ----

class InitialiseTest : public testing::Test {
 protected:
  /// A file with the weights of a model, none of them zero, and its buffers.
  fs::path weights_of(const RunConfig& config) {
    const auto model = models::make_model(config.model);
    LateTensors tensors;
    double number = 0.0;
    for (const auto& [path, parameter] : model->named_parameters()) {
      tensors[path] = checkpoint::late_tensor(
          at::linspace(0.1, 1.0, parameter->numel()).view(parameter->shape) + (number += 0.01));
    }
    for (const auto& [path, buffer] : model->named_buffers()) {
      tensors[path] = checkpoint::late_tensor(*buffer * 0.5);
    }
    fs::path path = folder_.path() / "base.safetensors";
    checkpoint::write_weights(path, tensors);
    return path;
  }

  data::TemporaryFolder folder_;
};

TEST_F(InitialiseTest, OtherClassesStartAsInANewModel) {
  RunConfig config = tiny();
  config.checkpoint.init_from = weights_of(config);
  const WeightsFile file = WeightsFile::open(config.checkpoint.init_from);
  config.model.num_classes = 7;
  Prepared strict(config);
  const std::string message = error_of(ErrorKind::kIo, [&] {
    return initialise_from(config, strict.trainable.model(), strict.trainable.arena());
  });
  EXPECT_THAT(message,
              HasSubstr("y_embedder.embedding_table.weight (must be [8, 16], is [5, 16])"));
  EXPECT_THAT(message, HasSubstr("finetune.fresh"));

  config.finetune.fresh = {"y_embedder.*"};
  Prepared prepared(config);
  const std::string table = "y_embedder.embedding_table.weight";
  const at::Tensor as_new = prepared.master(table).clone();
  EXPECT_EQ(as_new.size(0), 8) << "seven classes and the null class";
  EXPECT_THAT(initialise_from(config, prepared.trainable.model(), prepared.trainable.arena()),
              HasSubstr("as in a new model: " + table));
  EXPECT_TRUE(at::equal(prepared.master(table), as_new));
  EXPECT_TRUE(at::equal(prepared.trainable.arena().export_parameter(table, optim::Role::average(0)),
                        as_new));
  EXPECT_TRUE(at::equal(prepared.master("blocks.1.attn.qkv.weight"),
                        file.read("blocks.1.attn.qkv.weight")));
}

TEST_F(InitialiseTest, OtherMismatchesStayErrors) {
  RunConfig config = tiny();
  config.checkpoint.init_from = weights_of(config);
  config.model.transformer.depth = 4;
  config.finetune.fresh = {"y_embedder.*"};
  Prepared prepared(config);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] {
                         return initialise_from(config, prepared.trainable.model(),
                                                prepared.trainable.arena());
                       }),
              HasSubstr("10 missing [blocks.3.attn.qkv.weight"));
}

TEST_F(InitialiseTest, PositionsOfAnotherSizeAreMadeOrInterpolated) {
  RunConfig config = tiny();
  config.checkpoint.init_from = weights_of(config);  // a grid of 4 x 4
  const at::Tensor stored =
      WeightsFile::open(config.checkpoint.init_from).read("pos_embed");  // half of the formula
  config.model.height = 32;
  config.model.width = 32;
  const auto positions_with = [&config](inference::PositionChoice choice) {
    config.finetune.positions = choice;
    Prepared prepared(config);
    const std::string said =
        initialise_from(config, prepared.trainable.model(), prepared.trainable.arena());
    EXPECT_THAT(said, HasSubstr("pos_embed"));
    return *prepared.trainable.model().named_buffers().front().buffer;
  };
  Prepared strict(config);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] {
                         return initialise_from(config, strict.trainable.model(),
                                                strict.trainable.arena());
                       }),
              HasSubstr("finetune.positions"));
  EXPECT_TRUE(at::equal(positions_with(inference::PositionChoice::kMade),
                        models::sin_cos_position_embedding(16, 8, 8)));
  const at::Tensor got = positions_with(inference::PositionChoice::kInterpolated);  // [1, 64, 16]
  ASSERT_EQ(got.sizes(), (std::vector<int64_t>{1, 64, 16}));
  // Keys 1981 with a = -0.75, half-pixel centres: place 3 of 8 looks at 1.25 of 4, whose weights
  // are W(1.25), W(0.25), W(0.75), W(1.75).
  constexpr double kA = -0.75;
  const auto near = [](double x) { return ((kA + 2) * x - (kA + 3)) * x * x + 1; };
  const auto far = [](double x) { return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA; };
  const double weights[] = {far(1.25), near(0.25), near(0.75), far(1.75)};
  at::Tensor want = at::zeros({16});
  const at::Tensor grid = stored.view({4, 4, 16});
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t column = 0; column < 4; ++column) {
      want += grid[row][column] * (weights[row] * weights[column]);
    }
  }
  EXPECT_TRUE(at::allclose(got.view({8, 8, 16})[3][3], want, 1e-5, 1e-5));
}

TEST_F(InitialiseTest, PositionsInTimeAreInterpolatedLinearly) {
  RunConfig config = tiny();
  config.model = {.architecture = "stdit",
                  .in_channels = 4,
                  .frames = 4,
                  .height = 6,
                  .width = 6,
                  .time_scale = 1.0,
                  .text_channels = 8,
                  .text_tokens = 5,
                  .transformer = {.depth = 2, .hidden = 48, .heads = 4, .patch = 2}};
  config.model = models::resolved(config.model);
  config.model.num_classes = 1;
  config.checkpoint.init_from = weights_of(config);
  const at::Tensor stored =
      WeightsFile::open(config.checkpoint.init_from).read("pos_embed_temporal");  // [1, 4, 48]
  config.model.frames = 8;
  config.finetune.positions = inference::PositionChoice::kInterpolated;
  Prepared prepared(config);
  EXPECT_EQ(initialise_from(config, prepared.trainable.model(), prepared.trainable.arena()),
            "interpolated: pos_embed_temporal");
  at::Tensor got;
  for (const auto& [name, buffer] : prepared.trainable.model().named_buffers()) {
    got = name == "pos_embed_temporal" ? *buffer : got;
  }
  ASSERT_EQ(got.sizes(), (std::vector<int64_t>{1, 8, 48}));
  // Half-pixel centres: place 3 of 8 looks at 1.25 of 4.
  EXPECT_TRUE(at::allclose(got[0][3], stored[0][1] * 0.75 + stored[0][2] * 0.25, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(got[0][0], stored[0][0], 1e-5, 1e-6)) << "nothing is before the first";
}

TEST_F(InitialiseTest, NoGridIsRefused) {
  RunConfig config = tiny();
  config.checkpoint.init_from = weights_of(config);
  config.model.height = 32;
  config.finetune.positions = inference::PositionChoice::kInterpolated;
  Prepared prepared(config);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] {
                         return initialise_from(config, prepared.trainable.model(),
                                                prepared.trainable.arena());
                       }),
              HasSubstr("no grid in the proportions of the model's 8 x 4"));
}

TEST_F(InitialiseTest, DoraStartsAsTheBase) {
  RunConfig config = with_lora();
  config.finetune.lora.dora = true;
  config.checkpoint.init_from = weights_of(config);
  Prepared prepared(config);
  (void)initialise_from(config, prepared.trainable.model(), prepared.trainable.arena());
  const at::Tensor weight =
      WeightsFile::open(config.checkpoint.init_from).read("blocks.0.attn.proj.weight");
  const at::Tensor norms = weight.square().sum(1).sqrt();
  EXPECT_TRUE(at::allclose(prepared.master("blocks.0.attn.proj.lora_magnitude_vector"), norms));
  EXPECT_TRUE(at::allclose(prepared.trainable.arena().export_parameter(
                               "blocks.0.attn.proj.lora_magnitude_vector", optim::Role::average(0)),
                           norms));
}

// ---- adapters ----

/// The weights of the diffusers model under our names.
struct Base {
  Base() : file(pipelines::open_weights(kDit)), tensors(file.tensors()), model(config().model) {}

  static inference::ModelRecipe config() {
    return parse_config<inference::ModelRecipe>(
        {.text = pipelines::diffusers_recipe(kDit), .origin = "fixture"});
  }
  void merge(const std::vector<std::string>& adapters) {
    inference::merge_adapters(adapters, models::resolved(model), tensors, /*says=*/false);
  }

  WeightsFile file;
  LateTensors tensors;
  models::ModelConfig model;
};

class PeftTest : public testing::TestWithParam<const char*> {
 protected:
  fs::path folder_ = kData / ("adapter_" + std::string(GetParam()));
};

TEST_P(PeftTest, MergedWeightsEqualThoseOfPeft) {
  Base base;
  const LateTensors before = base.tensors;
  base.merge({folder_.string()});
  LateTensors ours = base.tensors;
  const LateTensors theirs =
      checkpoint::take_renamed(ours, models::diffusers_naming(models::resolved(base.model)));
  const WeightsFile expected = WeightsFile::open(folder_ / "merged.safetensors");
  ASSERT_GE(expected.names().size(), 3U);
  for (const std::string& name : expected.names()) {
    const at::Tensor want = expected.read(name);
    const at::Tensor got = theirs.at(name).read_all();
    EXPECT_EQ(got.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(got, want, 1e-6, 1e-7)) << name << (got - want).abs().max();
  }
  int64_t changed = 0;
  for (const auto& [name, tensor] : theirs) {
    changed += tensor.type == at::kFloat ? 1 : 0;
  }
  EXPECT_GE(changed, static_cast<int64_t>(expected.names().size()));
  // The bits do not depend on how rows are read.
  for (const auto& [name, tensor] : base.tensors) {
    const at::Tensor whole = tensor.read_all();
    for (int64_t row = 0; row < tensor.rows() && !tensor.shape.empty(); ++row) {
      ASSERT_TRUE(at::equal(tensor.read(row, row + 1), whole.narrow(0, row, 1))) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PeftTest,
                         testing::Values("lora", "dora", "patterns", "loha", "lokr"),
                         [](const auto& info) { return info.param; });

TEST(AdapterTest, WeightsScaleAndAdd) {
  const std::string path = "blocks.0.attn.qkv.weight";
  Base base;
  const at::Tensor start = base.tensors.at(path).read_all().to(at::kFloat);
  const auto merged = [&path](const std::vector<std::string>& adapters) {
    Base own;
    own.merge(adapters);
    return own.tensors.at(path).read_all();
  };
  const std::string adapter = (kData / "adapter_lora").string();
  const at::Tensor once = merged({adapter});
  EXPECT_GT((once - start).abs().max().item<double>(), 0.1);
  EXPECT_TRUE(at::equal(merged({adapter + ":1.0"}), once));
  EXPECT_TRUE(at::allclose(merged({adapter + ":0"}), start, 0, 0));
  EXPECT_TRUE(at::allclose(merged({adapter + ":0.5"}), (once + start) / 2, 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(merged({adapter + ":0.75", adapter + ":0.25"}), once, 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(merged({adapter + ":-1"}), 2 * start - once, 1e-6, 1e-6));
}

TEST(AdapterTest, TextsOfTheCommandLine) {
  EXPECT_EQ(checkpoint::parse_adapter_choice("a/b.safetensors").weight, 1.0);
  EXPECT_EQ(checkpoint::parse_adapter_choice("a/b.safetensors:0.5").path, "a/b.safetensors");
  EXPECT_EQ(checkpoint::parse_adapter_choice("a/b:-2e-1").weight, -0.2);
  EXPECT_EQ(checkpoint::parse_adapter_choice("a:b/c").path, "a:b/c");
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [] { return checkpoint::parse_adapter_choice("a:nan").weight; }),
      HasSubstr("must be finite"));
}

class AdapterErrorTest : public testing::Test {
 protected:
  std::string refusal(const LateTensors& tensors, const std::string& settings = "",
                      ErrorKind kind = ErrorKind::kIo) const {
    checkpoint::write_weights(folder_.path() / "adapter_model.safetensors", tensors);
    if (!settings.empty()) {
      folder_.write("adapter_config.json", settings);
    }
    return error_of(kind, [&] {
      Base base;
      base.merge({folder_.path().string()});
      return 0;
    });
  }
  /// An update of a linear with this name.
  static LateTensors update(const std::string& linear, int64_t in, int64_t out,
                            int64_t rank_of_b = 2) {
    return {{"base_model.model." + linear + ".lora_A.weight",
             checkpoint::late_tensor(at::ones({2, in}))},
            {"base_model.model." + linear + ".lora_B.weight",
             checkpoint::late_tensor(at::ones({out, rank_of_b}))}};
  }

  data::TemporaryFolder folder_;
};

TEST_F(AdapterErrorTest, UnmatchedKeysAreNamedWithNearNames) {
  const std::string message = refusal(update("transformer_blocks.0.attn1.to_qq", 16, 16));
  EXPECT_THAT(message, HasSubstr("1 keys that the model lacks: "
                                 "transformer_blocks.0.attn1.to_qq.weight"));
  EXPECT_THAT(message, HasSubstr("transformer_blocks.*.attn1.to_q.weight"));
}

TEST_F(AdapterErrorTest, OursAndDiffusersNamesFit) {
  EXPECT_EQ(refusal(update("blocks.0.attn.qkv", 16, 48)), "no error");
  EXPECT_EQ(refusal(update("transformer_blocks.0.attn1.to_q", 16, 16)), "no error");
}

TEST_F(AdapterErrorTest, ShapesAndPartsAreChecked) {
  EXPECT_THAT(refusal(update("blocks.0.attn.qkv", 16, 16)),
              HasSubstr("changes [16, 16] weights, but blocks.0.attn.qkv.weight is [48, 16]"));
  EXPECT_THAT(refusal(update("transformer_blocks.0.attn1.to_q", 16, 48)),
              HasSubstr("is [48, 16] for 3 of these"));
  EXPECT_THAT(refusal(update("blocks.0.attn.qkv", 16, 48, 3)),
              HasSubstr("must be [rank, in] and [out, rank], got [2, 16] and [48, 3]"));
  LateTensors half = update("blocks.0.attn.qkv", 16, 48);
  half.erase("base_model.model.blocks.0.attn.qkv.lora_B.weight");
  EXPECT_THAT(refusal(half), HasSubstr("blocks.0.attn.qkv has no lora_B"));
  LateTensors magnitude = update("blocks.0.attn.qkv", 16, 48);
  magnitude["base_model.model.blocks.0.attn.qkv.lora_magnitude_vector"] =
      checkpoint::late_tensor(at::ones({16}));
  EXPECT_THAT(refusal(magnitude), HasSubstr("must have 48 elements"));
  EXPECT_THAT(refusal({{"base_model.model.y_embedder.embedding_table.weight",
                        checkpoint::late_tensor(at::ones({4, 16}))}}),
              HasSubstr("takes the place of a weight of shape [6, 16], got [4, 16]"));
}

TEST_F(AdapterErrorTest, SettingsThatWeDoNotComputeAreRefused) {
  const LateTensors good = update("blocks.0.attn.qkv", 16, 48);
  for (const char* pattern : {R"({"qkv": "x"})", R"(["qkv"])", "3"}) {
    EXPECT_THAT(refusal(good, R"({"r": 2, "alpha_pattern": )" + std::string(pattern) + "}"),
                HasSubstr("alpha_pattern must have numbers by names of layers, got"));
  }
  EXPECT_THAT(refusal(good, R"({"r": 2, "bias": "all"})"), HasSubstr("bias must be none"));
  EXPECT_THAT(refusal(good, R"({"r": 2, "fan_in_fan_out": true})"), HasSubstr("fan_in_fan_out"));
  EXPECT_THAT(refusal(good, R"({"lora_alpha": "x"})"),
              HasSubstr("lora_alpha and r must be numbers"));
  EXPECT_THAT(refusal(good, "[]"), HasSubstr("must be a JSON object"));
  EXPECT_EQ(refusal(good, R"({"r": 2, "lora_alpha": 4})"), "no error");
}

TEST(AdapterAlphaTest, ComesFromSettingsHeaderOrKeys) {
  const std::string path = "blocks.0.attn.qkv.weight";
  const auto change_of = [&path](const std::string& prefix, const std::string& settings,
                                 const std::string& header, bool has_key) {
    const data::TemporaryFolder folder;
    LateTensors tensors = {
        {prefix + "blocks.0.attn.qkv.lora_A.weight", checkpoint::late_tensor(at::ones({2, 16}))},
        {prefix + "blocks.0.attn.qkv.lora_B.weight", checkpoint::late_tensor(at::ones({48, 2}))}};
    if (has_key) {
      tensors[prefix + "blocks.0.attn.qkv.alpha"] =
          checkpoint::late_tensor(at::full({}, 6.0, at::kFloat));
    }
    checkpoint::OutputOptions options;
    if (!header.empty()) {
      options.metadata["lora_adapter_metadata"] = header;
    }
    checkpoint::write_weights(folder.path() / "pytorch_lora_weights.safetensors", tensors, options);
    if (!settings.empty()) {
      folder.write("adapter_config.json", settings);
    }
    Base base;
    const at::Tensor before = base.tensors.at(path).read_all().to(at::kFloat);
    base.merge({folder.path().string()});
    return (base.tensors.at(path).read_all() - before).mean().item<double>();
  };
  constexpr double kProduct = 2.0;  // of ones, rank 2
  const std::string peft = "base_model.model.";
  EXPECT_NEAR(change_of(peft, "", "", false), kProduct, tolerance::kOtherOrder) << "the scale is 1";
  EXPECT_NEAR(change_of(peft, R"({"r": 2, "lora_alpha": 6})", "", false), 3 * kProduct,
              tolerance::kOtherOrder);
  EXPECT_NEAR(change_of(peft, R"({"r": 2, "lora_alpha": 6, "use_rslora": true})", "", false),
              6 / std::sqrt(2.0) * kProduct, tolerance::kOtherOrder);
  const auto with_pattern = [&](const std::string& name) {
    return change_of(peft, R"({"r": 2, "lora_alpha": 2, "alpha_pattern": {")" + name + R"(": 6}})",
                     "", false);
  };
  EXPECT_NEAR(with_pattern("^blocks.0.attn.qkv"), 3 * kProduct, tolerance::kOtherOrder);
  EXPECT_NEAR(with_pattern("qkv"), 3 * kProduct, tolerance::kOtherOrder);
  EXPECT_NEAR(with_pattern("kv"), kProduct, tolerance::kOtherOrder);
  EXPECT_NEAR(
      change_of("transformer.", "", R"({"transformer.r": 2, "transformer.lora_alpha": 6})", false),
      3 * kProduct, tolerance::kOtherOrder);
  EXPECT_NEAR(change_of("", "", "", true), 3 * kProduct, tolerance::kOtherOrder);
}

// One update under the names that PEFT, diffusers and kohya have had for it.
TEST(AdapterNamesTest, FormsOfOthersMergeToTheSameBits) {
  const std::string path = "blocks.0.attn.proj.weight";
  const at::Tensor a = at::linspace(-1.0, 1.0, 32).view({2, 16});
  const at::Tensor b = at::linspace(0.5, -0.5, 32).sin().view({16, 2});
  const auto merged = [&](const std::string& down, const std::string& up, bool has_text = false) {
    const data::TemporaryFolder folder;
    LateTensors tensors = {{down, checkpoint::late_tensor(a)}, {up, checkpoint::late_tensor(b)}};
    if (has_text) {
      tensors["lora_te_text_model_encoder_layers_0_mlp_fc1.alpha"] =
          checkpoint::late_tensor(at::ones({}));
    }
    const fs::path file = folder.path() / "adapter.safetensors";
    checkpoint::write_weights(file, tensors);
    Base base;
    base.merge({file.string()});
    return base.tensors.at(path).read_all();
  };
  const std::string block = "transformer_blocks.0.attn1.";
  const at::Tensor want = merged("base_model.model." + block + "to_out.0.lora_A.weight",
                                 "base_model.model." + block + "to_out.0.lora_B.weight");
  const std::vector<std::pair<std::string, std::string>> names = {
      {"unet." + block + "to_out.0.lora.down.weight", "unet." + block + "to_out.0.lora.up.weight"},
      {block + "to_out.0.lora_linear_layer.down.weight",
       block + "to_out.0.lora_linear_layer.up.weight"},
      {"unet." + block + "processor.to_out_lora.down.weight",
       "unet." + block + "processor.to_out_lora.up.weight"},
      {"lora_unet_transformer_blocks_0_attn1_to_out_0.lora_down.weight",
       "lora_unet_transformer_blocks_0_attn1_to_out_0.lora_up.weight"},
      {"lora_unet_blocks_0_attn_proj.lora_down.weight",
       "lora_unet_blocks_0_attn_proj.lora_up.weight"}};
  for (const auto& [down, up] : names) {
    EXPECT_TRUE(at::equal(merged(down, up, true), want)) << down;
  }
}

TEST(AdapterMistakeTest, AreRefused) {
  Base base;
  const std::string dora = (kData / "adapter_dora").string();
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         base.merge({dora, dora});
                         return 0;
                       }),
              HasSubstr("DoRA works alone"));
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] {
                         base.merge({"no/such/file.safetensors"});
                         return 0;
                       }),
              HasSubstr("does not exist"));
}

TEST(AdapterRoundTripTest, WrittenUpdatesMergeToTheSameBits) {
  const data::TemporaryFolder folder;
  const models::ModelConfig model = models::resolved(Base::config().model);
  for (const char* kind : {"lora", "dora"}) {
    // Of whole linears under our names, as a run has them.
    LateTensors own;
    const auto values = [](const std::vector<int64_t>& shape) {
      const int64_t numel = c10::multiply_integers(shape);
      return checkpoint::late_tensor(at::linspace(-0.5, 0.7, numel).sin().view(shape));
    };
    own["blocks.1.attn.qkv.lora_A.weight"] = values({3, 16});
    own["blocks.1.attn.qkv.lora_B.weight"] = values({48, 3});
    if (std::string(kind) == "dora") {
      own["blocks.1.attn.qkv.lora_magnitude_vector"] =
          checkpoint::late_tensor(at::linspace(0.5, 2.0, 48));
    }
    const checkpoint::AdapterSettings settings{.alpha = 5.0};
    const checkpoint::Adapter adapter = checkpoint::take_adapter(own, settings, "test");
    EXPECT_TRUE(own.empty());
    Base direct;
    checkpoint::merge(direct.tensors, {{adapter, 1.0}});
    const at::Tensor want = direct.tensors.at("blocks.1.attn.qkv.weight").read_all();
    for (const bool diffusers : {false, true}) {
      const fs::path path = folder.path() / (std::string(kind) + (diffusers ? "-theirs" : "-ours"));
      checkpoint::write_adapter(path, adapter,
                                diffusers ? models::diffusers_naming(model) : nn::Naming());
      Base read;
      read.merge({path.string()});
      EXPECT_TRUE(at::equal(read.tensors.at("blocks.1.attn.qkv.weight").read_all(), want)) << path;
      const WeightsFile file = WeightsFile::open(path / "adapter_model.safetensors");
      EXPECT_TRUE(
          file.contains(diffusers ? "base_model.model.transformer_blocks.1.attn1.to_k.lora_A.weight"
                                  : "base_model.model.blocks.1.attn.qkv.lora_A.weight"));
    }
  }
}

}  // namespace finetune_test
}  // namespace kinora::train
