#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kinora/comm/group.h"

/// Ranks as a grid: which of them work together on what.
namespace kinora::parallel {

/// Named axes, the slowest first: neighbours along `tensor` have neighbouring ranks.
enum class Axis : uint8_t { kPipeline, kReplicate, kShard, kGuidance, kSequence, kTensor };
inline constexpr size_t kNumAxes = 6;

/// "pipeline", "replicate", ...
[[nodiscard]] std::string_view to_string(Axis axis);

/// Sizes of the axes; ranks are their product. 0 for `shard`: the ranks that remain.
struct MeshShape {
  int64_t pipeline = 1;
  int64_t replicate = 1;  ///< copies of the whole state, which it is divided among `shard` for
  int64_t shard = 0;
  int64_t guidance = 1;  ///< of sampling: see guidance_parallel.h
  int64_t sequence = 1;
  int64_t tensor = 1;

  [[nodiscard]] int64_t size(Axis axis) const;
};

/// With `shard` resolved. kConfig, naming the axes, if `ranks` is not their product.
[[nodiscard]] MeshShape resolved(const MeshShape& shape, int64_t ranks);

/// The lists of `length` ranks out of `ranks` that are `stride` apart.
[[nodiscard]] std::vector<std::vector<int64_t>> lines(int64_t stride, int64_t length,
                                                      int64_t ranks);

class Mesh {
 public:
  /// One rank alone.
  Mesh() : Mesh(comm::Group(), MeshShape()) {}
  /// All ranks of `world` call it. kConfig as resolved().
  Mesh(const comm::Group& world, const MeshShape& shape);

  [[nodiscard]] const MeshShape& shape() const { return shape_; }
  [[nodiscard]] const comm::Group& world() const { return world_; }
  /// The ranks that differ from this one in `axis` alone.
  [[nodiscard]] const comm::Group& group(Axis axis) const;
  /// The ranks that divide one copy of the state among them: shard x guidance x sequence; along
  /// `tensor` each has a part of the model, and so a state of its own.
  [[nodiscard]] const comm::Group& state_group() const { return state_group_; }
  /// The ranks that have the same samples: pipeline x guidance x sequence x tensor.
  [[nodiscard]] const comm::Group& sample_group() const { return sample_group_; }
  /// This rank's place along an axis.
  [[nodiscard]] int64_t index(Axis axis) const { return group(axis).rank(); }

  /// Ranks over which gradients are averaged: all but those along `tensor` and `pipeline`, of which
  /// each has the gradients of its own part.
  [[nodiscard]] int64_t gradient_ranks() const {
    return world_.size() / (shape_.tensor * shape_.pipeline);
  }
  /// How many ranks have each sample.
  [[nodiscard]] int64_t ranks_of_sample() const { return world_.size() / data_ranks(); }
  /// Of a tensor of all ranks, by rank in dim 0, that of one rank of each sample: by data rank.
  [[nodiscard]] at::Tensor one_of_each(const at::Tensor& by_rank) const;

  /// Ranks that compute on different samples: replicate x shard, and this one's place.
  [[nodiscard]] int64_t data_ranks() const { return shape_.replicate * shape_.shard; }
  [[nodiscard]] int64_t data_rank() const;

 private:
  comm::Group world_;
  MeshShape shape_;
  std::array<comm::Group, kNumAxes> groups_;
  comm::Group state_group_;
  comm::Group sample_group_;
};

}  // namespace kinora::parallel
