// Against PEFT's layers (tools/make_low_rank_fixtures.py), which are torch's own arithmetic.
#include "kinora/nn/low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/linear.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::nn {
namespace low_rank_test {

constexpr int64_t kRank = 3;
constexpr double kAlpha = 5.0;

struct Case {
  std::string name;
  LowRankOptions options;
  std::vector<std::string> trained;
};

std::ostream& operator<<(std::ostream& stream, const Case& value) {
  return stream << value.name;
}

class LowRankTest : public testing::TestWithParam<Case> {
 protected:
  LowRankTest() {
    layer().adapt(GetParam().options);
    set("weight", tensor(is_conv() ? "conv_weight" : "weight"));
    set("bias", tensor(is_conv() ? "conv_bias" : "bias"));
    for (const std::string& part : trained()) {
      set(part, of_case(part));
    }
  }

  static bool is_conv() { return GetParam().name.starts_with("conv_"); }
  WeightLayer& layer() {
    return is_conv() ? static_cast<WeightLayer&>(conv_) : static_cast<WeightLayer&>(linear_);
  }
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const {
    return is_conv() ? conv_.forward(x) : linear_.forward(x);
  }
  [[nodiscard]] std::vector<std::string> trained() {
    std::vector<std::string> paths;
    for (const auto& [path, found] : layer().named_parameters()) {
      if (!found->frozen) {
        paths.push_back(path);
      }
    }
    return paths;
  }

  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    EXPECT_NE(found, nullptr) << name;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] at::Tensor of_case(const std::string& name) const {
    return tensor(GetParam().name + "." + name);
  }

  Parameter& parameter(const std::string& path) {
    for (const auto& [name, found] : layer().named_parameters()) {
      if (name == path) {
        return *found;
      }
    }
    throw_error(ErrorKind::kInternal, "no ", path);
  }

  void set(const std::string& path, const at::Tensor& value) {
    Parameter& found = parameter(path);
    ASSERT_EQ(value.sizes(), at::IntArrayRef(found.shape)) << path;
    found.value = value.set_requires_grad(!found.frozen);
    if (!found.frozen) {
      found.grad = at::zeros(found.shape, at::kFloat);
    }
  }

  static void expect_close(const at::Tensor& got, const at::Tensor& want) {
    EXPECT_TRUE(at::allclose(got, want, tolerance::kOtherOrder, tolerance::kOtherOrder))
        << (got - want).abs().max();
  }

  io::SafetensorsFile file_ =
      io::SafetensorsFile::open(source_path("tests/nn/data/low_rank.safetensors"));
  Linear linear_{7, 5, Init::zero()};
  Conv conv_{{.in_channels = 8,
              .out_channels = 6,
              .kernel = {3, 3},
              .stride = {2, 2},
              .padding = {{1, 1}, {1, 1}}}};
};

TEST_P(LowRankTest, OutputAndGradientsEqualPeft) {
  const at::Tensor x = of_case("x").set_requires_grad(true);
  const at::Tensor y = forward(x);
  expect_close(y, of_case("y"));
  torch::autograd::backward({y}, {of_case("dy")});
  expect_close(x.grad(), of_case("dx"));
  for (const std::string& part : trained()) {
    SCOPED_TRACE(part);
    expect_close(parameter(part).grad, of_case("d." + part));
  }
  if (GetParam().options.dora) {
    expect_close(at::linalg_vector_norm(layer().weight.value.flatten(1), 2, at::IntArrayRef{1}),
                 of_case("start"));
  }
}

// The fast path of U-Nets adds biases later.
TEST_P(LowRankTest, AConvolutionsBiasMayComeLater) {
  if (!is_conv()) {
    GTEST_SKIP() << "a linear";
  }
  const at::Tensor y = conv_.forward_without_bias(of_case("x"));
  expect_close(y + conv_.added_bias().view({-1, 1, 1}), of_case("y"));
}

TEST_P(LowRankTest, OnlyTheUpdateIsTrained) {
  EXPECT_THAT(trained(), testing::UnorderedElementsAreArray(GetParam().trained));
  const at::Tensor y = forward(of_case("x"));
  torch::autograd::backward({y.sum()}, {});
  EXPECT_FALSE(layer().weight.value.grad().defined());
  EXPECT_FALSE(layer().weight.grad.defined());
}

