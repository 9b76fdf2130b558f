#pragma once

#include <ATen/core/Tensor.h>

/// What Muon makes of a matrix's momentum (kernels::UpdateRule::kMuon).
namespace kinora::ops {

/// The orthogonal matrix nearest to `matrix`, roughly: its singular values become numbers between
/// about 0.5 and 1.5. Five steps of Newton-Schulz with the coefficients and the order of operations
/// of torch.optim.Muon, on GPUs in bf16 as there, on CPUs in fp32.
/// @param matrix  fp32 or bf16 [rows, columns], which stays
/// @return of the type of the products, [rows, columns]
[[nodiscard]] at::Tensor orthogonal(const at::Tensor& matrix);

/// The type of the products on a device.
[[nodiscard]] at::ScalarType orthogonal_type(at::Device device);

/// Multiply-accumulates of it.
[[nodiscard]] double orthogonal_macs(double rows, double columns);

}  // namespace kinora::ops
