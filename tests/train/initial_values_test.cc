#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kinora/models/transformers/dit.h"
#include "kinora/optim/arena.h"

namespace kinora::train {
namespace initial_values_test {

models::ModelConfig tiny() {
  models::ModelConfig config;
  config.transformer.depth = 3;
  config.transformer.hidden = 32;
  config.transformer.heads = 2;
  config.transformer.patch = 2;
  config.in_channels = 4;
  config.height = 8;
  config.width = 8;
  config.num_classes = 10;
  config.time_scale = 1.0;
  return models::resolved(config);
}

struct Made {
  explicit Made(const std::vector<nn::BucketSpec>& buckets, uint64_t seed = 3)
      : model(tiny()),
        arena(model.named_parameters(), buckets,
              {.device = at::kCPU,
               .compute_type = at::kFloat,
               .seed = seed,
               .train = true,
               .ema_decays = {}}) {}
  models::DiT model;
  optim::Arena arena;
};

at::Tensor value(const Made& made, const std::string& path) {
  return made.arena.export_parameter(path, optim::Role::master());
}

// Other buckets in another order, as another way to shard would have them.
TEST(InitialValuesTest, DoNotDependOnBuckets) {
  std::vector<nn::BucketSpec> one_each;
  models::DiT model(tiny());
  for (const auto& [path, parameter] : model.named_parameters()) {
    one_each.insert(
        one_each.begin(),
        {.name = "of " + path, .parameters = {path}, .fp32_island = parameter->fp32_island});
  }
  const Made as_planned(models::DiT(tiny()).buckets());
  const Made apart(one_each);
  const Made other_seed(models::DiT(tiny()).buckets(), 4);
  for (const auto& [path, parameter] : model.named_parameters()) {
    EXPECT_TRUE(at::equal(value(as_planned, path), value(apart, path))) << path;
    if (parameter->init.kind != nn::Init::Kind::kZero) {
      EXPECT_FALSE(at::equal(value(as_planned, path), value(other_seed, path))) << path;
    }
  }
}

TEST(InitialValuesTest, ParametersOfOneShapeDiffer) {
  const Made made(models::DiT(tiny()).buckets());
  EXPECT_FALSE(
      at::equal(value(made, "blocks.0.attn.qkv.weight"), value(made, "blocks.1.attn.qkv.weight")));
}

// The original's initialize_weights: xavier_uniform for linears, zero biases, N(0, 0.02) for label
// table and timestep MLP, zeros for modulation and the last layer.
TEST(InitialValuesTest, AreThoseOfThePaper) {
  const Made made(models::DiT(tiny()).buckets());
  models::DiT model(tiny());
  for (const auto& [path, parameter] : model.named_parameters()) {
    const at::Tensor values = value(made, path);
    const double largest = values.abs().max().item<double>();
    const double std = std::sqrt(values.square().mean().item<double>());
    const auto within = [&path = path](const char* part) {
      return path.find(part) != std::string::npos;
    };
    if (within("adaLN_modulation") || within("final_layer") || path.ends_with("bias")) {
      EXPECT_EQ(largest, 0.0) << path;
    } else if (within("t_embedder") || within("embedding_table")) {
      EXPECT_NEAR(std, 0.02, 0.003) << path;
    } else {
      const double fan_out = static_cast<double>(values.size(0));
      const double fan_in = static_cast<double>(values.numel()) / fan_out;
      const double bound = std::sqrt(6.0 / (fan_in + fan_out));
      EXPECT_LT(largest, bound) << path;
      EXPECT_GT(largest, 0.95 * bound) << path;
      EXPECT_NEAR(std, bound / std::sqrt(3.0), 0.1 * bound) << path;
    }
  }
}

}  // namespace initial_values_test
}  // namespace kinora::train