const std::vector<std::string> kLora = {"lora_A.weight", "lora_B.weight"};
const std::vector<std::string> kDora = {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector"};
const std::vector<std::string> kLoha = {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"};
const std::vector<std::string> kLokr = {"lokr_w1", "lokr_w2_a", "lokr_w2_b"};
constexpr double kScale = kAlpha / kRank;

INSTANTIATE_TEST_SUITE_P(
    Kinds, LowRankTest,
    testing::Values(
        Case{"lora", {.rank = kRank, .scale = kScale}, kLora},
        Case{"rslora", {.rank = kRank, .scale = kAlpha / std::sqrt(3.0)}, kLora},
        Case{"dora", {.rank = kRank, .scale = kScale, .dora = true}, kDora},
        Case{"loha", {.kind = UpdateKind::kLoha, .rank = kRank, .scale = kScale}, kLoha},
        Case{"lokr", {.kind = UpdateKind::kLokr, .rank = kRank, .scale = kScale}, kLokr},
        Case{"conv_lora", {.rank = kRank, .scale = kScale}, kLora},
        Case{"conv_dora", {.rank = kRank, .scale = kScale, .dora = true}, kDora},
        Case{"conv_loha", {.kind = UpdateKind::kLoha, .rank = kRank, .scale = kScale}, kLoha},
        Case{"conv_lokr",
             {.kind = UpdateKind::kLokr, .rank = kRank, .scale = kScale},
             {"lokr_w1", "lokr_w2"}},
        Case{"conv_lokr_1", {.kind = UpdateKind::kLokr, .rank = 1, .scale = kAlpha}, kLokr}),
    [](const auto& info) { return info.param.name; });

TEST(LowRankStartTest, LohaAndLokrChangeNothing) {
  for (const UpdateKind kind : {UpdateKind::kLoha, UpdateKind::kLokr}) {
    Conv conv(ConvShape::same(8, 6, 3));
    conv.adapt({.kind = kind, .rank = 1});
    std::vector<std::string> zeros;
    for (const auto& [path, parameter] : conv.named_parameters()) {
      if (!parameter->frozen && parameter->init.kind == Init::Kind::kZero) {
        zeros.push_back(path);
      } else if (path == "hada_w1_b" || path == "lokr_w2_b") {  // 1 / sqrt(elements of a row)
        EXPECT_EQ(parameter->init.scale, 1 / std::sqrt(kind == UpdateKind::kLoha ? 72.0 : 36.0));
      }
    }
    EXPECT_THAT(zeros, testing::ElementsAre(kind == UpdateKind::kLoha ? "hada_w2_b" : "lokr_w1"));
  }
}

// As PEFT's factorization() in its examples.
TEST(KroneckerFactorsTest, AreThoseOfPeft) {
  EXPECT_EQ(kronecker_factors(256, -1), (std::pair<int64_t, int64_t>{16, 16}));
  EXPECT_EQ(kronecker_factors(128, -1), (std::pair<int64_t, int64_t>{8, 16}));
  EXPECT_EQ(kronecker_factors(127, -1), (std::pair<int64_t, int64_t>{1, 127}));
  EXPECT_EQ(kronecker_factors(128, 4), (std::pair<int64_t, int64_t>{4, 32}));
  EXPECT_EQ(kronecker_factors(10, 3), (std::pair<int64_t, int64_t>{2, 5}));
}

TEST(OwnerOfUpdateTest, IsTheLayer) {
  EXPECT_EQ(owner_of_update("a.conv1.hada_w1_a"), "a.conv1");
  EXPECT_EQ(owner_of_update("a.0.lora_A.weight"), "a.0");
  EXPECT_EQ(owner_of_update("a.lokr_w2"), "a");
  EXPECT_EQ(owner_of_update("a.weight"), std::nullopt);
}

TEST(LowRankStartTest, StartsAsHuEtAl) {
  Linear linear(16, 5, Init::zero());
  linear.adapt({.rank = 2, .scale = 1.0});
  ASSERT_EQ(linear.named_parameters().size(), 4U);
  for (const auto& [path, parameter] : linear.named_parameters()) {
    if (path == "lora_A.weight") {
      EXPECT_EQ(parameter->shape, (std::vector<int64_t>{2, 16}));
      EXPECT_EQ(parameter->init.kind, Init::Kind::kUniform);
      EXPECT_EQ(parameter->init.scale, 0.25);  // kaiming_uniform_(a=sqrt(5)): 1 / sqrt(in)
    } else if (path == "lora_B.weight") {
      EXPECT_EQ(parameter->shape, (std::vector<int64_t>{5, 2}));
      EXPECT_EQ(parameter->init.kind, Init::Kind::kZero);
    }
  }
}

}  // namespace low_rank_test
}  // namespace kinora::nn
