#include "kinora/inference/convert_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"
#include "kinora/inference/trained_model.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/sampling_config.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::inference {
namespace convert_weights_test {

namespace fs = std::filesystem;
using checkpoint::LateTensors;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::HasSubstr;

const fs::path kData = source_path("tests/train/data");
const fs::path kDit = kData / "diffusers_dit";
const fs::path kPixart = kData / "diffusers_pixart";

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Passes if both have the same names and bits.
void expect_equal(const WeightsFile& a, const WeightsFile& b) {
  EXPECT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    if (b.contains(name)) {
      EXPECT_EQ(a.read(name).scalar_type(), b.read(name).scalar_type()) << name;
      EXPECT_TRUE(at::equal(a.read(name), b.read(name))) << name;
    }
  }
}

class ConvertWeightsTest : public testing::Test {
 protected:
  /// A copy of a fixture's model whose config.json has these keys too.
  fs::path copy_of(const fs::path& fixture, const json& changes = json::object()) const {
    fs::path folder = folder_.path() / "copy";
    fs::remove_all(folder);
    fs::copy(fixture / "transformer", folder);
    json config = json::parse(text_of(folder / "config.json"));
    config.update(changes);
    std::ofstream(folder / "config.json") << config.dump();
    return folder;
  }

  /// The fixture's weights with `change` made to them, as one file.
  template <typename Change>
  fs::path changed(const fs::path& fixture, const Change& change) const {
    fs::path folder = copy_of(fixture);
    const WeightsFile file = WeightsFile::open(fixture);
    LateTensors tensors = file.tensors();
    change(tensors);
    checkpoint::write_weights(folder / "diffusion_pytorch_model.safetensors", tensors);
    return folder;
  }

  [[nodiscard]] fs::path in(const std::string& name) const { return folder_.path() / name; }

  Converted convert(const fs::path& from, const fs::path& to) const {
    return convert_weights({.from = from, .to = to});
  }
  std::string refusal(ErrorKind kind, const ConvertOptions& options) const {
    return error_of(kind, [&] { (void)convert_weights(options); });
  }

  data::TemporaryFolder folder_;
};

