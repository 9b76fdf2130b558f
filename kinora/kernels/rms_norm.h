#pragma once

#include <cstdint>
#include <optional>

#include "kinora/core/dtype.h"
#include "kinora/core/host_device.h"

/// RMSNorm (Zhang and Sennrich 2019) over the rows of a matrix [rows, width], whose columns are
/// adjacent; strides are the distance of its rows in elements, 0: width.
///
///   y = x * rstd * weight,  rstd = 1 / sqrt(mean_c(x^2) + epsilon)
///
/// and then, where wanted, pairs of columns (2 i, 2 i + 1) turned by an angle (rotary embedding: Su
/// et al. 2021): what happens to queries or keys whose heads are normed together. Arithmetic is
/// fp32. This header has the arguments and the CPU reference; kernels/cuda/rms_norm.h the
/// launchers.
namespace kinora::kernels {

/// Pair i of row r turns by angle [r % num_positions, i % num_angles]: half a head's where all
/// heads turn alike, half a row's where each turns in its own way.
struct RowRotation {
  const float* cosine = nullptr;  ///< [num_positions, num_angles]; null: nothing is turned
  const float* sine = nullptr;    ///< as cosine
  int64_t num_positions = 1;
  int64_t num_angles = 1;

  /// Where the angle of the pair of columns is that begins at `column`.
  [[nodiscard]] KINORA_HOST_DEVICE int64_t place(int64_t row, int64_t column) const {
    return row % num_positions * num_angles + column / 2 % num_angles;
  }
};

struct RmsNormForward {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6F;
  DType type = DType::kBF16;  ///< of x and y: kF32, kBF16, kF16
  /// Of y alone, where x is kF32: kBF16 or kF16. Then y is not x.
  std::optional<DType> y_type = {};

  const void* x = nullptr;
  int64_t x_stride = 0;
  const float* weight = nullptr;  ///< [width]; null: ones
  RowRotation rotation = {};      ///< only of an even width
  void* y = nullptr;              ///< may be x, with its stride
  int64_t y_stride = 0;
};

/// With dy turned back, xhat = x * rstd and g = dy * weight:
///
///   dx = rstd * (g - xhat * mean_c(g * xhat)),  dweight += sum over rows of dy * xhat
struct RmsNormBackward {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6F;
  DType type = DType::kBF16;  ///< of dy, x, dx

  const void* dy = nullptr;
  int64_t dy_stride = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const float* weight = nullptr;  ///< [width]; null: ones
  RowRotation rotation = {};      ///< as forward's
  void* dx = nullptr;             ///< may be dy or x, with its stride
  int64_t dx_stride = 0;
  float* dweight = nullptr;  ///< [width], in and out; null: not wanted
};

/// The CPU reference: plain loops, in double.
void rms_norm_forward(const RmsNormForward& call);
void rms_norm_backward(const RmsNormBackward& call);

}  // namespace kinora::kernels
