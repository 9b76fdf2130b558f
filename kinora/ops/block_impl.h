#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <string>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/fastest_way.h"
#include "kinora/ops/fp8.h"
#include "kinora/ops/fp8_linears.h"
#include "kinora/ops/low_rank_linears.h"

/// What BlockKernels holds, for the files that implement it.
namespace kinora::ops {

struct BlockKernels::Impl {
  at::Device device;
  at::ScalarType type;  // of the blocks
  bool deterministic;
  FastestWay ways;
  bool own_norm = false;
  bool attention_fused = true;                         // of the composed path
  bool attention_required = false;                     // kernels.attention is on
  std::string attention_refusal = {};                  // why the composed path ran
  std::unique_ptr<cuda::Products> products = nullptr;  // null: ATen's
  std::unique_ptr<cuda::FusedAttention> attention = nullptr;

  std::unique_ptr<Fp8Linears> fp8 = nullptr;  // null: none in fp8
  LowRankLinears low_rank = {};
  std::vector<std::function<void()>>* late = nullptr;  // put_off_weight_grads()

  [[nodiscard]] at::Tensor empty(at::IntArrayRef shape, at::ScalarType type) const {
    return at::empty(shape, at::device(device).dtype(type));
  }

  void count(const Operand& operand, const LinearWeights& linear) const {
    if (fp8 != nullptr) {
      fp8->count(operand, linear);
    }
  }
  /// As Fp8Linears'.
  [[nodiscard]] bool covers(int64_t number, int64_t rows) const {
    return fp8 != nullptr && fp8->covers(number, rows);
  }
  [[nodiscard]] bool fuses(int64_t number, int64_t rows) const {
    return fp8 != nullptr && fp8->fuses(number, rows);
  }

  /// What a kernel is to write as the operand of linear `number`: values with `room` behind their
  /// rows, unless 8-bit copies are all that is read; these where the kernel can make them.
  struct Target {
    Operand operand{};
    kernels::Fp8Output fp8{};  ///< nothing of it is wanted: it is to be made of the values
  };
  [[nodiscard]] Target target(int64_t number, Fp8::Role role, at::IntArrayRef sizes,
                              at::ScalarType value_type, int64_t room = 0) const;
  /// That operand, where the kernel has run.
  [[nodiscard]] Operand finished(Target target, int64_t number, Fp8::Role role) const;

  /// Gives a product with a bias gradient the type of it that the library has: fp32 or, for bf16
  /// inputs, bf16. Not fp16: sums of scaled gradients would be the first to overflow.
  /// @return  whether there is one.
  bool choose_bias_grad_type(kernels::MatmulProblem* problem) const;
  /// Runs such a product and adds the bias gradient, which it overwrites, to `bias_grad` (fp32).
  void run_adding_bias_grad(const kernels::MatmulProblem& problem,
                            kernels::MatmulArguments arguments, const at::Tensor& bias_grad) const;
};

}  // namespace kinora::ops
