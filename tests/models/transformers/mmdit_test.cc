#include "kinora/models/transformers/mmdit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
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
#include "kinora/models/transformers/original_names.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace mmdit_test {

using nlohmann::json;
using testing::HasSubstr;

/// A file of tools/reference/make_mmdit_fixtures.py, whose top lists the tensors.
class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : file_(io::SafetensorsFile::open(source_path("tests/models/data/" + name + ".safetensors"))),
        is_given_(name == "mmdit_given") {}

  /// Undefined where the file has none.
  [[nodiscard]] at::Tensor find(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }

  [[nodiscard]] ModelConfig config() const {
    const json values = json::parse(file_.metadata().at("config"));
    const bool is_flux = values["_class_name"] == "FluxTransformer2DModel";
    const bool is_hunyuan = values["_class_name"] == "HunyuanVideoTransformer3DModel";
    const at::Tensor x_t = find("forward.x_t");
    ModelConfig config;
    config.architecture =
        is_given_ ? "open_sora2" : (is_hunyuan ? "hunyuan_video" : (is_flux ? "flux" : "sd3"));
    if (is_flux && x_t.dim() == 5) {
      config.architecture = "open_sora2";
    }
    config.in_channels = x_t.size(1);
    config.frames = x_t.dim() == 5 ? x_t.size(2) : 1;
    config.height = 8;
    config.width = 8;
    config.learn_sigma = false;
    config.time_scale = 1000.0;
    config.text_channels = values[is_hunyuan ? "text_embed_dim" : "joint_attention_dim"];
    config.text_tokens = find("forward.text").size(1);
    config.pooled_channels = values["pooled_projection_dim"];
    TransformerConfig& own = config.transformer;
    own.depth = values["num_layers"];
    own.heads = values["num_attention_heads"];
    own.hidden = own.heads * values["attention_head_dim"].get<int64_t>();
    own.patch = 2;
    if (is_hunyuan) {
      own.parallel_depth = values["num_single_layers"];
      own.refiner_depth = values["num_refiner_layers"];
      own.rotary_axes = values["rope_axes_dim"].get<std::vector<int64_t>>();
      own.rotary_base = values.value("rope_theta", 0.0);
      own.mlp_ratio = values.value("mlp_ratio", own.mlp_ratio);
      own.guidance = values.value("guidance_embeds", true) ? 3.5 : 0.0;
      const std::string image = values.value("image_condition_type", std::string());
      own.clean_first_frame = image == "token_replace";
      own.given_embedders = image == "latent_concat";
    } else if (is_flux) {
      own.parallel_depth = values["num_single_layers"];
      own.rotary_axes = values["axes_dims_rope"].get<std::vector<int64_t>>();
      own.guidance = values["guidance_embeds"].get<bool>() ? 3.5 : 0.0;
      own.given_embedders = is_given_;
      if (const at::Tensor beside = find("forward.beside"); beside.defined() && beside.dim() == 5) {
        own.references = beside.size(2);
      } else if (beside.defined()) {
        const bool fills = values.value("out_channels", json()).is_number();
        own.input = fills ? ShownInput::kFill : ShownInput::kReference;
        config.compression = 2;
      }
    } else {
      own.position_grid = values["pos_embed_max_size"];
      own.position_scale = static_cast<double>(own.position_grid) / 4.0;
      own.qk_norm = values.contains("qk_norm") ? ops::Switch::kOn : ops::Switch::kOff;
      own.second_attention = values.value("dual_attention_layers", std::vector<int64_t>());
    }
    return resolved(config);
  }

  [[nodiscard]] nn::Naming naming(const ModelConfig& config) const {
    nn::Naming naming = mmdit_naming(config);
    if (is_given_) {
      naming.push_back({"cond_embedder.proj.weight", {"cond_in.weight"}});
      naming.push_back({"cond_embedder.proj.bias", {"cond_in.bias"}});
    }
    return naming;
  }

  [[nodiscard]] diffusion::Conditions conditions() const {
    diffusion::Conditions conditions;
    conditions.text = find("forward.text").set_requires_grad(true);
    conditions.pooled = find("forward.pooled").set_requires_grad(true);
    conditions.given = find("forward.given");
    conditions.beside = find("forward.beside");
    conditions.text_lengths = find("forward.text_lengths");
    if (const at::Tensor mask = find("forward.frame_mask"); mask.defined()) {
      conditions.frame_mask = mask.to(at::kBool);
    }
    return conditions;
  }

  /// The shape of each of diffusers' parameters.
  [[nodiscard]] std::map<std::string, std::vector<int64_t>> shapes() const {
    return json::parse(file_.metadata().at("shapes"))
        .get<std::map<std::string, std::vector<int64_t>>>();
  }

 private:
  io::SafetensorsFile file_;
  bool is_given_;
};

