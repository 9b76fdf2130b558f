#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/comm/group.h"

namespace kinora::comm {

struct TorusOptions {
  /// Parts of at least this many bytes are pipelined. A message takes latency + bytes / bandwidth
  /// seconds, so one of latency x bandwidth bytes takes twice its latency: from there on hiding one
  /// link behind the other is worth the additional calls. 1 MiB is that product for the network of
  /// a current GPU host (20 us, 50 GB/s). 0: always; INT64_MAX: never.
  int64_t min_pipelined_bytes = int64_t{1} << 20;
  /// What crosses nodes travels in 8 bits (quantised.h), never pipelined. Floats only, no kMax.
  bool fp8_across = false;
};

/// Collectives of a group of A x I ranks in two levels: I ranks inside a node, by a fast link, and
/// A nodes across a slow one. Rank r is rank r % I inside and rank r / I across. Of N elements, N
/// move inside, but only N / I across: a flat algorithm sends N across some link of every node.
///
/// reduce_scatter and all_gather have the meaning of Group's, with parts in the order of the whole
/// group's ranks, in place where Group's may be, and take its types. Sums differ by their order: of
/// each node's ranks first; 16-bit types are rounded after each level, pipelined after each node.
///
/// Both links work at once: what inside rank i keeps are parts i, I + i, 2 I + i, ..., one of each
/// node's piece [a * I * n, (a + 1) * I * n) of the whole. These A pieces are contiguous, so that
/// nothing is copied or reordered: piece by piece is reduced inside, and goes around a ring across
/// meanwhile, collecting the nodes' sums. An all-gather is the same backwards. See
/// TorusOptions::min_pipelined_bytes for when there is one step across after, or before, all
/// pieces.
///
/// What the two groups count, with n elements a part: inside A calls of I * n elements, N in all;
/// across A - 1 exchanges of n, or, not pipelined, one call of A * n = N / I.
///
/// A value; copies are the same torus. Works as Group does otherwise (errors, one thread at a time,
/// order of calls). On a GPU two communicators are at work: not to be recorded in a CUDA graph,
/// whose replays start their kernels in another order on each rank, so that they wait for each
/// other forever. (One level is Group's calls, which can be.)
class Torus {
 public:
  /// Of one rank.
  Torus();

  /// Splits the group; all its ranks call this. kConfig unless ranks_inside divides its size. With
  /// ranks_inside 1 or the group's size there is one level only, whose calls are Group's.
  Torus(const Group& group, int64_t ranks_inside, const TorusOptions& options = {});

  [[nodiscard]] int64_t rank() const;  ///< in the whole group
  [[nodiscard]] int64_t size() const;
  [[nodiscard]] const Group& inside() const;
  [[nodiscard]] const Group& across() const;

  /// `output` [n] = this rank's part of the reduced `input` [A * I * n]. Takes a scratch of A * n.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      Reduction reduction = Reduction::kSum) const;
  /// On a GPU the current stream goes on meanwhile; wait() must find the same one current. Two
  /// calls under way overlap, a third one follows the first. On the CPU each follows the one
  /// before.
  [[nodiscard]] Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                          Reduction reduction = Reduction::kSum) const;

  /// `output` [A * I * n] = the inputs [n] by rank. Not pipelined it takes a scratch of A * n.
  void all_gather(const at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Work all_gather_async(const at::Tensor& output, const at::Tensor& input) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// How many ranks share a host where that makes a torus: `hosts` [group rank] has equally many
/// ranks of each host, one host after the other. Else hosts.size(): one level.
[[nodiscard]] int64_t ranks_inside(const std::vector<int64_t>& hosts);

/// The torus of the group's hosts, by ranks_inside(). All ranks of the group call this.
[[nodiscard]] Torus torus_of_hosts(const Group& group, const TorusOptions& options = {});

}  // namespace kinora::comm