at::Tensor output_of(TrainedModel& trained, const WeightsFile& given) {
  const at::NoGradGuard guard;
  diffusion::Conditions conditions;
  if (given.contains("labels")) {
    conditions.labels = given.read("labels");
  } else {
    conditions.text = given.read("text");
    conditions.text_lengths = given.read("text_lengths");
    conditions.height = given.read("height");
    conditions.width = given.read("width");
  }
  return trained.model->forward(given.read("x"), given.read("t"), conditions);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST_F(ConvertWeightsTest, DitOfDiffusersComputesTheSame) {
  const WeightsFile given = WeightsFile::open(kDit / "expected.safetensors");
  TrainedModel trained =
      load_trained(kDit, {.device = DeviceChoice::kCpu, .precision = Precision::kFp32});
  EXPECT_EQ(trained.recipe.model.transformer.depth, 2);
  EXPECT_EQ(trained.recipe.model.num_classes, 5);
  const at::Tensor output = output_of(trained, given);
  // diffusers' own frequencies of t are others (tools/make_diffusers_fixtures.py): at t = 0 they do
  // not count.
  EXPECT_LT(distance(output, given.read("output_as_trained")), 1e-5);
  EXPECT_LT(distance(output[0], given.read("output")[0]), 1e-5);
  EXPECT_GT(distance(output[1], given.read("output")[1]), 1e-3);
}

TEST_F(ConvertWeightsTest, PixartOfDiffusersComputesTheSame) {
  const WeightsFile given = WeightsFile::open(kPixart / "expected.safetensors");
  TrainedModel trained =
      load_trained(kPixart, {.device = DeviceChoice::kCpu, .precision = Precision::kFp32});
  EXPECT_TRUE(trained.recipe.model.transformer.size_conditions);
  EXPECT_LT(distance(output_of(trained, given), given.read("output")), 1e-5);
}

TEST_F(ConvertWeightsTest, TheOldClassNameIsReadToo) {
  const WeightsFile given = WeightsFile::open(kDit / "expected.safetensors");
  const fs::path old = copy_of(kDit, {{"_class_name", "Transformer2DModel"}});
  TrainedModel trained =
      load_trained(old, {.device = DeviceChoice::kCpu, .precision = Precision::kFp32});
  EXPECT_LT(distance(output_of(trained, given), given.read("output_as_trained")), 1e-5);
  const fs::path pixart = copy_of(kPixart, {{"_class_name", "Transformer2DModel"}});
  EXPECT_THAT(pipelines::diffusers_recipe(pixart), HasSubstr("\"pixart\""));
}

TEST_F(ConvertWeightsTest, OtherTransformersAreRefusedByName) {
  for (const auto& [change, message] : std::vector<std::pair<json, std::string>>{
           {{{"_class_name", "LuminaNextDiT2DModel"}}, "LuminaNextDiT2DModel"},
           {{{"_class_name", "Transformer2DModel"}, {"norm_type", "layer_norm"}}, "layer_norm"},
           {{{"activation_fn", "geglu"}}, "activation_fn must be \"gelu-approximate\""},
           {{{"attention_bias", false}}, "attention_bias must be true"},
           {{{"norm_elementwise_affine", true}}, "norm_elementwise_affine must be false"},
           {{{"out_channels", 5}}, "out_channels must be in_channels or twice"}}) {
    EXPECT_THAT(refusal(ErrorKind::kConfig, {.from = copy_of(kDit, change), .to = in("out")}),
                HasSubstr(message));
  }
  EXPECT_THAT(
      refusal(ErrorKind::kIo, {.from = copy_of(kDit, {{"num_layers", "many"}}), .to = in("out")}),
      HasSubstr("num_layers is of another kind"));
  std::ofstream(in("copy") / "config.json") << "{";
  EXPECT_THAT(refusal(ErrorKind::kIo, {.from = in("copy"), .to = in("out")}),
              HasSubstr("a JSON object"));
  EXPECT_FALSE(fs::exists(in("out")));
}

TEST_F(ConvertWeightsTest, BothDirectionsKeepEveryBit) {
  for (const fs::path& fixture : {kDit, kPixart}) {
    const std::string name = fixture.filename();
    const fs::path ours = in(name + ".safetensors");
    const fs::path theirs = in(name);
    const Converted converted = convert(fixture, ours);
    EXPECT_TRUE(converted.has_model);
    EXPECT_TRUE(converted.fit.is_whole()) << checkpoint::describe(converted.fit);
    EXPECT_THAT(converted.made, testing::Contains("pos_embed"));
    EXPECT_TRUE(WeightsFile::open(ours).contains("blocks.1.attn.qkv.weight"));
    (void)convert(ours, theirs);
    expect_equal(WeightsFile::open(theirs / "transformer/diffusion_pytorch_model.safetensors"),
                 WeightsFile::open(fixture));
    // And ours again, with the buffers that diffusers has no name for.
    const fs::path again = in(name + "-again.safetensors");
    EXPECT_TRUE(convert(theirs, again).made.empty());
    EXPECT_EQ(text_of(again), text_of(ours));
    // config.json says the same as the one of diffusers, but for what is at its default there.
    const json wrote = json::parse(text_of(theirs / "transformer/config.json"));
    const json original = json::parse(text_of(fixture / "transformer/config.json"));
    for (const auto& [key, value] : wrote.items()) {
      if (key != "_diffusers_version") {
        EXPECT_EQ(value, original.value(key, json())) << key;
      }
    }
  }
}

TEST_F(ConvertWeightsTest, AFolderForDiffusersIsAPipeline) {
  const Converted converted = convert(kDit, in("out"));
  EXPECT_THAT(converted.notes, testing::ElementsAre(HasSubstr("there is no vae/")));
  const json index = json::parse(text_of(in("out") / "model_index.json"));
  EXPECT_EQ(index["_class_name"], "DiTPipeline");
  EXPECT_EQ(index["transformer"][1], "DiTTransformer2DModel");
  const json scheduler = json::parse(text_of(in("out") / "scheduler/scheduler_config.json"));
  EXPECT_EQ(scheduler["num_train_timesteps"], 1000);
  EXPECT_DOUBLE_EQ(scheduler["beta_start"], 1e-4);
  EXPECT_DOUBLE_EQ(scheduler["beta_end"], 0.02);
  EXPECT_THAT(refusal(ErrorKind::kIo, {.from = kDit, .to = in("out")}),
              HasSubstr("must be an empty folder"));
}

/// A pipeline's folder with that scheduler of tools/make_objective_fixtures.py.
fs::path pipeline_with(const fs::path& folder, const std::string& scheduler) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy(kDit / "transformer", folder / "transformer");
  fs::copy(kData / "diffusers_schedulers" / scheduler, folder / "scheduler");
  return folder;
}

