#include "kinora/train/non_finite.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/train/tiny_dit.h"

namespace kinora::train {
namespace non_finite_test {

std::optional<NonFiniteOutput> find(TinyDit& tiny) {
  return find_non_finite_output(tiny.model, [&tiny] {
    (void)tiny.model.forward(at::full({2, 3, 16, 16}, 0.5), at::full({2}, 10.0, at::kFloat),
                             {.labels = at::zeros({2}, at::kLong)});
  });
}

void poison(TinyDit& tiny, const std::string& path, double value) {
  at::Tensor weights = tiny.arena.export_parameter(path, optim::Role::master()).clone();
  weights.flatten()[0].fill_(value);
  tiny.arena.load_parameter(path, weights);
}

TEST(NonFiniteTest, NothingIsFoundInAHealthyModel) {
  TinyDit tiny;
  EXPECT_FALSE(find(tiny).has_value());
}

struct Case {
  const char* parameter;
  const char* module;
};

class PoisonTest : public testing::TestWithParam<Case> {};

TEST_P(PoisonTest, FirstModuleIsNamed) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    TinyDit tiny;
    poison(tiny, GetParam().parameter, value);
    const auto found = find(tiny);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->module, GetParam().module);
    EXPECT_GT(found->count, 0);
    EXPECT_LE(found->count, found->numel);
    EXPECT_NE(to_string(*found).find(GetParam().module), std::string::npos);
    // The tap is gone again.
    EXPECT_EQ(find(tiny)->module, GetParam().module);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, PoisonTest,
                         testing::Values(Case{"x_embedder.proj.bias", "x_embedder"},
                                         Case{"t_embedder.mlp.0.weight", "t_embedder.mlp.0"},
                                         Case{"y_embedder.embedding_table.weight", "y_embedder"},
                                         Case{"blocks.0.adaLN_modulation.1.bias",
                                              "blocks.0.adaLN_modulation.1"},
                                         Case{"blocks.0.attn.qkv.bias", "blocks.0.attn.qkv"},
                                         Case{"blocks.1.mlp.fc2.weight", "blocks.1.mlp.fc2"},
                                         Case{"final_layer.linear.bias", "final_layer.linear"}));

TEST(NonFiniteTest, FiniteRestIsDescribed) {
  TinyDit tiny;
  poison(tiny, "final_layer.linear.bias", std::numeric_limits<double>::infinity());
  const auto found = find(tiny);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->count, 2 * 16) << "one feature of 16 tokens of 2 samples";
  EXPECT_LT(found->finite_min, found->finite_max);
  EXPECT_NE(to_string(*found).find("32 of "), std::string::npos) << to_string(*found);
}

TEST(NonFiniteTest, GradientsAreNamed) {
  TinyDit tiny;
  const auto parameters = tiny.model.named_parameters();
  EXPECT_TRUE(non_finite_gradients(parameters, tiny.arena).empty());
  parameters[3].parameter->grad.flatten()[1].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(non_finite_gradients(parameters, tiny.arena),
            (std::vector<std::string>{parameters[3].path}));
}

}  // namespace non_finite_test
}  // namespace kinora::train
