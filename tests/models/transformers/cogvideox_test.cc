#include "kinora/models/transformers/cogvideox.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace cogvideox_test {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t kFrameCompression = 4;
constexpr int64_t kPatch = 2;

/// What config.json of diffusers says.
ModelConfig config_of(const json& values) {
  const auto get = [&](const char* key, int64_t otherwise) {
    const auto found = values.find(key);
    return found == values.end() || found->is_null() ? otherwise : found->get<int64_t>();
  };
  ModelConfig config;
  config.architecture = "cogvideox";
  config.in_channels = get("out_channels", 16);
  config.frames = (get("sample_frames", 49) - 1) / kFrameCompression + 1;
  config.height = get("sample_height", 60);
  config.width = get("sample_width", 90);
  config.learn_sigma = false;
  config.time_scale = 1.0;
  config.text_channels = get("text_embed_dim", 4096);
  config.text_tokens = get("max_text_seq_length", 226);
  TransformerConfig& own = config.transformer;
  own.depth = get("num_layers", 30);
  own.heads = get("num_attention_heads", 30);
  own.hidden = own.heads * get("attention_head_dim", 64);
  own.patch = kPatch;
  own.patch_frames = get("patch_size_t", 1);
  own.position_scale = values.value("spatial_interpolation_scale", 1.875);
  own.time_position_scale = values.value("temporal_interpolation_scale", 1.0);
  own.rotary_3d = values.value("use_rotary_positional_embeddings", false);
  own.learned_positions = values.value("use_learned_positional_embeddings", false);
  own.time_channels = get("time_embed_dim", 512);
  own.ofs = get("ofs_embed_dim", 0) > 0 ? 2.0 : 0.0;
  own.given_embedders = get("in_channels", 16) > config.in_channels;
  return resolved(config);
}

/// A file of tools/reference/make_mmdit_fixtures.py.
class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : file_(
            io::SafetensorsFile::open(source_path("tests/models/data/" + name + ".safetensors"))) {}
  [[nodiscard]] at::Tensor find(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] ModelConfig config() const {
    return config_of(json::parse(file_.metadata().at("config")));
  }
  [[nodiscard]] diffusion::Conditions conditions() const {
    diffusion::Conditions conditions;
    conditions.text = find("forward.text").set_requires_grad(true);
    conditions.beside = find("forward.beside");
    return conditions;
  }
  [[nodiscard]] std::map<std::string, std::vector<int64_t>> shapes() const {
    return json::parse(file_.metadata().at("shapes"))
        .get<std::map<std::string, std::vector<int64_t>>>();
  }

 private:
  io::SafetensorsFile file_;
};

/// Gives the model what the formula makes of diffusers' names. Returns how many of these it has
/// used.
size_t set_weights(Model& model, const Fixture& fixture, bool with_gradients) {
  const auto shapes = fixture.shapes();
  const nn::Naming naming = cogvideox_naming(model.config());
  std::map<std::string, const nn::OtherName*> names;
  for (const nn::OtherName& name : naming) {
    names[name.path] = &name;
  }
  size_t used = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    std::vector<at::Tensor> parts;
    for (const std::string& key : names.at(path)->keys) {
      parts.push_back(formula_weight(key, shapes.at(key)));
      ++used;
    }
    const at::Tensor value = at::cat(parts, 0);
    parameter->value = value.view(parameter->shape).set_requires_grad(with_gradients);
    if (with_gradients) {
      parameter->grad = at::zeros(parameter->shape, at::kFloat);
    }
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    if (path == "pos_embed") {
      buffer->copy_(formula_values("pos_embedding", buffer->sizes()));
    }
  }
  return used;
}

class CogVideoXTest : public testing::TestWithParam<const char*> {};