/// Gives the model what the formula makes of diffusers' names. Returns how many of these it has
/// used.
size_t set_weights(Model& model, const Fixture& fixture, const nn::Naming& naming) {
  const auto shapes = fixture.shapes();
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
    at::Tensor value = at::cat(parts, 0);
    if (names.at(path)->swaps_halves) {
      value = at::roll(value, value.size(0) / 2, 0);
    }
    parameter->value = value.view(parameter->shape).contiguous().set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
  return used;
}

class MMDiTTest : public testing::TestWithParam<const char*> {};

TEST_P(MMDiTTest, ForwardAndGradientsAreThoseOfDiffusers) {
  const Fixture fixture(GetParam());
  MMDiT model(fixture.config());
  const nn::Naming naming = fixture.naming(model.config());
  EXPECT_EQ(set_weights(model, fixture, naming), fixture.shapes().size());
  at::Tensor x_t = fixture.find("forward.x_t").set_requires_grad(true);
  const diffusion::Conditions conditions = fixture.conditions();
  const at::Tensor output = model.forward(x_t, fixture.find("forward.t"), conditions);
  EXPECT_LT(ops::relative_error(output.detach(), fixture.find("forward.output")),
            tolerance::kOtherOrder);

  torch::autograd::backward({(output * formula_values("output", output.sizes())).sum()}, {});
  EXPECT_LT(ops::relative_error(x_t.grad(), fixture.find("grad.x_t")), tolerance::kWholeModel);
  EXPECT_LT(ops::relative_error(conditions.text.grad(), fixture.find("grad.text")),
            tolerance::kWholeModel);
  EXPECT_LT(ops::relative_error(conditions.pooled.grad(), fixture.find("grad.pooled")),
            tolerance::kWholeModel);
  std::map<std::string, nn::Parameter*> parameters;
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameters[path] = parameter;
  }
  const auto shapes = fixture.shapes();
  for (const nn::OtherName& name : naming) {
    if (!parameters.contains(name.path)) {
      continue;
    }
    at::Tensor grad = parameters.at(name.path)->grad;
    if (name.swaps_halves) {
      grad = at::roll(grad, grad.size(0) / 2, 0);
    }
    for (size_t part = 0; part < name.keys.size(); ++part) {
      const std::string& key = name.keys[part];
      const nn::RowRange rows = nn::rows_of_key(name, part, grad.size(0));
      const at::Tensor own = grad.narrow(0, rows.begin, rows.count).to(at::kDouble);
      const at::Tensor got = at::stack(
          {own.norm(),
           (own * formula_values(key, shapes.at(key)).view(own.sizes()).to(at::kDouble)).sum()});
      const at::Tensor want = fixture.find("grad." + key).to(at::kDouble);
      const double norm = want[0].item<double>();
      // A key's bias adds the same to all scores of a query: no gradient but rounding.
      const double most = norm > 1e-9 ? tolerance::kWholeModel * norm : 1e-6;
      EXPECT_LT((got - want).abs().max().item<double>(), most) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MMDiTTest,
                         testing::Values("mmdit_sd3", "mmdit_sd35", "mmdit_flux", "mmdit_flux_dev",
                                         "mmdit_given", "mmdit_flux_fill", "mmdit_flux_kontext",
                                         "mmdit_flux_references", "mmdit_clip_references",
                                         "mmdit_hunyuan", "mmdit_hunyuan_undistilled",
                                         "mmdit_hunyuan_heads", "mmdit_hunyuan_clean",
                                         "mmdit_hunyuan_shown"));

/// A small model of one's own, whose captions are read without their padding.
ModelConfig own_text(const std::string& architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.frames = 1;
  config.height = 8;
  config.width = 8;
  config.learn_sigma = false;
  config.time_scale = 1000.0;
  config.text_tokens = 7;
  config.text_encoder = {.layers = 1, .width = 8, .heads = 2, .mlp = 16, .vocab = 20};
  config.transformer.depth = 2;
  config.transformer.hidden = 32;
  config.transformer.heads = 2;
  config.transformer.patch = 2;
  return resolved(config);
}

at::Tensor tokens_of(std::vector<int64_t> ids) {
  return at::tensor(ids, at::kLong).unsqueeze(0);
}

TEST(MMDiTTextTest, PaddingIsNotReadWhereTheModelHasAnEncoder) {
  const at::NoGradGuard guard;
  for (const std::string architecture : {"sd3", "flux", "hunyuan_video"}) {
    SCOPED_TRACE(architecture);
    ModelConfig config = own_text(architecture);
    config.transformer.references = architecture == "sd3" ? 0 : 1;
    MMDiT model(config);
    set_formula_weights(model);
    const at::Tensor x_t = formula_values("x_t", {1, 3, 8, 8});
    const at::Tensor t = at::full({1}, 0.5, at::kFloat);
    const auto drawn = [&](const std::vector<int64_t>& ids, int64_t length) {
      diffusion::Conditions conditions;
      conditions.tokens = tokens_of(ids);
      if (config.transformer.references > 0) {
        conditions.beside = formula_values("beside", {1, 3, 1, 4, 8});
      }
      conditions.text_lengths = at::full({1}, length, at::kLong);
      return model.forward(x_t, t, conditions);
    };
    const at::Tensor alone = drawn({3, 5, 1}, 3);
    EXPECT_LT(ops::relative_error(drawn({3, 5, 1, 0, 9, 2}, 3), alone), tolerance::kFewRoundings);
    EXPECT_GT(ops::relative_error(drawn({3, 5, 1, 0, 9, 2}, 6), alone), 1e-3);
  }
}

TEST(MMDiTTextTest, ANullCaptionIsItsBuffer) {
  const at::NoGradGuard guard;
  const Fixture fixture("mmdit_flux");
  MMDiT model(fixture.config());
  set_weights(model, fixture, fixture.naming(model.config()));
  diffusion::Conditions conditions = fixture.conditions();
  conditions.null_text = at::tensor(std::vector<int64_t>{1, 0}).to(at::kBool);
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor t = fixture.find("forward.t");
  const at::Tensor got = model.forward(x_t, t, conditions);
  diffusion::Conditions zeroed = fixture.conditions();
  zeroed.text = zeroed.text.detach().clone();
  zeroed.text[0].zero_();
  zeroed.pooled = zeroed.pooled.detach().clone();
  zeroed.pooled[0].zero_();
  EXPECT_TRUE(got.equal(model.forward(x_t, t, zeroed)));
  model.null_caption().fill_(0.5);
  EXPECT_FALSE(model.forward(x_t, t, conditions)[0].equal(got[0]));

  // The vector by itself.
  diffusion::Conditions apart = fixture.conditions();
  apart.null_text = at::tensor(std::vector<int64_t>{0, 0}).to(at::kBool);
  apart.null_pooled = conditions.null_text;
  diffusion::Conditions zeros = fixture.conditions();
  zeros.pooled = zeroed.pooled;
  EXPECT_TRUE(model.forward(x_t, t, apart).equal(model.forward(x_t, t, zeros)));
}

TEST(MMDiTTextTest, OnlyTheWordsOfACaptionCountWithoutPadding) {
  const at::NoGradGuard guard;
  const Fixture fixture("mmdit_hunyuan");
  MMDiT model(fixture.config());
  set_weights(model, fixture, fixture.naming(model.config()));
  const at::Tensor x_t = fixture.find("forward.x_t").narrow(0, 0, 1);
  const at::Tensor t = fixture.find("forward.t").narrow(0, 0, 1);
  diffusion::Conditions conditions = fixture.conditions();
  conditions.text_lengths = at::full({1}, 3, at::kLong);
  conditions.pooled = conditions.pooled.narrow(0, 0, 1);
  const at::Tensor text = conditions.text.narrow(0, 0, 1).detach();
  const auto drawn = [&](const at::Tensor& states) {
    conditions.text = states;
    return model.forward(x_t, t, conditions);
  };
  const at::Tensor alone = drawn(text.narrow(1, 0, 3));
  EXPECT_LT(ops::relative_error(drawn(text), alone), tolerance::kFewRoundings);
  at::Tensor other = text.clone();
  other.narrow(1, 3, 2).fill_(7.0);
  EXPECT_LT(ops::relative_error(drawn(other), alone), tolerance::kFewRoundings);
  other.narrow(1, 2, 1).fill_(7.0);
  EXPECT_GT(ops::relative_error(drawn(other), alone), 1e-3);

  // A caption that is left out is one state.
  conditions.null_text = at::full({1}, 1, at::kBool);
  const at::Tensor null = drawn(text);
  conditions.null_text = at::Tensor();
  conditions.text_lengths = at::full({1}, 1, at::kLong);
  conditions.pooled = at::zeros_like(conditions.pooled);
  EXPECT_LT(ops::relative_error(drawn(at::zeros_like(text)), null), tolerance::kFewRoundings);
}

TEST(MMDiTTest, RefusesWhatDoesNotFit) {
  const auto refused = [](const auto& change) {
    ModelConfig config = own_text("flux");
    change(config);
    return error_of(ErrorKind::kConfig, [&] { return resolved(config).name; });
  };
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.transformer.rotary_axes = {4, 4, 4};
              }),
              HasSubstr("whose sum is that of a head's 16 dims"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.transformer.second_attention = {0}; }),
              HasSubstr("Flux has no use for model.second_attention"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.transformer.refiner_depth = 1; }),
              HasSubstr("Flux has no use for model.refiner_depth. Hint: leave it out; it is for "
                        "HunyuanVideo"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.transformer.patch_frames = 2;
                c.frames = 2;
              }),
              HasSubstr("model.patch_frames must be 1"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.pooled_channels = 4; }),
              HasSubstr("whose own text encoder makes no such vector"));

  const Fixture fixture("mmdit_sd3");
  MMDiT model(fixture.config());
  const auto misshapen = [&](const auto& change) {
    diffusion::Conditions conditions = fixture.conditions();
    at::Tensor x_t = fixture.find("forward.x_t");
    change(conditions, x_t);
    return error_of(ErrorKind::kShape,
                    [&] { return model.forward(x_t, fixture.find("forward.t"), conditions); });
  };
  set_weights(model, fixture, fixture.naming(model.config()));
  EXPECT_THAT(misshapen([](diffusion::Conditions& c, at::Tensor&) { c.pooled.reset(); }),
              HasSubstr("needs pooled captions, [2, 6]"));
  EXPECT_THAT(misshapen([](diffusion::Conditions& c, at::Tensor&) { c.text.reset(); }),
              HasSubstr("needs text"));
  EXPECT_THAT(misshapen([](diffusion::Conditions&, at::Tensor& x_t) {
                x_t = at::zeros({2, 3, 20, 8}, at::kFloat);
              }),
              HasSubstr("has positions for 9 x 9 patches"));
}

