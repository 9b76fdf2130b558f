#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kinora/ops/activations_aside.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/block_stack.h"
#include "kinora/ops/parameter.h"
#include "tests/ops/named_results.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {

// Shapes: B batch, N tokens, C width, L blocks.

struct StackSizes {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t depth = 3;       ///< a first, a last and one between
  bool one_behind = true;  ///< modulation weights lie one behind the other: one product

  [[nodiscard]] std::string name() const {
    return "D" + std::to_string(width / heads) + "_B" + std::to_string(batch) + "_N" +
           std::to_string(tokens) + (one_behind ? "" : "_apart");
  }
};

/// A stack of blocks with random weights that are exact in bf16, its inputs, and one training pass
/// through it: by autograd, which is what is to be met, or by run_blocks.
class RandomStack {
 public:
  RandomStack(const StackSizes& sizes, at::Device device, at::ScalarType type)
      : device_(device), type_(type) {
    const int64_t width = sizes.width;
    heads_ = sizes.heads;
    const int64_t rows = 6 * width;
    LinearWeights slab;  // what all blocks' modulation is cut from
    if (sizes.one_behind) {
      slab = linear(sizes.depth * rows, width, "modulation");
    }
    for (int64_t i = 0; i < sizes.depth; ++i) {
      const std::string block = "blocks." + std::to_string(i);
      const LinearWeights qkv = linear(3 * width, width, block + ".qkv");
      const LinearWeights proj = linear(width, width, block + ".proj");
      const LinearWeights fc1 = linear(4 * width, width, block + ".fc1");
      const LinearWeights fc2 = linear(width, 4 * width, block + ".fc2");
      stack_.blocks.push_back(
          {.branches = {{.body = SelfAttentionBody{.qkv = qkv,
                                                   .proj = proj,
                                                   .heads = sizes.heads,
                                                   .length = sizes.tokens},
                         .seam = {.shift = 0, .scale = 1, .gate = 2}},
                        {.body = MlpBody{fc1, fc2}, .seam = {.shift = 3, .scale = 4, .gate = 5}}},
           .num_vectors = 6});
      modulation_.push_back(sizes.one_behind ? part(slab, i * rows, rows)
                                             : linear(rows, width, block + ".modulation"));
    }
    stack_.modulation = merge_adjacent(modulation_);
    stack_.modulation_buckets.assign(stack_.modulation.size(), 0);
    x_ = input({sizes.batch, sizes.tokens, width}, "x");
    c_ = input({sizes.batch, width}, "c");
    final_modulation_ = input({sizes.batch, 2 * width}, "final_modulation");
    weighting_ = normal({sizes.batch, sizes.tokens, width}, number_++).to(device);
  }

  [[nodiscard]] size_t num_modulation_products() const { return stack_.modulation.size(); }

  /// Output and gradients by autograd.
  [[nodiscard]] NamedResults plain() {
    return run([this](const at::Tensor& x, const at::Tensor& c, const at::Tensor& last) {
      return plain_forward(x, c, last);
    });
  }

  /// What backward needs in 8 bits from now on, or not.
  void keep_in_fp8(bool in_fp8) { stack_.fp8_activations = in_fp8; }

  /// offloaded: blocks that keep in `host` what backward needs; of the others the first
  /// `recomputed` keep only their input; null: those stay where they are.
  [[nodiscard]] NamedResults fast(BlockKernels& kernels, Recompute level,
                                  std::shared_ptr<HostActivations> host = nullptr,
                                  int64_t offloaded = 0, int64_t recomputed = 0) {
    stack_.recompute = level;
    stack_.host_activations = std::move(host);
    std::vector<bool> may(stack_.blocks.size(), true);
    may.back() = false;
    stack_.offloaded = spread_evenly(may, offloaded);
    stack_.recomputed = first_others(stack_.offloaded, recomputed);
    return run([&](const at::Tensor& x, const at::Tensor& c, const at::Tensor& last) {
      return run_blocks(kernels, stack_, {.x = x.to(type_), .condition = c, .vectors = last});
    });
  }

 private:
  struct Leaf {
    std::string name;
    at::Tensor value;
    at::Tensor grad;
  };

