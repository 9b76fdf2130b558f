// Step caches in every transformer, by both paths, against drawings of diffusers and of loops
// written by hand (tools/reference/make_step_cache_fixtures.py).

#include "kinora/diffusion/step_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/models/transformers/random_clips.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace step_cache_test {

using diffusion::StepCacheConfig;
using nlohmann::json;
using testing::HasSubstr;
using Kind = StepCacheConfig::Kind;

std::shared_ptr<ops::BlockKernels> cpu_kernels() {
  return std::make_shared<ops::BlockKernels>(ops::KernelOptions{}, at::kCPU, at::kFloat, false);
}

// ---- drawings of others ----

/// A case of tests/models/data/step_cache.safetensors, whose maker says what is in it.
class Drawing {
 public:
  explicit Drawing(std::string name)
      : name_(std::move(name)),
        file_(io::SafetensorsFile::open(source_path("tests/models/data/step_cache.safetensors"))),
        about_(json::parse(file_.metadata().at(name_))),
        model_(make_model(config())) {
    if (architecture() == "flux" || architecture() == "wan") {
      set_diffusers_weights();
    } else {
      set_formula_weights(*model_);
    }
  }

  [[nodiscard]] Model& model() { return *model_; }

  /// Undefined where the file has none.
  [[nodiscard]] at::Tensor find(const std::string& key) const {
    const io::SafetensorsTensor* found = file_.find(name_ + "." + key);
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }

  [[nodiscard]] StepCacheConfig cache() const {
    const json values = about_["cache"];
    StepCacheConfig cache;
    cache.kind = values["kind"] == "pab"           ? Kind::kPab
                 : values["kind"] == "first_block" ? Kind::kFirstBlock
                                                   : Kind::kTea;
    cache.threshold = values.value("threshold", 0.0);
    cache.order = values.value("order", 0);
    cache.polynomial = values.value("polynomial", std::vector<double>());
    cache.ranges = values.value("ranges", std::vector<double>(4, 0.0));
    cache.interval = values.value("interval", std::vector<double>());
    return cache;
  }

  /// What is drawn: the samples after each step, and what each step computed.
  struct Steps {
    std::vector<at::Tensor> x0;
    at::Tensor x;
    std::vector<int64_t> computed;
  };
  [[nodiscard]] Steps draw() {
    const at::Tensor noise = find("noise");
    diffusion::FlowEulerSampler sampler;
    const auto steps = find("computed").size(0);
    for (int64_t step = 0; step <= steps; ++step) {
      sampler.times.push_back(1.0 - static_cast<double>(step) / static_cast<double>(steps));
    }
    Steps result;
    diffusion::StepCacheUse before = model_->step_cache_use();
    result.x = diffusion::sample(*model_, sampler, noise.sizes(), conditions(), {},
                                 {.seed = 0, .sample_index = at::arange(noise.size(0), at::kLong)},
                                 at::kCPU,
                                 [&](const diffusion::SampleProgress& done) {
                                   result.x0.push_back(done.x0);
                                   const diffusion::StepCacheUse now = model_->step_cache_use();
                                   result.computed.push_back(computed(before, now));
                                   before = now;
                                 },
                                 {.noise = noise});
    return result;
  }

 private:
  [[nodiscard]] std::string architecture() const { return about_["architecture"]; }

  [[nodiscard]] ModelConfig config() const {
    const json values = about_["model"];
    const at::Tensor noise = find("noise");
    ModelConfig config;
    config.architecture = architecture();
    config.in_channels = noise.size(1);
    config.frames = noise.dim() == 5 ? noise.size(2) : 1;
    config.height = noise.size(-2);
    config.width = noise.size(-1);
    config.learn_sigma = false;
    config.time_scale = 1000.0;
    config.num_classes = 5;
    config.text_channels = 10;
    config.text_tokens = 5;
    TransformerConfig& own = config.transformer;
    own.patch = 2;
    own.patch_frames = 1;
    if (architecture() == "dit" || architecture() == "stdit3") {
      own.depth = values["depth"];
      own.hidden = values["hidden"];
      own.heads = values["heads"];
      own.qk_norm = architecture() == "stdit3" ? ops::Switch::kOn : ops::Switch::kOff;
      return resolved(config);
    }
    own.depth = values["num_layers"];
    own.heads = values["num_attention_heads"];
    own.hidden = own.heads * values["attention_head_dim"].get<int64_t>();
    if (architecture() == "flux") {
      config.height = 8;  // of positions that are a rotation
      config.width = 8;
      config.pooled_channels = values["pooled_projection_dim"];
      own.parallel_depth = values["num_single_layers"];
      own.rotary_axes = values["axes_dims_rope"].get<std::vector<int64_t>>();
    } else {
      config.text_tokens = 7;
      own.mlp_ratio = values["ffn_dim"].get<double>() / static_cast<double>(own.hidden);
    }
    return resolved(config);
  }