TEST(MMDiTTest, PicturesOfAnotherShapeAreRefused) {
  for (const char* const name : {"mmdit_flux_fill", "mmdit_flux_kontext"}) {
    SCOPED_TRACE(name);
    const Fixture fixture(name);
    MMDiT model(fixture.config());
    set_weights(model, fixture, fixture.naming(model.config()));
    const auto refused = [&](const at::Tensor& beside) {
      diffusion::Conditions conditions = fixture.conditions();
      conditions.beside = beside;
      return error_of(ErrorKind::kShape, [&] {
        return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions);
      });
    };
    const bool fills = std::string(name) == "mmdit_flux_fill";
    const char* const what = fills ? "must have 7 channels" : "must have shape [2, 3, height";
    EXPECT_THAT(refused({}), HasSubstr(what));
    EXPECT_THAT(refused(fixture.find("forward.beside").narrow(1, 1, 2)), HasSubstr(what));
    EXPECT_THAT(refused(fixture.find("forward.beside").narrow(2, 1, 3)), HasSubstr(what));
  }
  ModelConfig config = own_text("sd3");
  config.transformer.input = ShownInput::kFill;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("SD3 has no use for model.input. Hint: leave it out; it is for Flux"));
}

TEST(MMDiTTest, OneReferenceIsThePictureThatKontextChanges) {
  const at::NoGradGuard guard;
  const Fixture fixture("mmdit_flux_kontext");
  const auto drawn = [&](ModelConfig config, const at::Tensor& beside) {
    MMDiT model(config);
    set_weights(model, fixture, fixture.naming(model.config()));
    diffusion::Conditions conditions = fixture.conditions();
    conditions.beside = beside;
    return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions);
  };
  ModelConfig config = fixture.config();
  config.transformer.input = ShownInput::kPlain;
  config.transformer.references = 3;
  const at::Tensor picture = fixture.find("forward.beside");
  EXPECT_TRUE(at::equal(drawn(config, picture.unsqueeze(2)), drawn(fixture.config(), picture)));
}