TEST_P(CogVideoXTest, ForwardAndGradientsAreThoseOfDiffusers) {
  const Fixture fixture(GetParam());
  const bool is_wide = GetParam() == std::string("cogvideox_wide");
  CogVideoX model(fixture.config());
  EXPECT_EQ(set_weights(model, fixture, !is_wide), fixture.shapes().size());
  at::Tensor x_t = fixture.find("forward.x_t").set_requires_grad(true);
  const diffusion::Conditions conditions = fixture.conditions();
  const at::Tensor output = model.forward(x_t, fixture.find("forward.t"), conditions);
  EXPECT_LT(ops::relative_error(output.detach(), fixture.find("forward.output")),
            tolerance::kOtherOrder);

  torch::autograd::backward({(output * formula_values("output", output.sizes())).sum()}, {});
  EXPECT_LT(ops::relative_error(x_t.grad(), fixture.find("grad.x_t")), tolerance::kWholeModel);
  EXPECT_LT(ops::relative_error(conditions.text.grad(), fixture.find("grad.text")),
            tolerance::kWholeModel);
  if (is_wide) {
    return;
  }
  std::map<std::string, nn::Parameter*> parameters;
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameters[path] = parameter;
  }
  const auto shapes = fixture.shapes();
  for (const nn::OtherName& name : cogvideox_naming(model.config())) {
    if (!parameters.contains(name.path)) {
      continue;
    }
    const at::Tensor grad = parameters.at(name.path)->grad;
    for (size_t part = 0; part < name.keys.size(); ++part) {
      const std::string& key = name.keys[part];
      const nn::RowRange rows = nn::rows_of_key(name, part, grad.size(0));
      const at::Tensor own = grad.narrow(0, rows.begin, rows.count).to(at::kDouble);
      const at::Tensor got = at::stack(
          {own.norm(),
           (own * formula_values(key, shapes.at(key)).view(own.sizes()).to(at::kDouble)).sum()});
      const at::Tensor want = fixture.find("grad." + key).to(at::kDouble);
      const double norm = want[0].item<double>();
      const double most = norm > 1e-9 ? tolerance::kWholeModel * norm : 1e-6;
      EXPECT_LT((got - want).abs().max().item<double>(), most) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CogVideoXTest,
                         testing::Values("cogvideox_2b", "cogvideox_5b", "cogvideox_5b_i2v",
                                         "cogvideox_15", "cogvideox_15_i2v", "cogvideox_wide"));

// Where patches have two frames, a clip of an odd number begins with its first frame twice.
TEST(CogVideoXFramesTest, TheFirstPatchIsFilled) {
  const at::NoGradGuard no_grad;
  const Fixture fixture("cogvideox_15");
  CogVideoX model(fixture.config());
  (void)set_weights(model, fixture, false);
  const at::Tensor clip = fixture.find("forward.x_t").narrow(2, 0, 3);
  const at::Tensor t = fixture.find("forward.t");
  const at::Tensor whole = at::cat({clip.narrow(2, 0, 1), clip}, 2);
  const at::Tensor got = model.forward(clip, t, fixture.conditions());
  EXPECT_EQ(got.sizes(), clip.sizes());
  EXPECT_TRUE(got.equal(model.forward(whole, t, fixture.conditions()).narrow(2, 1, 3)));

  ModelConfig config = fixture.config();
  config.frames = 3;
  EXPECT_EQ(shape_of(config).frames_before, 1);
  EXPECT_EQ(shape_of(config).frames, 2);
  config.frames = 4;
  EXPECT_EQ(shape_of(config).frames_before, 0);
}

TEST(CogVideoXFramesTest, OtherSizesThanThoseOfATableAreRefused) {
  const Fixture fixture("cogvideox_5b_i2v");
  CogVideoX model(fixture.config());
  (void)set_weights(model, fixture, false);
  diffusion::Conditions conditions = fixture.conditions();
  const auto forward = [&](const std::vector<int64_t>& shape) {
    conditions.beside = at::zeros(shape);
    return model.forward(at::zeros(shape), fixture.find("forward.t"), conditions);
  };
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return forward({2, 3, 3, 8, 8});
                       }),
              HasSubstr("has a table of positions for 4 x 6 patches (model.base_grid), got 4 x 4"));
  EXPECT_EQ(forward({2, 3, 2, 8, 12}).size(2), 2);  // other numbers of frames are sinusoids
  conditions.beside = at::Tensor();
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return model.forward(at::zeros({2, 3, 3, 8, 12}),
                                              fixture.find("forward.t"), conditions);
                       }),
              HasSubstr("must have 3 channels, those of given frames"));
}