  [[nodiscard]] diffusion::Conditions conditions() const {
    return {.labels = find("labels"),
            .text = find("text"),
            .text_lengths = find("text_lengths"),
            .pooled = find("pooled"),
            .fps = find("fps"),
            .height = find("height"),
            .width = find("width")};
  }

  void set_diffusers_weights() {
    const auto shapes = about_["shapes"].get<std::map<std::string, std::vector<int64_t>>>();
    std::map<std::string, nn::OtherName> names;
    for (const nn::OtherName& name :
         architecture() == "flux" ? mmdit_naming(model_->config()) : wan_naming(model_->config())) {
      names[name.path] = name;
    }
    for (const auto& [path, parameter] : model_->named_parameters()) {
      std::vector<at::Tensor> parts;
      for (const std::string& key : names.at(path).keys) {
        parts.push_back(formula_weight(key, shapes.at(key)));
      }
      at::Tensor value = at::cat(parts, 0);
      if (names.at(path).swaps_halves) {
        value = at::roll(value, value.size(0) / 2, 0);
      }
      parameter->value = value.view(parameter->shape).contiguous();
      parameter->grad = at::zeros(parameter->shape, at::kFloat);
    }
  }

  /// As the file has it.
  [[nodiscard]] static int64_t computed(const diffusion::StepCacheUse& before,
                                        const diffusion::StepCacheUse& now) {
    if (now.blocks.all > before.blocks.all) {
      return now.blocks.left_out == before.blocks.left_out ? 1 : 0;
    }
    int64_t bits = 0;
    for (size_t kind = 0; kind < ops::kBranchKinds; ++kind) {
      const bool was_asked = now.branches[kind].all > before.branches[kind].all;
      const bool is_left_out = now.branches[kind].left_out > before.branches[kind].left_out;
      bits += was_asked && !is_left_out ? int64_t{1} << kind : 0;
    }
    return bits;
  }

  std::string name_;
  io::SafetensorsFile file_;
  json about_;
  std::unique_ptr<Model> model_;
};

class StepCacheDrawingTest : public testing::TestWithParam<const char*> {};

