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
};

std::ostream& operator<<(std::ostream& stream, const Case& value) {
  return stream << value.name;
}

class LowRankTest : public testing::TestWithParam<Case> {
 protected:
  LowRankTest() {
    linear_.adapt(GetParam().options);
    set("weight", tensor("weight"));
    set("bias", tensor("bias"));
    set("lora_A.weight", of_case("a"));
    set("lora_B.weight", of_case("b"));
    if (GetParam().options.dora) {
      set("lora_magnitude_vector", of_case("magnitude"));
    }
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
    for (const auto& [name, found] : linear_.named_parameters()) {
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
};

TEST_P(LowRankTest, OutputAndGradientsEqualPeft) {
  const at::Tensor x = of_case("x").set_requires_grad(true);
  const at::Tensor y = linear_.forward(x);
  expect_close(y, of_case("y"));
  torch::autograd::backward({y}, {of_case("dy")});
  expect_close(x.grad(), of_case("dx"));
  expect_close(parameter("lora_A.weight").grad, of_case("da"));
  expect_close(parameter("lora_B.weight").grad, of_case("db"));
  if (GetParam().options.dora) {
    expect_close(parameter("lora_magnitude_vector").grad, of_case("dmagnitude"));
    expect_close(at::linalg_vector_norm(tensor("weight"), 2, at::IntArrayRef{1}), of_case("start"));
  }
}

TEST_P(LowRankTest, OnlyTheUpdateIsTrained) {
  std::vector<std::string> trained;
  for (const auto& [path, found] : linear_.named_parameters()) {
    if (!found->frozen) {
      trained.push_back(path);
    }
  }
  std::vector<std::string> want = {"lora_A.weight", "lora_B.weight"};
  if (GetParam().options.dora) {
    want.emplace_back("lora_magnitude_vector");
  }
  EXPECT_THAT(trained, testing::UnorderedElementsAreArray(want));
  const at::Tensor y = linear_.forward(of_case("x"));
  torch::autograd::backward({y.sum()}, {});
  EXPECT_FALSE(linear_.weight.value.grad().defined());
  EXPECT_FALSE(linear_.weight.grad.defined());
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LowRankTest,
    testing::Values(Case{"lora", {.rank = kRank, .scale = kAlpha / kRank}},
                    Case{"rslora", {.rank = kRank, .scale = kAlpha / std::sqrt(3.0)}},
                    Case{"dora", {.rank = kRank, .scale = kAlpha / kRank, .dora = true}}),
    [](const auto& info) { return info.param.name; });

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