TEST(MMDiTTest, WithoutReferencesItIsTheModelThatIsShownNone) {
  const at::NoGradGuard guard;
  const Fixture fixture("mmdit_clip_references");
  ModelConfig config = fixture.config();
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor two = fixture.find("forward.beside");
  const auto drawn = [&](const ModelConfig& its, const at::Tensor& beside) {
    MMDiT model(its);
    set_weights(model, fixture, fixture.naming(model.config()));
    diffusion::Conditions conditions = fixture.conditions();
    conditions.beside = beside;
    return model.forward(x_t, fixture.find("forward.t"), conditions);
  };
  ModelConfig plain = config;
  plain.transformer.references = 0;
  const at::Tensor alone = drawn(plain, {});
  EXPECT_TRUE(at::equal(drawn(config, {}), alone));
  EXPECT_TRUE(at::equal(drawn(config, two.narrow(2, 0, 0)), alone));
  const at::Tensor with_both = drawn(config, two);
  EXPECT_GT(ops::relative_error(drawn(config, two.narrow(2, 0, 1)), alone), 1e-3);
  EXPECT_GT(ops::relative_error(drawn(config, two.narrow(2, 0, 1)), with_both), 1e-3);
  // Each has a place of its own, and each sample its own pictures.
  EXPECT_GT(ops::relative_error(drawn(config, two.flip(2)), with_both), 1e-3);
  const at::Tensor swapped = drawn(config, two.flip(0));
  EXPECT_GT(ops::relative_error(swapped[0], with_both[0]), 1e-3);
  const at::Tensor last_alike = drawn(config, at::stack({two[0], two[0]}));
  EXPECT_LT(ops::relative_error(last_alike[0], with_both[0]), tolerance::kFewRoundings);

  const auto refused = [&](const at::Tensor& beside) {
    return error_of(ErrorKind::kShape, [&] { return drawn(config, beside); });
  };
  const char* const what = "must have shape [2, 3, up to 2, height, width] in whole patches of 2";
  EXPECT_THAT(refused(at::cat({two, two}, 2)), HasSubstr(what));
  EXPECT_THAT(refused(two.narrow(1, 0, 2)), HasSubstr(what));
  EXPECT_THAT(refused(two.narrow(4, 0, 5)), HasSubstr(what));
  EXPECT_THAT(refused(two.select(2, 0)), HasSubstr(what));
  config.architecture = "flux";
  config.transformer.input = ShownInput::kReference;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("model.references are shown where nothing else is, got model.input "
                        "reference"));
  config = own_text("sd3");
  config.transformer.references = 1;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("SD3 has no use for model.references"));
}