  at::Tensor random(const std::vector<int64_t>& shape, double deviation) {
    return (normal(shape, number_++) * deviation).to(at::kBFloat16);
  }

  LinearWeights linear(int64_t out, int64_t in, const std::string& name) {
    const auto leaf = [&](const at::Tensor& value) {
      return value.to(device_, type_).set_requires_grad(true);
    };
    LinearWeights weights;
    weights.weight = leaf(random({out, in}, 1.0 / std::sqrt(static_cast<double>(in))));
    weights.bias = leaf(random({out}, 0.3));
    const auto fp32 = at::device(device_).dtype(at::kFloat);
    weights.weight_grad = at::zeros({out, in}, fp32);
    weights.bias_grad = at::zeros({out}, fp32);
    gradients_.push_back({name + ".weight", {}, weights.weight_grad});
    gradients_.push_back({name + ".bias", {}, weights.bias_grad});
    return weights;
  }

  static LinearWeights part(const LinearWeights& slab, int64_t first, int64_t count) {
    const auto leaf = [&](const at::Tensor& whole) {
      return whole.detach().narrow(0, first, count).set_requires_grad(true);
    };
    return {leaf(slab.weight), leaf(slab.bias), slab.weight_grad.narrow(0, first, count),
            slab.bias_grad.narrow(0, first, count)};
  }

  Leaf input(const std::vector<int64_t>& shape, const std::string& name) {
    const at::Tensor value = random(shape, 1.0).to(device_, at::kFloat).set_requires_grad(true);
    gradients_.push_back({name, value, at::zeros_like(value)});
    return gradients_.back();
  }

  template <typename Forward>
  NamedResults run(const Forward& forward) {
    for (const Leaf& leaf : gradients_) {
      at::Tensor(leaf.grad).zero_();
    }
    const at::Tensor out =
        forward(with_gradient(x_.value, x_.grad), with_gradient(c_.value, c_.grad),
                with_gradient(final_modulation_.value, final_modulation_.grad));
    torch::autograd::backward({(out * weighting_).sum()}, {});
    NamedResults results{{"output", out.detach()}};
    for (const Leaf& leaf : gradients_) {
      results.push_back({leaf.name, leaf.grad.clone()});
    }
    return results;
  }

  [[nodiscard]] at::Tensor product(const at::Tensor& x, const LinearWeights& linear) const {
    return at::linear(x.to(type_), with_gradient(linear.weight, linear.weight_grad),
                      with_gradient(linear.bias, linear.bias_grad));
  }

  static at::Tensor norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
    constexpr double kEpsilon = 1e-6;
    return at::addcmul(shift, at::layer_norm(x, {x.size(-1)}, {}, {}, kEpsilon), scale + 1.0);
  }

  /// The blocks as the paper has them, the residual stream in fp32.
  [[nodiscard]] at::Tensor plain_forward(at::Tensor x, const at::Tensor& c,
                                         const at::Tensor& last) const {
    const at::Tensor silu_c = at::silu(c);
    for (size_t i = 0; i < stack_.blocks.size(); ++i) {
      const auto& self = std::get<SelfAttentionBody>(stack_.blocks[i].branches[0].body);
      const auto& mlp = std::get<MlpBody>(stack_.blocks[i].branches[1].body);
      const auto m =
          product(silu_c, modulation_[i]).to(at::kFloat).unsqueeze(1).chunk(6, -1);  // [B, 1, C]
      const at::Tensor attended =
          attention(product(norm(x, m[0], m[1]), self.qkv), heads_);  // [B, N, C]
      x = at::addcmul(x, m[2], product(attended, self.proj));
      const at::Tensor hidden = at::gelu(product(norm(x, m[3], m[4]), mlp.fc1), "tanh");
      x = at::addcmul(x, m[5], product(hidden, mlp.fc2));
    }
    const auto m = last.unsqueeze(1).chunk(2, -1);
    return norm(x, m[0], m[1]);
  }

  at::Device device_;
  at::ScalarType type_;
  int64_t heads_ = 1;
  int64_t number_ = 0;
  BlockStack stack_;
  std::vector<LinearWeights> modulation_;  // a block each
  std::vector<Leaf> gradients_;
  Leaf x_, c_, final_modulation_;
  at::Tensor weighting_;
};

