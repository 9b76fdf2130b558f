#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kinora/nn/naming.h"

/// Tensors that stay where they are until they are written elsewhere.
namespace kinora::checkpoint {

struct LateTensor {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
  /// Rows `begin` to `end` of dim 0, on the CPU and contiguous; a tensor without dims is one row.
  /// They may lie in a mapped file, and are not to be written to.
  std::function<at::Tensor(int64_t begin, int64_t end)> read;
  bool reads_rows = true;  ///< else every read costs as much as one of all rows

  [[nodiscard]] int64_t rows() const { return shape.empty() ? 1 : shape.front(); }
  [[nodiscard]] at::Tensor read_all() const { return read(0, rows()); }
  [[nodiscard]] int64_t numel() const;
};

/// By name.
using LateTensors = std::map<std::string, LateTensor>;

/// Rows of a tensor in memory, without a copy.
[[nodiscard]] at::Tensor rows_of(const at::Tensor& values, int64_t begin, int64_t end);

/// A tensor in memory.
[[nodiscard]] LateTensor late_tensor(const at::Tensor& values);

/// The same elements with the dims of `shape`. Where the first one changes, reading some rows costs
/// all.
[[nodiscard]] LateTensor with_shape(LateTensor tensor, const std::vector<int64_t>& shape);

/// `tensors` under the keys of another naming, cut and repeated as it says. What it has no name for
/// stays behind in `tensors`. kShape where rows do not divide.
[[nodiscard]] LateTensors take_renamed(LateTensors& tensors, const nn::Naming& naming);

}  // namespace kinora::checkpoint