/// Keys that a naming has for a model's parameters.
std::vector<std::string> keys_of(Model& model, const nn::Naming& naming) {
  std::map<std::string, const nn::OtherName*> names;
  for (const nn::OtherName& name : naming) {
    names[name.path] = &name;
  }
  std::vector<std::string> keys;
  for (const auto& [path, parameter] : model.named_parameters()) {
    const nn::OtherName& name = *names.at(path);
    keys.insert(keys.end(), name.keys.begin(), name.keys.end());
  }
  return keys;
}

// Every parameter has a name in the files of the authors, and these are found by their names.
TEST(MMDiTTest, AuthorsNamesAreFoundAgain) {
  for (const char* name : {"mmdit_sd3", "mmdit_sd35", "mmdit_flux", "mmdit_flux_dev", "mmdit_given",
                           "mmdit_hunyuan", "mmdit_hunyuan_undistilled"}) {
    SCOPED_TRACE(name);
    MMDiT model(Fixture(name).config());
    const std::string kind = name;
    const nn::Naming naming = kind.starts_with("mmdit_sd3") ? original_sd3_naming(model.config())
                              : kind.starts_with("mmdit_hunyuan")
                                  ? original_hunyuan_video_naming(model.config())
                                  : original_flux_naming(model.config());
    std::vector<std::string> keys = keys_of(model, naming);
    for (const std::string prefix : {"", kModelPrefix}) {
      std::vector<std::string> prefixed;
      for (const std::string& key : keys) {
        prefixed.push_back(prefix + key);
      }
      const auto found = find_original_naming(prefixed, {});
      const bool are_ours = prefix.empty() && std::string(name) == "mmdit_sd3";
      ASSERT_EQ(found.has_value(), !are_ours);
      if (found) {
        EXPECT_EQ(keys_of(model, *found), prefixed);
      }
    }
  }
  // As in flux1-dev.safetensors and sd3.5_medium.safetensors.
  MMDiT flux(Fixture("mmdit_flux_dev").config());
  const std::vector<std::string> keys = keys_of(flux, original_flux_naming(flux.config()));
  for (const char* key :
       {"img_in.weight", "time_in.in_layer.bias", "vector_in.out_layer.weight",
        "guidance_in.in_layer.weight", "txt_in.weight", "double_blocks.1.img_mod.lin.weight",
        "double_blocks.0.txt_attn.norm.key_norm.scale", "double_blocks.0.img_attn.qkv.bias",
        "double_blocks.1.txt_mlp.2.bias", "single_blocks.0.modulation.lin.weight",
        "single_blocks.1.norm.query_norm.scale", "single_blocks.1.linear2.bias",
        "final_layer.adaLN_modulation.1.bias", "final_layer.linear.weight"}) {
    EXPECT_THAT(keys, testing::Contains(key));
  }
  EXPECT_FALSE(find_original_naming({"blocks.0.attn.qkv.weight"}, {}).has_value());
}

