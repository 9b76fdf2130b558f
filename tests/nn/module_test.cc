#include "kinora/nn/module.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace kinora::nn {
namespace module_test {

using testing::ElementsAre;

class Leaf : public Module {
 public:
  Leaf() {
    weight.shape = {2, 3};
    add_parameter("weight", weight);
    add_buffer("count", count);
  }
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const { return tapped(x * 2.0); }
  Parameter weight;
  at::Tensor count;
};

class Tree : public Module {
 public:
  Tree() {
    own.shape = {4};
    add_child("b", b);
    add_parameter("own", own);
    add_child("a", a);
  }
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const {
    return tapped(b.forward(a.forward(x)));
  }
  Leaf a;
  Leaf b;
  Parameter own;
};

class Forest : public Module {
 public:
  Forest() { add_child("tree", tree); }
  Tree tree;
};

template <typename Named>
std::vector<std::string> paths(const std::vector<Named>& items) {
  std::vector<std::string> result;
  result.reserve(items.size());
  for (const Named& item : items) {
    result.push_back(item.path);
  }
  return result;
}

TEST(ModuleTest, PathsFollowTheOrderOfRegistration) {
  Forest forest;
  EXPECT_THAT(paths(forest.named_parameters()),
              ElementsAre("tree.own", "tree.b.weight", "tree.a.weight"));
  EXPECT_THAT(paths(forest.named_buffers()), ElementsAre("tree.b.count", "tree.a.count"));
  EXPECT_THAT(paths(forest.tree.named_parameters()), ElementsAre("own", "b.weight", "a.weight"));
  EXPECT_EQ(forest.named_parameters()[2].parameter, &forest.tree.a.weight);
  EXPECT_EQ(forest.named_buffers()[0].buffer, &forest.tree.b.count);
}

TEST(ModuleTest, TapsSeeOutputsInOrderAndMayReplaceThem) {
  Forest forest;
  std::vector<std::string> seen;
  forest.set_tap([&seen](const std::string& path, const at::Tensor& output) {
    seen.push_back(path);
    return path == "tree.a" ? output + 1.0 : output;
  });
  const at::Tensor x = at::ones({1});
  EXPECT_EQ(forest.tree.forward(x).item<double>(), 6.0);
  EXPECT_THAT(seen, ElementsAre("tree.a", "tree.b", "tree"));
  forest.set_tap({});
  EXPECT_EQ(forest.tree.forward(x).item<double>(), 4.0);
  EXPECT_EQ(seen.size(), 3U);
}

TEST(ModuleTest, TapOfAPartReportsUnderTheGivenPath) {
  Tree tree;
  std::vector<std::string> seen;
  tree.set_tap(
      [&seen](const std::string& path, const at::Tensor& output) {
        seen.push_back(path);
        return output;
      },
      "blocks.7");
  (void)tree.forward(at::ones({1}));
  EXPECT_THAT(seen, ElementsAre("blocks.7.a", "blocks.7.b", "blocks.7"));
}

TEST(ModuleTest, ParametersCountTheirElements) {
  const Leaf leaf;
  EXPECT_EQ(leaf.weight.numel(), 6);
  EXPECT_EQ(Parameter{}.numel(), 1);
}

TEST(InitTest, XavierBoundIsGlorotAndBengios) {
  const Init init = Init::xavier_uniform(20, 30);
  EXPECT_EQ(init.kind, Init::Kind::kUniform);
  EXPECT_DOUBLE_EQ(init.scale, std::sqrt(6.0 / 50.0));
}

}  // namespace module_test
}  // namespace kinora::nn
