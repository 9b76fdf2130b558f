#include "kinora/pipelines/sampling_ranks.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace {

using parallel::Axis;

SampleRange range_of(int64_t samples, int64_t group, int64_t groups) {
  const int64_t first = samples * group / groups;
  return {first, samples * (group + 1) / groups - first};
}

std::string number_of(int64_t samples) {
  return std::to_string(samples) + (samples == 1 ? " sample" : " samples");
}

}  // namespace

parallel::MeshShape SamplingShares::mesh() const {
  return {.shard = groups, .guidance = guidance, .sequence = sequence};
}

SamplingShares share_ranks(const SamplingRanks& wanted, int64_t ranks, int64_t samples,
                           bool guided) {
  KINORA_CHECK(wanted.guidance <= 1 || guided, kConfig, "[sample] --guidance-ranks ",
               wanted.guidance,
               " needs guidance, and its scale is 1. Hint: --guidance S, or --guidance-ranks 1");
  SamplingShares shares{.guidance = std::max<int64_t>(wanted.guidance, 1),
                        .sequence = std::max<int64_t>(wanted.sequence, 1)};
  const int64_t given = shares.guidance * shares.sequence;
  KINORA_CHECK(ranks % given == 0, kConfig, "[sample] --guidance-ranks ", shares.guidance,
               " x --sequence ", shares.sequence, " does not divide ", ranks,
               ranks == 1 ? " rank" : " ranks", ". Hint: --ranks ", given, " or a multiple");
  shares.groups = ranks / given;
  std::string why = wanted.guidance + wanted.sequence > 0
                        ? "as asked"
                        : "each draws samples of its own, of " + std::to_string(samples);
  if (samples < shares.groups) {
    why = "for " + number_of(samples) + (guided ? "" : " without guidance");
    int64_t rest = shares.groups / std::gcd(shares.groups, samples);
    if (wanted.guidance == 0 && guided && rest % 2 == 0) {
      shares.guidance = 2;
      rest /= 2;
    }
    if (wanted.sequence == 0) {
      shares.sequence = rest;
    }
    shares.groups = ranks / (shares.guidance * shares.sequence);
  }
  KINORA_CHECK(shares.groups <= samples, kConfig, "[sample] ", ranks, " ranks with --sequence ",
               shares.sequence, " and --guidance-ranks ", shares.guidance, " are ", shares.groups,
               " groups for ", number_of(samples),
               ". Hint: leave out --sequence or --guidance-ranks, or take fewer ranks");
  std::ostringstream text;
  text << ranks << " ranks = " << shares.groups << (shares.groups == 1 ? " group" : " groups")
       << " x guidance " << shares.guidance << " x sequence " << shares.sequence << ": " << why;
  shares.reason = text.str();
  return shares;
}

SampleRange own_samples(int64_t samples, const parallel::Mesh& mesh) {
  return range_of(samples, mesh.data_rank(), mesh.data_ranks());
}

at::Tensor gather_samples(const at::Tensor& own, int64_t samples, const parallel::Mesh& mesh) {
  const int64_t groups = mesh.data_ranks();
  // The first rank of each group sends; all of a group have drawn the same.
  if (groups == 1 || mesh.index(Axis::kGuidance) + mesh.index(Axis::kSequence) > 0) {
    return own;
  }
  const comm::Group& leaders = mesh.group(Axis::kShard);
  if (leaders.rank() > 0) {
    for (int64_t i = 0; i < own.size(0); ++i) {
      leaders.send(own[i].contiguous(), 0);
    }
    return own;
  }
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = samples;
  at::Tensor all = at::empty(shape, own.options());
  all.narrow(0, 0, own.size(0)).copy_(own);
  for (int64_t group = 1; group < groups; ++group) {
    const SampleRange range = range_of(samples, group, groups);
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      leaders.receive(all[i], group);
    }
  }
  return all;
}

}  // namespace kinora::pipelines