/// Names and shapes that files of a naming have for a model's parameters.
std::map<std::string, std::vector<int64_t>> shapes_of(Model& model, const nn::Naming& naming) {
  std::map<std::string, const nn::OtherName*> names;
  for (const nn::OtherName& name : naming) {
    names[name.path] = &name;
  }
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [path, parameter] : model.named_parameters()) {
    const nn::OtherName& name = *names.at(path);
    for (size_t part = 0; part < name.keys.size(); ++part) {
      std::vector<int64_t> shape = parameter->shape;
      shape[0] = nn::rows_of_key(name, part, shape[0]).count;
      shapes[name.keys[part]] = std::move(shape);
    }
  }
  return shapes;
}

// tools/reference/make_hunyuan_video_names.py has them of diffusers, and of the authors' file.
TEST(MMDiTTest, PublishedFilesOfHunyuanVideoHaveItsNamesAndShapes) {
  std::ifstream in(source_path("tests/models/data/hunyuan_video_names.json"));
  const json published = json::parse(in);
  ModelConfig config;
  config.name = "HunyuanVideo-13B";
  config.in_channels = 16;
  config.frames = 1;
  config.height = 64;
  config.width = 64;
  config.learn_sigma = false;
  MMDiT model(resolved(config));
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  EXPECT_EQ(shapes_of(model, mmdit_naming(model.config())), published["diffusers"].get<Shapes>());
  EXPECT_EQ(shapes_of(model, original_hunyuan_video_naming(model.config())),
            published["authors"].get<Shapes>());
  // Those that go on from a picture have the same, or more channels and no guidance.
  config.name = "HunyuanVideo-I2V-13B";
  MMDiT clean(resolved(config));
  EXPECT_EQ(shapes_of(clean, mmdit_naming(clean.config())), published["diffusers"].get<Shapes>());
  config.name = "HunyuanVideo-I2V-33ch-13B";
  MMDiT shown(resolved(config));
  for (const char* whose : {"diffusers", "authors"}) {
    auto expected = published[whose].get<Shapes>();
    std::erase_if(expected, [](const auto& named) {
      return named.first.find("guidance_embedder") != std::string::npos ||
             named.first.starts_with("guidance_in.");
    });
    const bool is_diffusers = std::string_view(whose) == "diffusers";
    expected.at(is_diffusers ? "x_embedder.proj.weight" : "img_in.proj.weight")[1] = 33;
    EXPECT_EQ(shapes_of(shown, is_diffusers ? mmdit_naming(shown.config())
                                            : original_hunyuan_video_naming(shown.config())),
              expected);
  }
  // Both are known by their names.
  const auto names = [&](const char* whose) {
    std::vector<std::string> keys;
    for (const auto& [key, shape] : published[whose].get<Shapes>()) {
      keys.push_back(key);
    }
    return keys;
  };
  const auto theirs = find_diffusers_naming(names("diffusers"));
  ASSERT_TRUE(theirs.has_value());
  EXPECT_THAT(keys_of(model, *theirs), testing::UnorderedElementsAreArray(names("diffusers")));
  const auto original = find_original_naming(names("authors"), {});
  ASSERT_TRUE(original.has_value());
  EXPECT_THAT(keys_of(model, *original), testing::UnorderedElementsAreArray(names("authors")));
}

