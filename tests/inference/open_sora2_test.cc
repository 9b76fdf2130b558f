// Open-Sora 2 in the form of its published file: names, and heads whose dims lie half-split. What
// it computes is from tools/reference/make_open_sora2_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/trained_model.h"
#include "kinora/inference/updates.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/diffusers_model.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::inference {
namespace open_sora2_test {

namespace fs = std::filesystem;
using checkpoint::LateTensors;
using checkpoint::WeightsFile;
using models::formula_values;
using testing::HasSubstr;

const fs::path kData = source_path("tests/inference/data/open_sora2");
const fs::path kWeights = kData / "Open_Sora_v2.safetensors";

class OpenSora2Test : public testing::Test {
 protected:
  OpenSora2Test() {
    std::ofstream(recipe()) << "model: {architecture: open_sora2, in_channels: 3, frames: 3, "
                               "height: 6, width: 4, learn_sigma: false, time_scale: 1000.0, "
                               "text_channels: 10, text_tokens: 5, pooled_channels: 6, depth: 2, "
                               "parallel_depth: 2, hidden: 24, heads: 2, patch: 2, "
                               "rotary_axes: [4, 4, 4], given_embedders: true}\n"
                               "objective: {kind: flow}\n";
  }
  [[nodiscard]] std::string recipe() const { return (folder_.path() / "recipe.yaml").string(); }
  [[nodiscard]] fs::path in(const std::string& name) const { return folder_.path() / name; }
  [[nodiscard]] TrainedModel load(const fs::path& path) const {
    return load_trained(path, {.device = DeviceChoice::kCpu,
                               .precision = Precision::kFp32,
                               .config_file = recipe(),
                               .says = false});
  }

 private:
  data::TemporaryFolder folder_;
};

at::Tensor output_of(TrainedModel& trained) {
  const at::NoGradGuard guard;
  const WeightsFile given = WeightsFile::open(kData / "expected.safetensors");
  diffusion::Conditions conditions;
  conditions.text = given.read("forward.text");
  conditions.pooled = given.read("forward.pooled");
  conditions.given = given.read("forward.given");
  conditions.frame_mask = given.read("forward.frame_mask").to(at::kBool);
  return trained.model->forward(given.read("forward.x_t"), given.read("forward.t"), conditions);
}

TEST_F(OpenSora2Test, TheFileOfTheAuthorsComputesTheSame) {
  TrainedModel trained = load(kWeights);
  const at::Tensor expected =
      WeightsFile::open(kData / "expected.safetensors").read("forward.output");
  EXPECT_LT(ops::relative_error(output_of(trained), expected), tolerance::kOtherOrder);
}

TEST_F(OpenSora2Test, ItIsWrittenAgainToTheBit) {
  const Converted ours =
      convert_weights({.from = kWeights, .to = in("own.safetensors"), .config_file = recipe()});
  EXPECT_TRUE(ours.has_model);
  (void)convert_weights({.from = in("own.safetensors"),
                         .to = in("theirs.safetensors"),
                         .layout = ConvertOptions::Layout::kAuthors});
  const WeightsFile expected = WeightsFile::open(kWeights);
  const WeightsFile got = WeightsFile::open(in("theirs.safetensors"));
  for (const std::string& name : expected.names()) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.read(name).equal(expected.read(name))) << name;
  }
  EXPECT_EQ(std::ssize(got.names()), std::ssize(expected.names()) + 2);  // what no text is
  // As in Open_Sora_v2.safetensors.
  for (const char* key :
       {"img_in.weight", "cond_in.bias", "txt_in.weight", "time_in.out_layer.weight",
        "vector_in.in_layer.bias", "double_blocks.1.txt_mod.lin.weight",
        "double_blocks.0.img_attn.q_proj.bias", "double_blocks.1.txt_attn.k_proj.weight",
        "double_blocks.0.txt_attn.norm.key_norm.scale", "double_blocks.0.img_mlp.2.bias",
        "single_blocks.0.q_proj.weight", "single_blocks.1.v_mlp.bias",
        "single_blocks.1.linear2.weight", "single_blocks.0.norm.query_norm.scale",
        "final_layer.adaLN_modulation.1.weight"}) {
    EXPECT_TRUE(got.contains(key)) << key;
  }
  const WeightsFile read = pipelines::open_weights(in("theirs.safetensors"), false);
  const WeightsFile own = WeightsFile::open(in("own.safetensors"));
  EXPECT_EQ(read.names(), own.names());
  for (const std::string& name : own.names()) {
    EXPECT_TRUE(read.read(name).equal(own.read(name))) << name;
  }
}

