#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <vector>

#include "kinora/train/boost/booster.h"

/// A torch::nn::Module to train, and a way to do so.
namespace kinora::train {

inline constexpr int kSteps = 10;
inline constexpr double kLr = 1e-2;
inline constexpr double kWeightDecay = 0.1;

/// Two layers, an output that uses the first one's weight again, a branch that inputs may leave
/// out, a parameter that nothing uses, a frozen one, and a buffer.
struct Net : torch::nn::Module {
  Net() {
    at::manual_seed(3);
    first = register_parameter("first", at::randn({16, 6}));
    bias = register_parameter("bias", at::randn({16}));
    second = register_parameter("second", at::randn({16, 16}) * 0.2);
    branch = register_parameter("branch", at::randn({16, 16}) * 0.2);
    unused = register_parameter("unused", at::randn({5}));
    frozen = register_parameter("frozen", at::randn({16}), /*requires_grad=*/false);
    tied = register_parameter("tied", first);
    calls = register_buffer("calls", at::zeros({}, at::kLong));
  }

  at::Tensor forward(const at::Tensor& x, bool branches) {
    calls.add_(1);
    at::Tensor h = at::tanh(at::linear(x, first, bias));
    h = at::tanh(at::linear(h, second) * frozen);
    if (branches) {
      h = h + at::linear(h, branch);
    }
    return at::linear(h, tied.t());
  }

  at::Tensor first, bias, second, branch, unused, frozen, tied, calls;
};

/// The loss of micro-batch `index`; of every other `run` of them each takes the branch.
[[nodiscard]] inline at::Tensor loss_of(Net& net, int64_t index, int64_t run = 1) {
  const at::Tensor x =
      (at::arange(8 * 6, net.first.options().dtype(at::kFloat).requires_grad(false)).view({8, 6}) *
           0.7 +
       0.3 * static_cast<double>(index))
          .sin();
  const at::Tensor input = x.to(net.first.scalar_type());
  return at::mse_loss(net.forward(input, index / run % 2 == 0).to(at::kFloat), x * x);
}

[[nodiscard]] inline BoosterOptions fp32() {
  return {.precision = Precision::kFp32, .device = DeviceChoice::kCpu};
}
[[nodiscard]] inline optim::OptimizerConfig adamw() {
  return {.weight_decay = kWeightDecay};
}
[[nodiscard]] inline optim::LrSchedule constant() {
  return {.value = kLr};
}

/// kSteps steps; rank `rank` takes every num_ranks-th micro-batch.
inline std::vector<optim::StepResult> train(Net& net, Boosted& boosted, int64_t passes,
                                            int64_t num_ranks = 1, int64_t rank = 0,
                                            int64_t run = 1) {
  boosted.accumulate(passes);
  std::vector<optim::StepResult> results;
  for (int64_t step = boosted.steps(); results.size() < kSteps; ++step) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      boosted.backward(loss_of(net, (step * passes + pass) * num_ranks + rank, run));
    }
    results.push_back(boosted.step());
  }
  return results;
}

}  // namespace kinora::train