TEST_F(ConvertWeightsTest, TheSchedulerSaysWhatWasLearned) {
  const auto objective_of = [&](const fs::path& path) {
    return load_trained(path, {.device = DeviceChoice::kCpu}).recipe.objective;
  };
  for (const char* inside : {"", "transformer", "transformer/"}) {
    const fs::path folder = pipeline_with(in("pipeline"), "ddim_v");
    const diffusion::ObjectiveConfig of_v = objective_of(folder / inside);
    EXPECT_EQ(of_v.prediction, diffusion::Prediction::kV) << inside;
    EXPECT_EQ(of_v.betas, diffusion::BetaCurve::kScaledLinear);
    EXPECT_DOUBLE_EQ(of_v.beta_start, 0.00085);
    EXPECT_DOUBLE_EQ(of_v.beta_end, 0.012);
    EXPECT_TRUE(of_v.zero_terminal_snr);
  }
  // The sampler follows: its first step is where the signal is 0.
  const TrainedModel trained = load_trained(in("pipeline"), {.device = DeviceChoice::kCpu});
  const auto sampler =
      std::get<diffusion::DdpmSampler>(pipelines::make_sampler({.steps = 5}, trained.objective));
  EXPECT_EQ(sampler.prediction, diffusion::Prediction::kV);
  EXPECT_EQ(sampler.schedule.alphas_cumprod.back(), 0.0);

  const diffusion::ObjectiveConfig half = objective_of(pipeline_with(in("half"), "dpm_500"));
  EXPECT_EQ(half.timesteps, 500);
  EXPECT_DOUBLE_EQ(diffusion::scaled_ends(half).first, 2e-4);
  EXPECT_DOUBLE_EQ(diffusion::scaled_ends(half).second, 0.04);
  EXPECT_EQ(half.prediction, diffusion::Prediction::kEps);
  const diffusion::ObjectiveConfig data = objective_of(pipeline_with(in("data"), "unipc_sample"));
  EXPECT_EQ(data.prediction, diffusion::Prediction::kData);
  EXPECT_EQ(data.betas, diffusion::BetaCurve::kSquaredCosine);
  EXPECT_FALSE(data.zero_terminal_snr);
}

TEST_F(ConvertWeightsTest, TheObjectiveSurvivesAFolderOfDiffusers) {
  for (const char* scheduler : {"ddim_v", "dpm_500", "unipc_sample"}) {
    const fs::path ours = in(std::string(scheduler) + ".safetensors");
    const fs::path theirs = in(std::string(scheduler) + "-again");
    (void)convert(pipeline_with(in("pipeline"), scheduler), ours);
    (void)convert(ours, theirs);
    const json wrote = json::parse(text_of(theirs / "scheduler/scheduler_config.json"));
    const pipelines::DiffusersConfig given(kData / "diffusers_schedulers" / scheduler /
                                           "scheduler_config.json");
    EXPECT_EQ(wrote["num_train_timesteps"], given.get<int64_t>("num_train_timesteps", 0));
    for (const char* key : {"prediction_type", "beta_schedule"}) {
      EXPECT_EQ(wrote[key], given.get<std::string>(key, "")) << scheduler;
    }
    for (const char* key : {"beta_start", "beta_end"}) {
      EXPECT_DOUBLE_EQ(wrote[key].get<double>(), given.get<double>(key, 0.0)) << scheduler;
    }
    EXPECT_EQ(wrote["rescale_betas_zero_snr"], given.get<bool>("rescale_betas_zero_snr", false));
  }
}

TEST_F(ConvertWeightsTest, OtherSchedulersAreRefusedByName) {
  for (const auto& [scheduler, message] : std::vector<std::pair<std::string, std::string>>{
           {"flow_match", "is of a flow (FlowMatchEulerDiscreteScheduler)"},
           {"dpm_flow", "is of a flow (DPMSolverMultistepScheduler)"},
           {"sigmoid",
            "beta_schedule must be one of linear, scaled_linear, squaredcos_cap_v2, got "
            "\"sigmoid\""},
           {"trained", "trained_betas must be null"}}) {
    EXPECT_THAT(refusal(ErrorKind::kConfig,
                        {.from = pipeline_with(in("pipeline"), scheduler), .to = in("out")}),
                HasSubstr(message));
  }
}

TEST_F(ConvertWeightsTest, BlocksWithEmbeddersOfTheirOwnAreRefused) {
  const std::string key = "transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.bias";
  const fs::path folder = changed(kDit, [&](LateTensors& tensors) {
    tensors[key] = checkpoint::late_tensor(tensors.at(key).read_all() + 1);
  });
  EXPECT_THAT(refusal(ErrorKind::kIo, {.from = folder, .to = in("w.safetensors")}),
              testing::AllOf(HasSubstr(key), HasSubstr("must be the same as "
                                                       "transformer_blocks.0.norm1")));
}

