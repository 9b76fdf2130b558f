#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "kinora/comm/group.h"

namespace kinora::comm {

/// The straight line of Hockney (1994, "The communication challenge for MPP"): sending b bytes
/// takes latency + b / bytes_per_s seconds. The default is a link that costs nothing.
struct Link {
  double latency = 0.0;  ///< seconds
  double bytes_per_s = std::numeric_limits<double>::infinity();

  [[nodiscard]] double seconds(double bytes) const { return latency + bytes / bytes_per_s; }
};

/// Bytes that each of `ranks` ranks sends in a ring where a group counts `bytes` (Traffic):
/// (ranks - 1) / ranks of them, twice for all_reduce. What the bandwidths here are about, so that
/// groups of different sizes compare. (The "bus bandwidth" of NVIDIA's nccl-tests.)
[[nodiscard]] double ring_bytes(Operation operation, int64_t ranks, double bytes);

/// One size of one operation.
struct LinkSample {
  int64_t bytes = 0;     ///< as a group counts them
  double seconds = 0.0;  ///< of a call among calls one behind the other, of the slowest rank
};

/// An operation of a group.
struct OperationSpeed {
  Operation operation = Operation::kAllReduce;
  std::vector<LinkSample> samples;  ///< by rising size
  Link link;                        ///< the line through them, over ring_bytes
};

/// The line with the least sum of squared relative errors through points (bytes, seconds) of at
/// least two sizes. A latency below 0 becomes 0, with the best line through it.
[[nodiscard]] Link fit_link(const std::vector<double>& bytes, const std::vector<double>& seconds);

/// Times all_reduce, all_gather and reduce_scatter of fp32 numbers on `device`, three sizes each:
/// 64 KiB to 4 MiB on a CPU, to 64 MiB on a GPU; two where the third would take a second. Every
/// rank calls it and gets the same figures. About a second for four ranks of one CPU. A group of
/// one has no samples and default links.
///
/// Clocks are the host's, around a barrier, some calls and a wait for the device: what a training
/// step pays, launches included. (Events on the device would leave those out, and the waiting for
/// late ranks in.)
[[nodiscard]] std::vector<OperationSpeed> measure(const Group& group, at::Device device);

}  // namespace kinora::comm
