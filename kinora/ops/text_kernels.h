#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kinora/kernels/activation.h"

/// What the forward pass of a text encoder's blocks is made of, without gradients: on a GPU our own
/// kernels and cuBLASLt's products, on a CPU the kernels' references, which tests compare with.
///
/// Shapes: R rows of all texts, C width, H heads, D channels of a head. Matrices may have room
/// behind their rows; the columns of a row are adjacent.
namespace kinora::ops {

/// Queries, keys and values of texts that lie one after the other.
struct TextHeads {
  at::Tensor q, k, v;   ///< [R, H D] each
  at::Tensor offsets;   ///< int32 [texts + 1]: where each text begins, and R
  int64_t longest = 0;  ///< tokens of the longest text
  int64_t head_dim = 0;
  float scale = 1.0F;  ///< of the scores
  /// fp32 [H, 2 M - 1], contiguous, M at least `longest`: added to the scores by the distance of
  /// the key from the query. Undefined: nothing.
  at::Tensor bias;
};

class TextKernels {
 public:
  /// Works on the current stream of one device, one stream at a time.
  TextKernels();
  ~TextKernels();
  TextKernels(const TextKernels&) = delete;
  TextKernels& operator=(const TextKernels&) = delete;

  /// Whether our kernels run on a GPU's tensors of this type, texts of up to `longest` tokens and
  /// heads of `head_dim` channels.
  [[nodiscard]] static bool takes(at::Device device, at::ScalarType type, int64_t head_dim,
                                  int64_t longest);

  /// x / rms(x) * weight. x: fp32 [R, C]; weight: fp32 [C]; out: [R, C], 16 bits or fp32; all
  /// contiguous.
  void norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& out);
  /// x W^T, which is added to `out` where `accumulate`. x: [R, in]; out: [R, out], of x's type or
  /// fp32.
  void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out,
              bool accumulate);
  /// f(u) * v, in the place of u. uv: [R, 2 F], contiguous, the rows of u and v. Returns [R, F], a
  /// view.
  at::Tensor gate(kernels::Activation function, const at::Tensor& uv);
  /// Attention of each text's tokens among themselves, in the place of the queries.
  void attend(const TextHeads& heads);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::ops