TEST_F(ConvertWeightsTest, WhatIsMissingOrTooMuchIsListedAndMayBeAllowed) {
  const fs::path folder = changed(kDit, [](LateTensors& tensors) {
    tensors.erase("transformer_blocks.1.attn1.to_k.bias");
    tensors.erase("proj_out_1.weight");
    tensors["extra"] = checkpoint::late_tensor(at::arange(3));
  });
  ConvertOptions options{.from = folder, .to = in("w.safetensors")};
  const std::string message = refusal(ErrorKind::kIo, options);
  EXPECT_THAT(message, HasSubstr("2 missing [blocks.1.attn.qkv.bias, "
                                 "final_layer.adaLN_modulation.1.weight]"));
  EXPECT_THAT(message, HasSubstr("3 unexpected [extra, transformer_blocks.1.attn1.to_q.bias, "
                                 "transformer_blocks.1.attn1.to_v.bias]"));
  options.allow_missing = true;
  EXPECT_THAT(refusal(ErrorKind::kIo, options), HasSubstr("3 unexpected"));
  EXPECT_FALSE(fs::exists(options.to));
  options.allow_unexpected = true;
  const Converted converted = convert_weights(options);
  EXPECT_EQ(converted.fit.missing.size(), 2U);
  EXPECT_EQ(converted.fit.unexpected.size(), 3U);
  const WeightsFile written = WeightsFile::open(options.to);
  EXPECT_FALSE(written.contains("extra"));
  EXPECT_FALSE(written.contains("final_layer.adaLN_modulation.1.weight"));
  EXPECT_TRUE(written.contains("final_layer.adaLN_modulation.1.bias"));

  const fs::path wide = changed(kDit, [](LateTensors& tensors) {
    tensors["proj_out_1.bias"] = checkpoint::late_tensor(at::arange(3, at::kFloat));
  });
  options.from = wide;
  EXPECT_THAT(refusal(ErrorKind::kIo, options),
              HasSubstr("final_layer.adaLN_modulation.1.bias (must be [32], is [3])"));
}

TEST_F(ConvertWeightsTest, PartsThatDoNotFitTogetherAreRefused) {
  const fs::path folder = changed(kDit, [](LateTensors& tensors) {
    const std::string key = "transformer_blocks.0.attn1.to_k.weight";
    tensors[key] = checkpoint::late_tensor(tensors.at(key).read_all().narrow(1, 0, 3));
  });
  EXPECT_THAT(refusal(ErrorKind::kIo, {.from = folder, .to = in("w.safetensors")}),
              HasSubstr("to_k.weight must be as transformer_blocks.0.attn1.to_q.weight but for its "
                        "rows, got shape [16, 3]"));
}

TEST_F(ConvertWeightsTest, OriginalTrainingFilesGiveEitherWeightsWithoutAModel) {
  const fs::path original = source_path("tests/checkpoint/data/dit_training.pt");
  const Converted converted = convert(original, in("ema.safetensors"));
  EXPECT_FALSE(converted.has_model);
  EXPECT_THAT(converted.notes, testing::ElementsAre(HasSubstr("names are as they were")));
  expect_equal(WeightsFile::open(in("ema.safetensors")), WeightsFile::open(original));
  (void)convert_weights({.from = original, .to = in("raw.safetensors"), .raw = true});
  expect_equal(WeightsFile::open(in("raw.safetensors")), WeightsFile::open(original, false));
  EXPECT_NE(text_of(in("raw.safetensors")), text_of(in("ema.safetensors")));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.from = original, .to = in("x.safetensors"), .ema = 1}),
              HasSubstr("no average number 1"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.from = original, .to = in("folder")}),
              HasSubstr("--config"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.from = original, .to = in("x.ckpt")}),
              HasSubstr("FILE.safetensors or a folder"));
}

