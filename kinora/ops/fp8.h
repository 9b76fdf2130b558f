#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/fp8_state.h"

/// Training in 8-bit floats: which linears compute in them, and the scales of their operands
/// (kernels/fp8.h). Inputs and weights are E4M3, gradients E5M2 (Micikevicius et al. 2022).
namespace kinora::ops {

class Fp8 {
 public:
  /// `num_linears`: linears are numbered from 0. kConfig where the device has no fp8 products.
  Fp8(int64_t num_linears, at::Device device);

  /// Whether products on `device` can be fp8 ones: built with nvcc, compute capability 8.9 or more.
  [[nodiscard]] static bool possible(at::Device device);

  /// Once before the passes of an optimizer step: new scales of inputs and gradients from the
  /// magnitudes of the last steps (delayed scaling), and weights quantised by their own magnitude.
  /// Does not wait for the device.
  void begin_step(const std::vector<LinearWeights>& linears);

  /// In the first step nothing is known of inputs and gradients: it computes in the block's type,
  /// and only measures. The step after restore() is no first one.
  [[nodiscard]] bool is_calibrating() const { return num_steps_ <= 1; }

  /// What another run of the same model needs to go on after the steps so far; nothing before the
  /// first. Waits for the device.
  [[nodiscard]] std::optional<Fp8State> state() const;
  /// Goes on from there: the next step computes in fp8, with the scales that it would have had. kIo
  /// for the state of another number of linears or with a fault_of().
  void restore(const Fp8State& state);

  /// Whether a linear of this number and these sizes computes in fp8.
  [[nodiscard]] bool covers(int64_t number, int64_t rows) const;

  enum Role : int64_t { kInput, kGradient };
  [[nodiscard]] const float* scale(int64_t number, Role role) const;
  [[nodiscard]] const float* inverse_scale(int64_t number, Role role) const;
  [[nodiscard]] float* amax(int64_t number, Role role) const;

  struct Weight {
    at::Tensor data;        ///< uint8 [out, in]
    at::Tensor transposed;  ///< uint8 [in, out]
    const float* inverse_scale = nullptr;
  };
  [[nodiscard]] Weight weight(int64_t number) const;

 private:
  /// Of amax_, history_ or scale_, those of inputs and gradients (dim 1) of the linears (dim 0).
  [[nodiscard]] at::Tensor of_linears(const at::Tensor& numbers) const;

  int64_t num_linears_;
  at::Device device_;
  int64_t num_steps_ = 0;
  // Numbers of a tensor are kStride apart: products want their scales on 16 bytes. Inputs and
  // gradients of linear i are tensors 2 i and 2 i + 1; weights are apart.
  static constexpr int64_t kStride = 4;
  at::Tensor amax_, history_, largest_, scale_, inverse_;
  at::Tensor weight_amax_, weight_history_, weight_largest_, weight_scale_, weight_inverse_;
  std::vector<at::Tensor> weights_, transposed_;
};

}  // namespace kinora::ops