inline constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kElementwise,
                                            Recompute::kMlp, Recompute::kBlock};

/// A stack by run_blocks against autograd on `device`: fp32 within `fp32_tolerance`, bf16 as near
/// to fp32 as autograd in bf16.
inline void expect_stack_equals_autograd(const StackSizes& sizes, at::Device device,
                                         bool deterministic, double fp32_tolerance) {
  RandomStack exact_stack(sizes, device, at::kFloat);
  RandomStack stack(sizes, device, at::kBFloat16);
  EXPECT_EQ(stack.num_modulation_products(),
            sizes.one_behind ? 1U : static_cast<size_t>(sizes.depth));
  const NamedResults exact = exact_stack.plain();
  const NamedResults plain = stack.plain();
  BlockKernels fp32_kernels({}, device, at::kFloat, deterministic);
  BlockKernels bf16_kernels({}, device, at::kBFloat16, deterministic);
  for (const Recompute level : kRecomputes) {
    const std::string how = "recompute level " + std::to_string(static_cast<int>(level));
    expect_near(exact, exact_stack.fast(fp32_kernels, level), fp32_tolerance, how + ", fp32");
    expect_as_near(exact, plain, stack.fast(bf16_kernels, level),
                   how + ", bf16, " + bf16_kernels.describe());
  }
}

/// What blocks keep goes to the host and comes back without the change of a bit, in fp32 and bf16.
/// The memory of the first pass serves all of the same size.
inline void expect_offloaded_bits(const StackSizes& sizes, at::Device device) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    RandomStack stack(sizes, device, type);
    BlockKernels kernels({}, device, type, /*deterministic=*/true);
    for (const Recompute level : kRecomputes) {
      for (const int64_t recomputed : {0, 1}) {
        for (const int64_t offloaded : {int64_t{1}, sizes.depth - recomputed}) {
          const NamedResults near = stack.fast(kernels, level, nullptr, offloaded, recomputed);
          const auto host = std::make_shared<HostActivations>(device);
          int64_t bytes = 0;
          for (int pass = 0; pass < 2; ++pass) {
            expect_same(near, stack.fast(kernels, level, host, offloaded, recomputed),
                        "level " + std::to_string(static_cast<int>(level)) + ", " +
                            std::to_string(recomputed) + " recomputed and " +
                            std::to_string(offloaded) + " blocks, pass " + std::to_string(pass));
            EXPECT_TRUE(pass == 0 || host->num_bytes() == bytes);
            bytes = host->num_bytes();
          }
          EXPECT_GT(bytes, 0);
        }
      }
    }
  }
}

/// What blocks keep in 8 bits: forward has the same bits, and gradients are as near as codes of
/// three bits behind the point, each within a sixteenth of its number, make them through three
/// blocks. By the host they are the same.
inline void expect_fp8_activations(at::Device device) {
  RandomStack stack({.width = 128, .heads = 2, .batch = 2, .tokens = 64}, device, at::kBFloat16);
  BlockKernels kernels({}, device, at::kBFloat16, /*deterministic=*/true);
  for (const Recompute level : kRecomputes) {
    const std::string how = "level " + std::to_string(static_cast<int>(level));
    stack.keep_in_fp8(false);
    const NamedResults exact = stack.fast(kernels, level);
    stack.keep_in_fp8(true);
    const NamedResults coded = stack.fast(kernels, level);
    EXPECT_TRUE(at::equal(coded.front().value, exact.front().value)) << how;
    expect_relative(exact, coded, 0.12, how);
    double sum = 0.0;
    for (size_t i = 1; i < exact.size(); ++i) {
      sum += error_of(coded[i].value, exact[i].value).rms;
    }
    EXPECT_GT(sum, 0.0) << how;
    expect_same(coded, stack.fast(kernels, level, std::make_shared<HostActivations>(device), 2),
                how + " by the host");
  }
}

}  // namespace kinora::ops