TEST_F(ConvertWeightsTest, ARecipeSaysWhatAFileIsOf) {
  const fs::path original = source_path("tests/checkpoint/data/dit_training.pt");
  const std::string recipe =
      "run: {dir: x}\nmodel: {depth: 1, hidden: 4, heads: 2, patch: 2, in_channels: 4, height: 4, "
      "width: 6, "
      "num_classes: 3}\n";
  std::ofstream(in("recipe.yaml")) << recipe;
  ConvertOptions options{
      .from = original, .to = in("w.safetensors"), .config_file = in("recipe.yaml").string()};
  const Converted converted = convert_weights(options);
  EXPECT_TRUE(converted.has_model);
  EXPECT_TRUE(converted.made.empty());
  expect_equal(WeightsFile::open(options.to), WeightsFile::open(original));
  // The file says what it is from now on.
  EXPECT_EQ(
      load_trained(options.to, {.device = DeviceChoice::kCpu}).recipe.model.transformer.hidden, 4);
  options.from = options.to;
  options.config_file.clear();
  options.to = in("theirs");
  EXPECT_THAT(refusal(ErrorKind::kConfig, options),
              HasSubstr("model.height and model.width must be the same for diffusers, got 4 x 6"));
  EXPECT_FALSE(fs::exists(options.to));
}

TEST_F(ConvertWeightsTest, WhatDiffusersCannotDescribeIsRefused) {
  const fs::path ours = in("ours.safetensors");
  (void)convert(kDit, ours);
  const WeightsFile file = WeightsFile::open(ours);
  models::ModelConfig model = load_trained(ours, {.device = DeviceChoice::kCpu}).recipe.model;
  const auto refused = [&](const models::ModelConfig& config) {
    return error_of(ErrorKind::kConfig,
                    [&] { pipelines::write_diffusers(in("out"), file.tensors(), config, {}, {}); });
  };
  models::ModelConfig flow = model;
  flow.time_scale = 1000.0;
  EXPECT_THAT(refused(flow), HasSubstr("objective.kind=iddpm"));
  models::ModelConfig narrow = model;
  narrow.transformer.mlp_ratio = 2.0;
  EXPECT_THAT(refused(narrow), HasSubstr("model.mlp_ratio must be 4 for diffusers, got 2"));
  models::ModelConfig compressed = model;
  compressed.transformer.kv_compress = models::KvSampling::kConv;
  EXPECT_THAT(refused(compressed), HasSubstr("model.kv_compress must be none for diffusers"));
  models::ModelConfig clips = model;
  clips.architecture = "stdit";
  EXPECT_THAT(refused(clips),
              HasSubstr("one of DiT, PixArt, LatteT2V, SD3, Flux, HunyuanVideo, CogVideoX, Wan, "
                        "LTXVideo, UNet and "
                        "ClassUNet"));
}

TEST_F(ConvertWeightsTest, ShardsHoldTheSame) {
  ConvertOptions options{.from = kDit, .to = in("w.safetensors"), .max_shard_bytes = 10'000};
  (void)convert_weights(options);
  EXPECT_FALSE(fs::exists(options.to));
  const fs::path index = in("w.safetensors.index.json");
  const json values = json::parse(text_of(index));
  EXPECT_GT(values["weight_map"].size(), 20U);
  EXPECT_EQ(values["weight_map"]["blocks.0.attn.qkv.weight"].get<std::string>().substr(0, 14),
            "w-00001-of-000");
  (void)convert(kDit, in("whole.safetensors"));
  expect_equal(WeightsFile::open(index), WeightsFile::open(in("whole.safetensors")));
  options.to = in("folder");
  (void)convert_weights(options);
  EXPECT_TRUE(
      fs::exists(in("folder") / "transformer/diffusion_pytorch_model.safetensors.index.json"));
  (void)convert(in("folder"), in("again.safetensors"));
  expect_equal(WeightsFile::open(in("again.safetensors")),
               WeightsFile::open(in("whole.safetensors")));
}

TEST_F(ConvertWeightsTest, ADtypeIsOfFloatsOnly) {
  const LateTensors tensors = {{"floats", checkpoint::late_tensor(at::arange(5, at::kFloat) / 3)},
                               {"numbers", checkpoint::late_tensor(at::arange(5))},
                               {"none", checkpoint::late_tensor(at::arange(0, at::kDouble))},
                               {"one", checkpoint::late_tensor(at::arange(1, at::kFloat)[0])}};
  checkpoint::write_weights(in("in.safetensors"), tensors);
  (void)convert_weights(
      {.from = in("in.safetensors"), .to = in("out.safetensors"), .type = at::kBFloat16});
  const WeightsFile out = WeightsFile::open(in("out.safetensors"));
  EXPECT_TRUE(at::equal(out.read("floats"), (at::arange(5, at::kFloat) / 3).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(out.read("numbers"), at::arange(5)));
  EXPECT_EQ(out.read("none").scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.read("one").dim(), 0);
}

}  // namespace convert_weights_test
}  // namespace kinora::inference
