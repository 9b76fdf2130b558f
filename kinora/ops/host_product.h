#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kinora/device/host_calls.h"
#include "kinora/device/side_stream.h"
#include "kinora/ops/quantised_weight.h"

namespace kinora::ops {

/// A weight [rows, width] in the host's memory.
struct HostWeight {
  int64_t rows = 0;
  int64_t width = 0;
  at::Tensor plain;       ///< [rows, width], contiguous; undefined: it is `codes`
  QuantisedWeight codes;  ///< of a format that kernels::has_product
};

/// Products of a few vectors with weights that stay in the host's memory: its cores make them where
/// the weights lie, beside what the device does meanwhile, and only the vectors travel. One after
/// the other, in the order in which they are begun. The host never waits for the device, and all of
/// it can be recorded in CUDA graphs once the same number of vectors has been multiplied outside of
/// one. On a CPU they are made at once.
class HostProducts {
 public:
  /// `weights`: in memory that is the device's, too (device/host_memory.h).
  HostProducts(std::vector<HostWeight> weights, at::Device device);
  ~HostProducts();
  HostProducts(const HostProducts&) = delete;
  HostProducts& operator=(const HostProducts&) = delete;

  /// Begins x W^T with the weights of these numbers, in this order, for x [V, width] of any
  /// floating type, which the current stream has made.
  void begin(const std::vector<size_t>& numbers, const at::Tensor& x);
  /// What was begun last with it: fp32 [V, rows], for which the current stream waits. It holds
  /// until the next is begun.
  [[nodiscard]] at::Tensor result(size_t number) const;

 private:
  struct Call {
    at::Tensor out;  ///< fp32 [V, rows], in the host's memory; undefined: not made yet
    size_t kept = 0;
  };
  /// Of so many vectors; graphs have recorded them.
  struct Calls {
    at::Tensor in;            ///< fp32 [V, width], in the host's memory
    std::vector<Call> calls;  ///< by weight
  };

  [[nodiscard]] at::Tensor at_host(int64_t rows, int64_t width) const;
  [[nodiscard]] Call make_call(const HostWeight& weight, const at::Tensor& in);

  at::Device device_;
  std::vector<HostWeight> weights_;
  std::map<int64_t, Calls> calls_of_;         // V
  std::vector<int64_t> begun_;                // V, by weight
  device::SideStream stream_;                 // a mark a weight
  std::unique_ptr<device::HostCalls> calls_;  // null in a dry run; last: they use the others
};

/// One of them.
struct HostProduct {
  std::shared_ptr<HostProducts> products;  ///< null: none
  size_t number = 0;

  [[nodiscard]] explicit operator bool() const { return products != nullptr; }
  [[nodiscard]] at::Tensor result() const { return products->result(number); }
};

}  // namespace kinora::ops
