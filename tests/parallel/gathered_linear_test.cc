// Sliced products of rows that travel against one product of everything.
#include "kinora/parallel/gathered_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "tests/comm/ranks.h"
#include "tests/ops/tensors.h"

namespace kinora::parallel {
namespace gathered_linear_test {

using ops::normal;
using ops::relative_error;

constexpr int64_t kRows = 5;
constexpr int64_t kInputs = 6;
constexpr int64_t kOutputs = 4;
constexpr double kRounding = 1e-6;

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().clone().requires_grad_();
}

class GatheredLinearTest : public testing::TestWithParam<int64_t> {};

TEST_P(GatheredLinearTest, GatherEqualsTheProductOfAllRows) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    const int64_t rank = world.rank();
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < world.size(); ++i) {
      all.push_back(normal({kRows, kInputs}, i));
    }
    // Of three slices of rows, as the packed weight of attention has.
    const at::Tensor packed = leaf(normal({3, 2 * kOutputs, kInputs}, 100 + rank));
    const at::Tensor bias = leaf(normal({3, 2 * kOutputs}, 200 + rank));
    const at::Tensor weight = packed.narrow(1, 1, kOutputs);
    const at::Tensor x = leaf(all[rank]);
    const at::Tensor y = gather_linear(world, x, weight, bias.narrow(1, 1, kOutputs));

    const at::Tensor expected_x = leaf(at::stack(all));
    const at::Tensor expected_packed = leaf(packed);
    const at::Tensor expected_bias = leaf(bias);
    const at::Tensor expected =
        at::linear(expected_x, expected_packed.narrow(1, 1, kOutputs).flatten(0, 1),
                   expected_bias.narrow(1, 1, kOutputs).flatten());
    EXPECT_EQ(y.sizes(), expected.sizes());
    EXPECT_LT(relative_error(y, expected), kRounding);

    const at::Tensor gradient = normal(expected.sizes().vec(), 300 + rank);
    y.backward(gradient);
    expected.backward(gradient);
    EXPECT_LT(relative_error(packed.grad(), expected_packed.grad()), kRounding);
    EXPECT_LT(relative_error(bias.grad(), expected_bias.grad()), kRounding);
    // Every rank's slice has its share of the gradient of everyone's rows.
    const at::Tensor to_all = expected_x.grad().clone();
    world.all_reduce(to_all);
    EXPECT_LT(relative_error(x.grad(), to_all[rank]), kRounding);

    // Forward W - 1 parts, backward these again and as many of gradients.
    const comm::Traffic traffic = world.traffic(comm::Operation::kExchange);
    EXPECT_EQ(traffic.calls, 3 * (world.size() - 1));
    EXPECT_EQ(traffic.bytes, traffic.calls * kRows * kInputs * 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GatheredLinearTest, testing::Values(1, 2, 4),
                         testing::PrintToStringParamName());

}  // namespace gathered_linear_test
}  // namespace kinora::parallel