// Updates with the authors' names change the rows that the authors mean.
TEST_F(OpenSora2Test, AdaptersOfItsNamesChangeItsRows) {
  const auto file = WeightsFile::open(kWeights);
  const std::map<std::string, std::string> layers = {
      {"double_blocks.1.img_attn.q_proj", "lora_unet_double_blocks_1_img_attn_q_proj"},
      {"double_blocks.0.txt_attn.v_proj", "lora_unet_double_blocks_0_txt_attn_v_proj"},
      {"single_blocks.0.k_proj", "lora_unet_single_blocks_0_k_proj"},
      {"single_blocks.1.v_mlp", "lora_unet_single_blocks_1_v_mlp"}};
  LateTensors adapter;
  LateTensors changed = file.tensors();
  for (const auto& [layer, name] : layers) {
    const at::Tensor weight = file.read(layer + ".weight");
    const at::Tensor down = formula_values(name + ".down", {2, weight.size(1)});
    const at::Tensor up = formula_values(name + ".up", {weight.size(0), 2});
    adapter.emplace(name + ".lora_down.weight", checkpoint::late_tensor(down));
    adapter.emplace(name + ".lora_up.weight", checkpoint::late_tensor(up));
    changed[layer + ".weight"] = checkpoint::late_tensor(weight + up.matmul(down));
  }
  checkpoint::write_weights(in("adapter.safetensors"), adapter, {});
  checkpoint::write_weights(in("changed.safetensors"), changed, {});
  const WeightsFile plain = pipelines::open_weights(kWeights, false);
  const WeightsFile expected = pipelines::open_weights(in("changed.safetensors"), false);
  const models::ModelConfig model = load(kWeights).recipe.model;
  LateTensors merged = plain.tensors();
  merge_adapters({in("adapter.safetensors")}, model, merged, /*says=*/false);
  for (const auto& [name, tensor] : merged) {
    EXPECT_LT(ops::relative_error(tensor.read_all(), expected.read(name)), 1e-6) << name;
  }

  // And they are written again with these names.
  auto read = read_adapters({in("adapter.safetensors")}, model, plain.tensors());
  checkpoint::write_kohya_adapter(in("again.safetensors"), read.front().adapter,
                                  models::family_of(model).original_naming(model));
  const WeightsFile again = WeightsFile::open(in("again.safetensors"));
  for (const auto& [name, tensor] : adapter) {
    ASSERT_TRUE(again.contains(name)) << name;
    EXPECT_TRUE(again.read(name).equal(tensor.read_all())) << name;
  }
}

TEST_F(OpenSora2Test, HeadsThatDoNotDivideAreRefused) {
  const auto file = WeightsFile::open(kWeights);
  LateTensors tensors = file.tensors();
  tensors["double_blocks.0.img_attn.norm.query_norm.scale"] =
      checkpoint::late_tensor(formula_values("scale", {10}));
  checkpoint::write_weights(in("damaged.safetensors"), tensors, {});
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] { (void)pipelines::open_weights(in("damaged.safetensors"), false); }),
              HasSubstr("must be whole heads of 10, an even number, got shape [24"));
}

}  // namespace open_sora2_test
}  // namespace kinora::inference
