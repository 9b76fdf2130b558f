#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/kernels/factored.h"

/// The passes of Adafactor and CAME (kernels/factored.h) on tensors: on the CPU the plain kernels,
/// in parallel; on a GPU one launch each, which waits for nothing and can be recorded in a graph.
/// They give the same bits.
namespace kinora::ops {

/// Whether there are kernels for what lies on a device: a GPU in a build without nvcc has none.
[[nodiscard]] bool has_factored_kernels(at::Device device);

/// One parameter: contiguous fp32 tensors on one device.
struct FactoredTensors {
  int64_t rows = 0;  ///< 0: a vector
  int64_t columns = 0;
  at::Tensor grad;         ///< elements [begin, begin + numel) of it, which may be none
  at::Tensor mean;         ///< likewise; undefined: kAdafactor
  int64_t begin = 0;       ///< of what is here
  at::Tensor factors;      ///< [rows + columns]
  at::Tensor instability;  ///< likewise; undefined, or without elements: there is none
};

/// All parameters with what the kernels need to go over them: made once.
class FactoredTable {
 public:
  /// Throws kShape. Copies the table to the device: not within a graph.
  explicit FactoredTable(std::vector<FactoredTensors> parameters);

  /// Fp32, what ranks that divide the state add up (kernels::FactoredPass): new means of rows and
  /// columns of all parameters, and the mean squares of their directions.
  [[nodiscard]] const at::Tensor& means() const { return means_; }
  [[nodiscard]] const at::Tensor& mean_squares() const { return mean_squares_; }
  /// With pointers to where the tensors lie.
  [[nodiscard]] const kernels::FactoredTable& table() const { return table_; }

 private:
  std::vector<FactoredTensors> tensors_;  // that the table points to
  at::Tensor pieces_;                     // kernels::FactoredPiece, uint8
  at::Tensor parameters_;                 // kernels::FactoredParameter, likewise
  at::Tensor sums_;                       // of rows, columns and tiles
  at::Tensor means_;
  at::Tensor mean_squares_;
  kernels::FactoredTable table_;
};

/// kernels::run_pass over all items. Throws kShape if the control block is on another device.
void run_pass(kernels::FactoredPass pass, const FactoredTable& table,
              const kernels::FactoredRule& rule, const at::Tensor& control);

}  // namespace kinora::ops
