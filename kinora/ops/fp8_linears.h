#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/kernels/matmul.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/fastest_way.h"
#include "kinora/ops/fp8.h"

/// The products of linears in fp8, and which linears compute so. For BlockKernels only.
///
/// Shapes: R rows, a weight is [out, in].
namespace kinora::ops {

/// The sizes of a linear's products.
struct LinearShape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  bool trains_weight = true;  ///< its gradient is the third product
  int64_t update_rank = 0;    ///< of low-rank updates, whose products are of the block's type

  bool operator==(const LinearShape&) const = default;
};

/// A linear's products of 8-bit copies; Hopper multiplies these along rows only, so all are
/// A B^T. `type` is what the block computes in.
struct Fp8Problems {
  kernels::MatmulProblem forward;      ///< x W^T + bias: [R, out]
  kernels::MatmulProblem input_grad;   ///< dy (W^T)^T: [R, in]
  kernels::MatmulProblem weight_grad;  ///< dy^T (x^T)^T: fp32 [out, in], overwritten
};
[[nodiscard]] Fp8Problems fp8_problems(Fp8Scaling scaling, const LinearShape& shape, DType type);

class Fp8Linears {
 public:
  /// What a linear's low-rank updates add to its result and to the gradient of its input;
  /// undefined: it has none. Both are overwritten.
  struct Addends {
    at::Tensor y, dx;
  };
  /// The products of a linear in the block's type, without results: x, dy (undefined: forward
  /// alone), weights.
  using Plain = std::function<void(const at::Tensor&, const at::Tensor&,
                                   const LinearWeights& linear, const Addends& addends)>;

  /// `products` and `ways` are borrowed; `type` is what blocks compute in.
  Fp8Linears(std::unique_ptr<Fp8> fp8, at::ScalarType type, cuda::Products& products,
             FastestWay& ways, Plain plain);

  [[nodiscard]] Fp8& fp8() { return *fp8_; }

  /// Whether linear `number` (negative: none) of so many rows computes in fp8: all its products
  /// (of a frozen weight two, in sampling the one forward), or none; of a linear's parts all, or
  /// none. They do where the library has them, and they, with the quantisation that no other kernel
  /// does on its way and with what low-rank updates add, took less time together than in the
  /// block's type. The first call of a shape outside of a graph's
  /// capture runs and times both (waits for the device, takes memory for operands of its own); if
  /// deterministic it times nothing, and takes fp8 where it runs.
  [[nodiscard]] bool covers(int64_t number, int64_t rows);
  /// Whether what makes an operand of the linear quantises it, too, instead of operand().
  [[nodiscard]] bool fuses(int64_t number, int64_t rows) {
    return fp8_->knows_scales() && covers(number, rows);
  }

  /// As BlockKernels::operand(), of a linear that covers() its rows. column_sums: where the result
  /// is 8-bit, those of `value` are added (fp32 [C]); undefined: not wanted.
  [[nodiscard]] Operand operand(const at::Tensor& value, int64_t number, Fp8::Role role,
                                const at::Tensor& column_sums = {});

  /// `weight` is Fp8's; bias: undefined: none. sum: added, and overwritten; undefined: none. out:
  /// where the result lies without a sum; undefined: anywhere.
  [[nodiscard]] at::Tensor linear(const Operand& x, const Operand& weight, const at::Tensor& bias,
                                  const at::Tensor& sum = {}, const at::Tensor& out = {});
  /// GELU(x W^T + bias) as the input of linear `consumer`, which fuses() its rows, quantised within
  /// the product. Sampling alone: nothing of it is kept, nor has it a transposed copy.
  [[nodiscard]] Operand linear_gelu(const Operand& x, const Operand& weight, const at::Tensor& bias,
                                    int64_t consumer);
  /// That product, and whether it can be taken: in sampling, where the library has it.
  [[nodiscard]] kernels::MatmulProblem gelu_problem(const Operand& x, const Operand& weight) const;
  [[nodiscard]] bool has_linear_gelu(const Operand& x, const Operand& weight);
  [[nodiscard]] at::Tensor input_grad(const Operand& dy, const Operand& weight,
                                      const at::Tensor& sum = {});
  /// out: [out, in], rows at any distance.
  void weight_grad(const Operand& dy, const Operand& x, const at::Tensor& out, bool overwrite);

  /// Counts a product of an operand with a number for the share of fp8.
  void count(const Operand& operand, const LinearWeights& linear);

  /// "fp8 where it can, delayed scaling: 100 % of the blocks' arithmetic, 84 of 112 linears; 1152
  /// -> 1152 of 2048 rows stays bf16: fp8 0.031 ms, bf16 0.028 ms".
  [[nodiscard]] std::string describe() const;

 private:
  struct Decision {
    LinearShape shape;
    bool can;            ///< the library has its products
    double gain;         ///< milliseconds that fp8 saves; 0: not timed
    std::string reason;  ///< in words: times of both ways, or why there is one alone
  };
  [[nodiscard]] LinearShape shape_of(int64_t number, int64_t rows) const;
  /// Of one part; null: not decided.
  [[nodiscard]] const Decision* find(const LinearShape& shape) const;
  /// covers() as decided already; nothing while it can still be either.
  [[nodiscard]] std::optional<bool> decided(int64_t number, int64_t rows) const;
  /// [first, end) of the parts of its linear.
  [[nodiscard]] std::pair<int64_t, int64_t> parts_of(int64_t number) const;
  /// The product, added to `sum` where that is defined, else in `to` or, undefined, anywhere.
  at::Tensor run_adding(kernels::MatmulProblem problem, kernels::MatmulArguments arguments,
                        const at::Tensor& sum, const at::Tensor& to = {});
  /// What stands in the way of a shape's fp8 products, in words; "": nothing.
  [[nodiscard]] std::string obstacle(const LinearShape& shape);
  /// By running both.
  [[nodiscard]] Decision decide(const LinearShape& shape);

  std::unique_ptr<Fp8> fp8_;
  at::ScalarType type_;
  cuda::Products& products_;
  FastestWay& ways_;
  Plain plain_;
  std::vector<Decision> decisions_;
  double numbered_flops_ = 0.0;  // of operands with a number, once fp8 has its scales
  double fp8_flops_ = 0.0;       // of these, in fp8
};

}  // namespace kinora::ops
