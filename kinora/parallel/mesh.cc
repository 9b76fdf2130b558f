#include "kinora/parallel/mesh.h"

#include <sstream>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::parallel {
namespace {

constexpr std::array<Axis, kNumAxes> kAxes = {Axis::kPipeline, Axis::kReplicate, Axis::kShard,
                                              Axis::kGuidance, Axis::kSequence,  Axis::kTensor};

std::string describe(const MeshShape& shape) {
  std::ostringstream text;
  for (const Axis axis : kAxes) {
    text << (axis == kAxes.front() ? "" : " x ") << to_string(axis) << ' ' << shape.size(axis);
  }
  return text.str();
}

/// How far apart neighbours along `axis` are.
int64_t stride_of(const MeshShape& shape, Axis axis) {
  int64_t stride = 1;
  for (auto faster = kAxes.rbegin(); *faster != axis; ++faster) {
    stride *= shape.size(*faster);
  }
  return stride;
}

}  // namespace

std::vector<std::vector<int64_t>> lines(int64_t stride, int64_t length, int64_t ranks) {
  std::vector<std::vector<int64_t>> result;
  for (int64_t first = 0; first < ranks; ++first) {
    if (first / stride % length != 0) {
      continue;
    }
    std::vector<int64_t>& line = result.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      line.push_back(first + i * stride);
    }
  }
  return result;
}

std::string_view to_string(Axis axis) {
  constexpr std::array<std::string_view, kNumAxes> kNames = {"pipeline", "replicate", "shard",
                                                             "guidance", "sequence",  "tensor"};
  return kNames[static_cast<size_t>(axis)];
}

int64_t MeshShape::size(Axis axis) const {
  switch (axis) {
    case Axis::kPipeline:
      return pipeline;
    case Axis::kReplicate:
      return replicate;
    case Axis::kShard:
      return shard;
    case Axis::kGuidance:
      return guidance;
    case Axis::kSequence:
      return sequence;
    case Axis::kTensor:
      return tensor;
  }
  KINORA_UNREACHABLE("[mesh] unknown axis");
}

MeshShape resolved(const MeshShape& shape, int64_t ranks) {
  MeshShape result = shape;
  int64_t others = 1;
  for (const Axis axis : kAxes) {
    const int64_t size = shape.size(axis);
    KINORA_CHECK(size >= (axis == Axis::kShard ? 0 : 1), kConfig, "[mesh] axis ", to_string(axis),
                 " must be 1 or more, got ", size);
    others *= axis == Axis::kShard ? 1 : size;
  }
  if (shape.shard == 0 && ranks % others == 0) {
    result.shard = ranks / others;
  }
  KINORA_CHECK(result.shard * others == ranks, kConfig, "[mesh] ", ranks,
               " ranks are not the product of the axes ", describe(shape),
               ". Hint: leave parallel.shard at 0, and it takes the ranks that remain");
  return result;
}

Mesh::Mesh(const comm::Group& world, const MeshShape& shape)
    : world_(world), shape_(resolved(shape, world.size())) {
  const auto group_of = [&](int64_t stride, int64_t length) {
    if (length == world.size()) {
      return world;
    }
    return length > 1 ? world.split(lines(stride, length, world.size())) : comm::Group();
  };
  for (const Axis axis : kAxes) {
    groups_[static_cast<size_t>(axis)] = group_of(stride_of(shape_, axis), shape_.size(axis));
  }
  const int64_t in_a_stage = shape_.guidance * shape_.sequence * shape_.tensor;
  if (shape_.pipeline == 1) {
    sample_group_ = group_of(1, in_a_stage);
  } else {
    // Each line of one stage, with those of the others.
    std::vector<std::vector<int64_t>> samples;
    const int64_t of_a_stage = world.size() / shape_.pipeline;
    for (const std::vector<int64_t>& line : lines(1, in_a_stage, of_a_stage)) {
      std::vector<int64_t>& all = samples.emplace_back();
      for (int64_t stage = 0; stage < shape_.pipeline; ++stage) {
        for (const int64_t rank : line) {
          all.push_back(stage * of_a_stage + rank);
        }
      }
    }
    sample_group_ = samples.size() == 1 ? world : world.split(samples);
  }
  const int64_t same_samples = shape_.guidance * shape_.sequence;
  state_group_ = same_samples == 1
                     ? group(Axis::kShard)
                     : group_of(stride_of(shape_, Axis::kSequence), shape_.shard * same_samples);
}

const comm::Group& Mesh::group(Axis axis) const {
  return groups_[static_cast<size_t>(axis)];
}

int64_t Mesh::data_rank() const {
  return index(Axis::kReplicate) * shape_.shard + index(Axis::kShard);
}

at::Tensor Mesh::one_of_each(const at::Tensor& by_rank) const {
  std::vector<int64_t> shape = {shape_.pipeline, data_ranks(), -1};
  const at::IntArrayRef rest = by_rank.sizes().slice(1);
  shape.insert(shape.end(), rest.begin(), rest.end());
  return by_rank.reshape(shape).select(0, 0).select(1, 0);
}

}  // namespace kinora::parallel