TEST(CogVideoXNamesTest, PublishedFilesHaveItsNamesAndShapes) {
  std::ifstream in(source_path("tests/models/data/cogvideox_names.json"));
  const json table = json::parse(in);
  ASSERT_EQ(table.size(), 5U);
  for (const auto& [name, its] : table.items()) {
    SCOPED_TRACE(name);
    std::map<std::string, std::vector<int64_t>> theirs =
        its["tensors"].get<std::map<std::string, std::vector<int64_t>>>();
    const ModelConfig described = config_of(its["config"]);
    for (int64_t block = 0; block < described.transformer.depth; ++block) {
      for (const auto& [key, shape] : its["block"].items()) {
        theirs["transformer_blocks." + std::to_string(block) + "." + key] =
            shape.get<std::vector<int64_t>>();
      }
    }
    // By its published name.
    ModelConfig config;
    config.name = "CogVideoX-" + name;
    config.in_channels = 16;
    config.frames = described.frames;
    config.height = described.height;
    config.width = described.width;
    config.learn_sigma = false;
    config.time_scale = 1.0;
    config = resolved(config);
    EXPECT_EQ(config.transformer, described.transformer);
    CogVideoX model(config);
    std::map<std::string, std::vector<int64_t>> shapes;
    int64_t numbers = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      shapes[path] = parameter->shape;
      int64_t count = 1;
      for (const int64_t size : parameter->shape) {
        count *= size;
      }
      numbers += count;
    }
    EXPECT_EQ(numbers, its["numbers"].get<int64_t>());
    for (const auto& [path, buffer] : model.named_buffers()) {
      if (path != "null_text") {
        shapes[path] = buffer->sizes().vec();
      }
    }
    std::map<std::string, std::vector<int64_t>> ours;
    for (const nn::OtherName& each : cogvideox_naming(config)) {
      for (size_t part = 0; part < each.keys.size(); ++part) {
        std::vector<int64_t> shape = each.shape.empty() ? shapes.at(each.path) : each.shape;
        shape[0] = nn::rows_of_key(each, part, shape[0]).count;
        ours[each.keys[part]] = shape;
      }
    }
    EXPECT_EQ(ours, theirs);
    std::vector<std::string> keys;
    for (const auto& [key, shape] : theirs) {
      keys.push_back(key);
    }
    ASSERT_TRUE(find_diffusers_naming(keys).has_value());
    EXPECT_EQ(find_diffusers_naming(keys)->size(), cogvideox_naming(config).size());
  }
}

TEST(CogVideoXNamesTest, WhatDoesNotFitIsRefused) {
  const auto refused = [](const auto& change) {
    ModelConfig config = Fixture("cogvideox_5b").config();
    change(config);
    return error_of(ErrorKind::kConfig, [&] { return resolved(config).name; });
  };
  EXPECT_THAT(refused([](ModelConfig& c) { c.transformer.heads = 4; }),
              HasSubstr("model.hidden / model.heads must be a multiple of 16"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.transformer.rotary_3d = false;
                c.transformer.learned_positions = true;
              }),
              HasSubstr("model.learned_positions are beside rotary ones"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.transformer.base_grid = {3, 4};
              }),
              HasSubstr("model.base_grid must be frames, rows and columns, got 2 numbers"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.transformer.guidance = 3.0; }),
              HasSubstr("CogVideoX has no use for model.guidance"));
}

}  // namespace cogvideox_test
}  // namespace kinora::models