TEST(MMDiTTest, PublishedSizesHaveTheirParameters) {
  const auto count = [](const char* name) {
    ModelConfig config;
    config.name = name;
    config.in_channels = 16;
    config.height = 64;
    config.width = 64;
    config.frames = std::string_view(name).starts_with("OpenSora2") ||
                            std::string_view(name).starts_with("HunyuanVideo")
                        ? 5
                        : 1;
    config.learn_sigma = false;
    config.time_scale = 1000.0;
    int64_t parameters = 0;
    const std::unique_ptr<Model> model = make_model(resolved(config));
    for (const auto& [path, parameter] : model->named_parameters()) {
      parameters += parameter->numel();
    }
    return parameters;
  };
  // diffusers' classes with the published configurations.
  EXPECT_EQ(count("SD3-Medium"), 2'028'328'000);
  EXPECT_EQ(count("SD3-3.5-Medium"), 2'243'171'520);
  EXPECT_EQ(count("SD3-3.5-Large"), 8'056'627'520);
  EXPECT_EQ(count("Flux-Dev"), 11'901'408'320);
  EXPECT_EQ(count("Flux-Schnell"), 11'891'178'560);
  // Schnell's, and a linear of 4 (16 + 1) numbers of given frames.
  EXPECT_EQ(count("OpenSora2-11B"), 11'891'178'560 + (4 * 17 + 1) * 3072);
  EXPECT_EQ(count("HunyuanVideo-13B"), 12'821'012'544);
  EXPECT_EQ(count("HunyuanVideo-I2V-13B"), 12'821'012'544);
  EXPECT_EQ(count("HunyuanVideo-I2V-33ch-13B"), 12'810'991'680);
}

}  // namespace mmdit_test
}  // namespace kinora::models