TEST_P(StepCacheDrawingTest, LeavesOutAndDrawsTheSame) {
  for (const bool is_fast : {false, true}) {
    Drawing drawing(GetParam());
    if (is_fast && !drawing.model().has_fast_path()) {
      continue;
    }
    if (is_fast) {
      drawing.model().use_fast_path(cpu_kernels());
    }
    drawing.model().use_step_cache(drawing.cache());
    const at::Tensor want = drawing.find("samples");
    const at::Tensor pattern = drawing.find("computed");
    for (const char* run : {"first run", "second run"}) {  // nothing is left of the first
      const Drawing::Steps steps = drawing.draw();
      std::vector<int64_t> computed(pattern.const_data_ptr<int64_t>(),
                                    pattern.const_data_ptr<int64_t>() + pattern.numel());
      EXPECT_EQ(steps.computed, computed) << run << (is_fast ? ", fast" : ", plain");
      ops::expect_near({{"samples", want[-1]}}, {{"samples", steps.x}}, tolerance::kWholeModel,
                       is_fast ? "fast" : "plain");
      at::Tensor x = drawing.find("noise");
      const double step = 1.0 / static_cast<double>(want.size(0));
      for (int64_t k = 0; k < want.size(0); ++k) {
        const double t = 1.0 - static_cast<double>(k) * step;
        ops::expect_near({{"x0", x + (t / step) * (want[k] - x)}},
                         {{"x0", steps.x0[static_cast<size_t>(k)]}}, 1e-4,
                         "step " + std::to_string(k));
        x = want[k];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepCacheDrawingTest,
                         testing::Values("flux_first_block", "flux_pab", "flux_tea",
                                         "wan_first_block", "wan_pab", "dit_first_block",
                                         "dit_first_block_line", "dit_tea", "dit_tea_parabola",
                                         "stdit3_first_block", "stdit3_tea", "stdit3_tea_line",
                                         "stdit3_pab"),
                         [](const auto& info) { return std::string(info.param); });

// ---- every family ----

StepCacheConfig cache_of(Kind kind, double threshold) {
  return {.kind = kind,
          .threshold = threshold,
          .polynomial = {},
          .ranges = std::vector<double>(ops::kBranchKinds, threshold),
          .interval = {0.0, 1.0}};
}

constexpr Kind kKinds[] = {Kind::kFirstBlock, Kind::kTea, Kind::kPab};

class StepCacheFamilyTest : public testing::TestWithParam<ClipCase> {};

TEST_P(StepCacheFamilyTest, ChangesNoBitWhereNothingIsLeftOut) {
  for (const bool is_fast : {false, true}) {
    RandomClips clips(GetParam(), at::kCPU, at::kFloat);
    if (is_fast) {
      clips.model().use_fast_path(cpu_kernels());
    }
    const ops::NamedResults without = clips.sample_steps(2);
    for (const Kind kind : kKinds) {
      clips.model().use_step_cache(cache_of(kind, 0.0));
      ops::expect_same(without, clips.sample_steps(2), "threshold 0");
      clips.model().use_step_cache(cache_of(kind, 1e-6));  // less than anything changes
      if (is_fast && kind != Kind::kPab) {                 // in pieces seams are other kernels
        ops::expect_near(without, clips.sample_steps(2), tolerance::kOtherOrderOfBranches, "fast");
      } else {
        ops::expect_same(without, clips.sample_steps(2), "plain");
      }
    }
    EXPECT_EQ(clips.model().step_cache_use().blocks.left_out, 0);
  }
}

TEST_P(StepCacheFamilyTest, BothPathsLeaveOutTheSame) {
  for (const Kind kind : kKinds) {
    const StepCacheConfig cache = cache_of(kind, kind == Kind::kPab ? 0.08 : 1e3);
    RandomClips plain(GetParam(), at::kCPU, at::kFloat);
    RandomClips fast(GetParam(), at::kCPU, at::kFloat);
    fast.model().use_fast_path(cpu_kernels());
    const ops::NamedResults without = plain.sample_steps(4);
    plain.model().use_step_cache(cache);
    fast.model().use_step_cache(cache);
    const ops::NamedResults with = plain.sample_steps(4);
    ops::expect_near(with, fast.sample_steps(4), tolerance::kOtherOrderOfBranches, "fast");
    const diffusion::StepCacheUse use = plain.model().step_cache_use();
    const auto count = [](const diffusion::StepCacheUse::Count& of) {
      return std::pair(of.all, of.left_out);
    };
    EXPECT_EQ(count(use.blocks), count(fast.model().step_cache_use().blocks));
    EXPECT_GT(use.most_bytes, 0);
    ops::expect_same({with[0]}, {without[0]}, "the first step is whole");
    EXPECT_FALSE(at::equal(with[1].value, without[1].value)) << "something is left out";
    if (kind == Kind::kPab) {
      ops::expect_same({with[0], with[2]}, {without[0], without[2]}, "every other step is whole");
    }
    fast.model().use_step_cache(cache);
    if (fast.prepared().any()) {
      ops::expect_near(fast.sample_steps(4), fast.sample_steps(4, /*prepares=*/true),
                       tolerance::kOtherOrder, "prepared");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepCacheFamilyTest, testing::ValuesIn(kClipCases),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- the cache alone ----

at::Tensor numbers(double first, double second) {
  return at::tensor({first, second}, at::kFloat).view({2, 1});
}

TEST(StepCacheTest, TheSampleThatChangesMostDecides) {
  const StepCacheConfig config{.kind = Kind::kFirstBlock, .threshold = 0.1};
  diffusion::StepCacheUse use;
  diffusion::StepCache cache(config, use);
  const auto asks = [&](double first, double second) {
    cache.begin({.level = 0.5});
    return cache.reuses(numbers(first, second), [](const at::Tensor&) {});
  };
  EXPECT_FALSE(asks(1.0, 1.0)) << "there is nothing";
  cache.keep(numbers(0.0, 0.0));
  EXPECT_TRUE(asks(1.05, 0.95));
  EXPECT_TRUE(asks(1.09, 1.0)) << "against what was computed last, not the step before";
  EXPECT_FALSE(asks(1.0, 1.2));
  EXPECT_TRUE(asks(1.05, 1.2));
  EXPECT_FALSE(asks(std::nan(""), 1.2)) << "not a number is no small change";
}

TEST(StepCacheTest, TeaAddsUpChangesAndComputesTheLastStep) {
  const StepCacheConfig config{.kind = Kind::kTea, .threshold = 0.25, .polynomial = {2.0, 0.0}};
  diffusion::StepCacheUse use;
  diffusion::StepCache cache(config, use);
  const auto asks = [&](double value, bool is_last = false) {
    cache.begin({.level = 0.5, .is_last = is_last});
    return cache.reuses(numbers(value, value), [](const at::Tensor&) {});
  };
  EXPECT_FALSE(asks(1.0));
  cache.keep(numbers(0.0, 0.0));
  EXPECT_TRUE(asks(1.1)) << "0.2";
  EXPECT_FALSE(asks(1.155)) << "0.2 + 0.1";
  EXPECT_TRUE(asks(1.155)) << "0";
  EXPECT_FALSE(asks(1.155, /*is_last=*/true));
}

TEST(StepCacheTest, GoesOnAsAPolynomialOfTheLevels) {
  const auto at_level = [](const std::vector<double>& values, double level) {  // Horner
    double value = 0.0;
    for (const double coefficient : values) {
      value = value * level + coefficient;
    }
    return value;
  };
  for (const int64_t order : {0, 1, 2}) {
    const StepCacheConfig config{.kind = Kind::kFirstBlock, .threshold = 1e-3, .order = order};
    diffusion::StepCacheUse use;
    diffusion::StepCache cache(config, use);
    const std::vector<double> of_watched =
        order == 2 ? std::vector{2.0, -1.0, 3.0} : std::vector{order == 1 ? -1.0 : 0.0, 3.0};
    const std::vector<double> of_residual =
        order == 2 ? std::vector{1.0, 4.0, -5.0} : std::vector{order == 1 ? 2.0 : 0.0, -5.0};
    int64_t computed = 0;
    for (const double level : {1.0, 0.7, 0.5, 0.45}) {
      cache.begin({.level = level});
      const double watched = at_level(of_watched, level);
      if (cache.reuses(numbers(watched, 2.0 * watched), [](const at::Tensor&) {})) {
        const double residual = at_level(of_residual, level);
        EXPECT_LT((cache.residual() - numbers(residual, -residual)).abs().max().item<double>(),
                  1e-4)
            << order << " at " << level;
      } else {
        const double residual = at_level(of_residual, level);
        cache.keep(numbers(residual, -residual));
        ++computed;
      }
    }
    EXPECT_EQ(computed, order + 1) << "what " << order << " needs to be known";
  }
}

TEST(StepCacheTest, GoesOnAsFarAsWhatItKnows) {
  const StepCacheConfig config{.kind = Kind::kTea, .threshold = 1e3, .order = 1};
  diffusion::StepCacheUse use;
  diffusion::StepCache cache(config, use);
  const auto residual_at = [&cache](double level) {
    cache.begin({.level = level});
    EXPECT_TRUE(cache.reuses(numbers(1.0, 1.0), [](const at::Tensor&) {}));
    return cache.residual()[0].item<double>();
  };
  for (const double level : {0.9, 0.7}) {  // the second is the last of a run, and so computed
    cache.begin({.level = level, .is_last = level == 0.7});
    ASSERT_FALSE(cache.reuses(numbers(1.0, 1.0), [](const at::Tensor&) {}));
    cache.keep(numbers(level, level));
  }
  EXPECT_NEAR(residual_at(0.6), 0.6, 1e-6);
  EXPECT_NEAR(residual_at(0.5), 0.5, 1e-6);
  EXPECT_NEAR(residual_at(0.2), 0.5, 1e-6) << "0.2 behind the last, as the first is before it";
}

TEST(StepCacheTest, DecisionsAreOfAnEvaluation) {
  const StepCacheConfig config{.kind = Kind::kFirstBlock, .threshold = 0.1};
  diffusion::StepCacheUse use;
  for (const double second : {2.0, 1.0}) {  // those of the last drawing are known
    diffusion::StepCache cache(config, use);
    for (const auto& [level, value] : {std::pair(1.0, 1.0), {0.5, second}, {0.5, second}}) {
      cache.begin({.rows_kind = 2, .level = level});
      if (!cache.reuses(numbers(value, value), [](const at::Tensor&) {})) {
        cache.keep(numbers(value, value));
      }
    }
    EXPECT_FALSE(use.decisions.find({2, 1.0}, 0));
    EXPECT_EQ(use.decisions.find({2, 0.5}, 0), second == 1.0);
    EXPECT_TRUE(use.decisions.find({2, 0.5}, 1));
    EXPECT_FALSE(use.decisions.find({2, 0.5}, 2)) << "there was none";
    EXPECT_FALSE(use.decisions.find({1, 0.5}, 1));
  }
}

TEST(StepCacheTest, KindsOfRowsAndRanksHaveTheirOwn) {
  const StepCacheConfig config{.kind = Kind::kFirstBlock, .threshold = 0.1, .interval = {0.2, 0.8}};
  diffusion::StepCacheUse use;
  diffusion::StepCache cache(config, use);
  const auto asks = [&](int64_t rows_kind, double value, double level = 0.5) {
    cache.begin({.rows_kind = rows_kind, .level = level});
    const bool reuses = cache.reuses(numbers(value, value), [](const at::Tensor&) {});
    if (!reuses) {
      cache.keep(numbers(value, value));
    }
    return reuses;
  };
  EXPECT_FALSE(asks(2, 1.0));
  EXPECT_FALSE(asks(1, 5.0)) << "the other has nothing yet";
  EXPECT_TRUE(asks(2, 1.0));
  EXPECT_TRUE(asks(1, 5.0));
  EXPECT_FALSE(asks(1, 5.0, 0.9)) << "outside of the interval";
  cache.decide_together([](const at::Tensor& change) { change.fill_(1.0); });
  EXPECT_FALSE(asks(2, 1.0)) << "another rank changed more";
}

TEST(StepCacheTest, RefusesToKeepMoreThanItMay) {
  const StepCacheConfig config{.kind = Kind::kFirstBlock, .threshold = 0.1, .most_gib = 1e-8};
  diffusion::StepCacheUse use;
  diffusion::StepCache cache(config, use);
  cache.begin({});
  (void)cache.reuses(numbers(1.0, 1.0), [](const at::Tensor&) {});
  cache.keep(numbers(1.0, 1.0));
  const std::string refusal = error_of(ErrorKind::kMemory, [&] { cache.end(); });
  EXPECT_THAT(refusal, HasSubstr("sample.cache keeps 16 B of a batch"));
  EXPECT_THAT(refusal, HasSubstr("sample.cache_gib allows 1e-08 GiB"));
  EXPECT_EQ(use.most_bytes, 16);
}

TEST(StepCacheTest, SaysWhatItLeftOut) {
  diffusion::StepCacheUse use;
  EXPECT_EQ(use.describe(), "");
  use.blocks = {.all = 200, .left_out = 76};
  use.most_bytes = 3 << 20;
  EXPECT_EQ(use.describe(), "left out 76 of 200 blocks (38 %), and kept up to 3 MiB of a batch");
}

/// A model that is no transformer.
class Other : public Model {
 public:
  Other() : Model({}) {}
  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override { return {}; }
  void to_device(const at::Device& /*device*/) override {}

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                                   const diffusion::Conditions& /*conditions*/,
                                   const diffusion::Pass& /*pass*/) override {
    return x_t;
  }
};

TEST(StepCacheTest, ModelsThatAreNoTransformersRefuseIt) {
  Other other;
  other.use_step_cache({});
  EXPECT_EQ(other.make_cache(), nullptr);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { other.use_step_cache({.kind = Kind::kTea}); }),
              HasSubstr("sample.cache is for transformers"));
}

}  // namespace step_cache_test
}  // namespace kinora::models
